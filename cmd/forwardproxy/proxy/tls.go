package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"
)

// tlsListener makes TLS of what is accepted. The handshake is not done here, where it would
// keep the next client waiting, but by the first Read.
//
// net/http could do it, if it were told of TLS. It would then log every handshake that fails,
// and would hand a *tls.Conn to goproxy, which takes it for one that cannot be half-closed.
type tlsListener struct {
	net.Listener
	config   *tls.Config
	limit    time.Duration // of a handshake
	failures *failureLog
}

func newTLSListener(listener net.Listener, options Options) *tlsListener {
	return &tlsListener{
		Listener: listener,
		config: &tls.Config{
			Certificates: []tls.Certificate{*options.Certificate},
			MinVersion:   tls.VersionTLS12,
			// A CONNECT over HTTP/2 is a stream of a connection, which none of this is made
			// for: tunnels here take over the connection.
			NextProtos: []string{"http/1.1"},
		},
		limit:    options.HeaderTimeout,
		failures: &failureLog{log: options.Logger},
	}
}

func (l *tlsListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	raw := c.(*conn)
	inTLS := tls.Server(raw, l.config)
	return &tlsConn{Conn: inTLS, tls: inTLS, raw: raw, limit: l.limit, failures: l.failures}, nil
}

// tlsConn is a client's TLS connection. It can be half-closed like the TCP connection below,
// where the deadlines are kept.
type tlsConn struct {
	net.Conn // tls, without its other methods: by some of them net/http would know it for TLS

	tls      *tls.Conn
	raw      *conn
	limit    time.Duration
	failures *failureLog
	once     sync.Once
	failure  error
}

func (c *tlsConn) begin() { c.raw.begin() }

func (c *tlsConn) Read(b []byte) (int, error) {
	c.once.Do(func() { c.failure = c.handshake() })
	if c.failure != nil {
		return 0, c.failure
	}
	return c.tls.Read(b)
}

// handshake is under the read deadline that net/http has set for the first header.
func (c *tlsConn) handshake() error {
	// A client that takes nothing in is cut as well.
	_ = c.raw.SetWriteDeadline(time.Now().Add(c.limit))
	// Without a context of its own: it ends with the connection.
	err := c.tls.HandshakeContext(context.Background())
	if err == nil {
		return c.raw.SetWriteDeadline(time.Time{})
	}
	var record tls.RecordHeaderError
	if errors.As(err, &record) && record.Conn != nil && looksLikeHTTP(record.RecordHeader[:]) {
		c.raw.hangUp(notHTTP("This proxy is spoken to in TLS: write https:// in its URL."))
	}
	c.failures.add(err)
	return err
}

// CloseWrite tells the client, by a close_notify, that nothing more comes.
func (c *tlsConn) CloseWrite() error {
	_ = c.raw.SetReadDeadline(time.Now().Add(c.raw.halfClosed))
	return c.tls.CloseWrite()
}

func (c *tlsConn) CloseRead() error { return c.raw.CloseRead() }

// failureLog logs failed handshakes, which whoever finds the port can cause at any rate, once
// a minute at most.
type failureLog struct {
	log *slog.Logger

	mu    sync.Mutex
	next  time.Time
	count int
}

const (
	failureLogInterval = time.Minute
	// maxFailureLength bounds what of a failure's text a client chooses.
	maxFailureLength = 200
)

func (f *failureLog) add(err error) {
	if gone(err) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	now := time.Now()
	if now.Before(f.next) {
		return
	}
	text := err.Error()
	if len(text) > maxFailureLength {
		text = text[:maxFailureLength]
	}
	f.log.Warn("TLS handshakes failed", "count", f.count, "last", text)
	f.count, f.next = 0, now.Add(failureLogInterval)
}

// gone says of a handshake's failure that the client has left, or was cut: kubelets and load
// balancers knock like this all the time.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || timedOut(err)
}
