package proxy

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// lastWordsTimeout is what a refused client gets to take its answer in.
	lastWordsTimeout = 2 * time.Second
	// lastWordsLimit is how much of what a refused client still sends is read.
	lastWordsLimit = 256 << 10
)

// conn is a TCP connection of a client or to a target. It embeds the concrete type to keep
// the half-close that goproxy looks for, and the ReadFrom with which the kernel splices.
type conn struct {
	*net.TCPConn
	halfClosed time.Duration
	set        *connSet // nil for a target's
	once       sync.Once
}

// begin says that the client has asked for something, which a shutdown lets it finish.
func (c *conn) begin() {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	if _, open := c.set.open[c]; open {
		c.set.open[c] = true
	}
}

// CloseWrite also starts the clock for the direction that is left: a client that has gone would
// otherwise leave its target's connection behind for as long as the target likes.
func (c *conn) CloseWrite() error {
	_ = c.SetReadDeadline(time.Now().Add(c.halfClosed))
	return c.TCPConn.CloseWrite()
}

// CloseRead starts the same clock for what is still written here: a peer that takes nothing
// would otherwise hold a direction that no longer waits to read.
func (c *conn) CloseRead() error {
	_ = c.SetWriteDeadline(time.Now().Add(c.halfClosed))
	return c.TCPConn.CloseRead()
}

func (c *conn) Close() error {
	if c.set != nil {
		c.once.Do(func() { c.set.remove(c) })
	}
	return c.TCPConn.Close()
}

// hangUp sends a client its refusal and closes. Before that it waits a moment for the client
// to close: to close on bytes that nobody has read is a reset, on which some systems forget
// what they have received.
func (c *conn) hangUp(words []byte) {
	defer c.Close()
	end := time.Now().Add(lastWordsTimeout)
	_ = c.SetWriteDeadline(end)
	if _, err := c.Write(words); err != nil {
		return
	}
	if err := c.TCPConn.CloseWrite(); err != nil {
		return
	}
	_ = c.SetReadDeadline(end)
	_, _ = io.Copy(io.Discard, io.LimitReader(c, lastWordsLimit))
}

// relay passes bytes both ways until both directions have ended, or one has failed, and
// closes both connections.
func relay(a, b *conn) {
	var there sync.WaitGroup
	there.Go(func() { pass(a, b) })
	pass(b, a)
	there.Wait()
	_ = a.Close()
	_ = b.Close()
}

func pass(to, from *conn) {
	if _, err := io.Copy(to, from); err != nil {
		// The other direction may wait for a peer that has nothing to say.
		_ = to.Close()
		_ = from.Close()
		return
	}
	_ = to.CloseWrite()
	_ = from.CloseRead()
}

// connSet holds the accepted connections that are open, tunnels included.
type connSet struct {
	halfClosed time.Duration

	mu sync.Mutex
	// open says of each whether its client has asked for something yet.
	open map[*conn]bool
	// draining turns away whoever comes.
	draining bool
	// changed is closed and replaced when a connection goes.
	changed chan struct{}
}

func newConnSet(halfClosed time.Duration) *connSet {
	return &connSet{halfClosed: halfClosed, open: map[*conn]bool{}, changed: make(chan struct{})}
}

func (s *connSet) add(tcp *net.TCPConn) *conn {
	c := &conn{TCPConn: tcp, halfClosed: s.halfClosed, set: s}
	s.mu.Lock()
	draining := s.draining
	if !draining {
		s.open[c] = false
	}
	s.mu.Unlock()
	if draining {
		_ = c.Close()
	}
	return c
}

func (s *connSet) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *connSet) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// wait returns when no connection is open, or ctx ends.
func (s *connSet) wait(ctx context.Context) {
	for {
		s.mu.Lock()
		n, changed := len(s.open), s.changed
		s.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// drain cuts those that have asked for nothing yet, however long they still might take to:
// they hold nothing up, and lose nothing that another proxy could not give them.
func (s *connSet) drain() {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	s.closeIf(func(begun bool) bool { return !begun })
}

// closeAll cuts what is still open and says how many that were.
func (s *connSet) closeAll() int { return s.closeIf(func(bool) bool { return true }) }

func (s *connSet) closeIf(wanted func(begun bool) bool) int {
	s.mu.Lock()
	var chosen []*conn
	for c, begun := range s.open {
		if wanted(begun) {
			chosen = append(chosen, c)
		}
	}
	s.mu.Unlock()
	for _, c := range chosen {
		_ = c.Close()
	}
	return len(chosen)
}

type trackingListener struct {
	net.Listener
	conns *connSet
}

func (l *trackingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.conns.add(c.(*net.TCPConn)), nil
}
