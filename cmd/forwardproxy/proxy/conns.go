package proxy

import (
	"context"
	"net"
	"sync"
	"time"
)

// conn is a TCP connection of a client or to a target. It embeds the concrete type to keep
// the half-close that goproxy looks for, and the ReadFrom with which the kernel splices.
type conn struct {
	*net.TCPConn
	halfClosed time.Duration
	closed     func() // nil, or called by the first Close
	once       sync.Once
}

// CloseWrite also starts the clock for the direction that is left: a client that has gone would
// otherwise leave its target's connection behind for as long as the target likes.
func (c *conn) CloseWrite() error {
	_ = c.SetReadDeadline(time.Now().Add(c.halfClosed))
	return c.TCPConn.CloseWrite()
}

func (c *conn) Close() error {
	if c.closed != nil {
		c.once.Do(c.closed)
	}
	return c.TCPConn.Close()
}

// connSet holds the accepted connections that are open, tunnels included.
type connSet struct {
	halfClosed time.Duration

	mu   sync.Mutex
	open map[*conn]struct{}
	// changed is closed and replaced when a connection goes.
	changed chan struct{}
}

func newConnSet(halfClosed time.Duration) *connSet {
	return &connSet{halfClosed: halfClosed, open: map[*conn]struct{}{}, changed: make(chan struct{})}
}

func (s *connSet) add(tcp *net.TCPConn) *conn {
	c := &conn{TCPConn: tcp, halfClosed: s.halfClosed}
	c.closed = func() { s.remove(c) }
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[c] = struct{}{}
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

// closeAll cuts what is still open and says how many that were.
func (s *connSet) closeAll() int {
	s.mu.Lock()
	open := make([]*conn, 0, len(s.open))
	for c := range s.open {
		open = append(open, c)
	}
	s.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
	return len(open)
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
