package health_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// proxyName and siteName are names that nobody resolves.
const (
	proxyName = "proxy.test"
	siteName  = "site.test"
)

var discard = log.New(io.Discard, "", 0)

// step is something that a peer does with a connection. After an error there is no next.
type step func(net.Conn) error

func does(steps ...step) step {
	return func(conn net.Conn) error {
		for _, s := range steps {
			if err := s(conn); err != nil {
				return err
			}
		}
		return nil
	}
}

// peer is a listener that does the same with each connection, and then closes it.
type peer struct {
	addr string
	// most is how many bytes it could write to one connection.
	most atomic.Int64
}

// peerConn counts what is written.
type peerConn struct {
	*net.TCPConn
	written int64
}

func (c *peerConn) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	c.written += int64(n)
	return n, err
}

// listen starts the peer of a row. When the test has ended nothing is left of it.
func (h hostile) listen(t *testing.T) *peer {
	t.Helper()
	if h.endpoint != nil {
		return &peer{addr: h.endpoint(t)}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{addr: listener.Addr().String()}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { p.serve(ctx, conn.(*net.TCPConn), h.behave) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		cancel()
		running.Wait()
	})
	return p
}

func (p *peer) serve(ctx context.Context, tcp *net.TCPConn, behave step) {
	stop := context.AfterFunc(ctx, func() { _ = tcp.Close() })
	defer stop()
	conn := &peerConn{TCPConn: tcp}
	_ = behave(conn)
	_ = tcp.Close()
	for most := p.most.Load(); conn.written > most && !p.most.CompareAndSwap(most, conn.written); {
		most = p.most.Load()
	}
}

// inTLS does the steps in TLS that the other side has asked for.
func inTLS(certificate tls.Certificate, steps ...step) step {
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}}
	return func(conn net.Conn) error {
		server := tls.Server(conn, config)
		if err := server.Handshake(); err != nil {
			return err
		}
		defer server.Close()
		return does(steps...)(server)
	}
}

func sends(text string) step {
	return func(conn net.Conn) error { _, err := io.WriteString(conn, text); return err }
}

// hangs takes all in and says nothing, until the other side closes.
func hangs(conn net.Conn) error { _, err := io.Copy(io.Discard, conn); return err }

// readsOne waits for the other side to say something.
func readsOne(conn net.Conn) error { _, err := conn.Read(make([]byte, 1)); return err }

// readsHead reads the header of a request.
func readsHead(conn net.Conn) error {
	var read []byte
	for b := make([]byte, 1); !bytes.HasSuffix(read, []byte("\r\n\r\n")); read = append(read, b...) {
		if _, err := conn.Read(b); err != nil {
			return err
		}
	}
	return nil
}

// readsBytes reads as many.
func readsBytes(n int64) step {
	return func(conn net.Conn) error { _, err := io.CopyN(io.Discard, conn, n); return err }
}

// resets has the other side see a reset instead of an end.
func resets(conn net.Conn) error {
	if err := conn.(*peerConn).SetLinger(0); err != nil {
		return err
	}
	return conn.Close()
}

// floods sends a text again and again, as fast as it is taken.
func floods(text string) step {
	chunk := []byte(strings.Repeat(text, 1+(32<<10)/len(text)))
	return func(conn net.Conn) error {
		for {
			if _, err := conn.Write(chunk); err != nil {
				return err
			}
		}
	}
}

// drips sends a text again and again, byte by byte.
func drips(text string) step {
	return func(conn net.Conn) error {
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for i := 0; ; i++ {
			if _, err := conn.Write([]byte{text[i%len(text)]}); err != nil {
				return err
			}
			<-ticker.C
		}
	}
}

// pauses says nothing for a while, unless the other side closes.
func pauses(d time.Duration) step {
	return func(conn net.Conn) error {
		if err := conn.SetReadDeadline(time.Now().Add(d)); err != nil {
			return err
		}
		if err := readsOne(conn); !errors.Is(err, os.ErrDeadlineExceeded) {
			return errors.Join(err, io.ErrClosedPipe)
		}
		return conn.SetReadDeadline(time.Time{})
	}
}

// bound is a socket on a port that is nobody else's until the test ends. Nobody listens
// there yet.
func bound(t *testing.T) (fd int, address string) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(os.NewSyscallError("socket", err))
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(os.NewSyscallError("bind", err))
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(os.NewSyscallError("getsockname", err))
	}
	return fd, net.JoinHostPort("127.0.0.1", strconv.Itoa(name.(*syscall.SockaddrInet4).Port))
}

// refusing is an address where nobody listens.
func refusing(t *testing.T) string {
	t.Helper()
	_, address := bound(t)
	return address
}

// swallowing is an address where connections are neither accepted nor refused: the queue
// of those that wait is full, and nobody takes them off.
func swallowing(t *testing.T) string {
	t.Helper()
	fd, address := bound(t)
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(os.NewSyscallError("listen", err))
	}
	for range 16 {
		conn, err := net.DialTimeout("tcp", address, 500*time.Millisecond)
		if err != nil {
			var late net.Error
			if !errors.As(err, &late) || !late.Timeout() {
				t.Fatal(err)
			}
			return address
		}
		t.Cleanup(func() { conn.Close() })
	}
	t.Fatal("the queue is never full")
	return ""
}
