package relay_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/test/relay"
)

const patience = 30 * time.Second

var anyPort = netip.MustParseAddrPort("127.0.0.1:0")

// serve is a server that handles each connection, until the test ends.
func serve(t *testing.T, handle func(*net.TCPConn)) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", anyPort.String())
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		listener.Close()
		serving.Wait()
	})
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(patience))
				handle(conn.(*net.TCPConn))
			})
		}
	})
	return listener.Addr().String()
}

// echo answers with all that it has read once the client has said that this is all.
func echo(conn *net.TCPConn) {
	content, _ := io.ReadAll(conn)
	_, _ = conn.Write(content)
}

func to(address string) relay.Target { return func() (string, bool) { return address, true } }

func listen(t *testing.T, target relay.Target) *relay.Relay {
	t.Helper()
	r, err := relay.Listen(t.Context(), anyPort, target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func tryDial(t *testing.T, r *relay.Relay) (net.Conn, error) {
	return (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", r.Addr().String())
}

func dial(t *testing.T, r *relay.Relay) *net.TCPConn {
	t.Helper()
	conn, err := tryDial(t, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

// wantRefused fails if anybody still listens.
func wantRefused(t *testing.T, r *relay.Relay) {
	t.Helper()
	conn, err := tryDial(t, r)
	if err == nil {
		conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialling a relay that does not listen any more: %v, want a refusal", err)
	}
}

// A client that has said all must still hear the whole answer, however long both are.
func TestHalfCloseIsPassedOn(t *testing.T) {
	conn := dial(t, listen(t, to(serve(t, echo))))
	sent := strings.Repeat("0123456789abcdef", 1<<16)
	go func() {
		_, _ = io.WriteString(conn, sent)
		_ = conn.CloseWrite()
	}()
	if got, err := io.ReadAll(conn); err != nil || string(got) != sent {
		t.Errorf("%d bytes of %d came back: %v", len(got), len(sent), err)
	}
}

// A server that has said all must still hear what its client has to say.
func TestServerMayCloseItsHalfFirst(t *testing.T) {
	heard := make(chan string, 1)
	conn := dial(t, listen(t, to(serve(t, func(conn *net.TCPConn) {
		_, _ = io.WriteString(conn, "hello")
		_ = conn.CloseWrite()
		content, _ := io.ReadAll(conn)
		heard <- string(content)
	}))))
	if got, err := io.ReadAll(conn); err != nil || string(got) != "hello" {
		t.Fatalf("the client read %q, %v", got, err)
	}
	if _, err := io.WriteString(conn, "goodbye"); err != nil {
		t.Fatal(err)
	}
	_ = conn.CloseWrite()
	if got := <-heard; got != "goodbye" {
		t.Errorf("the server read %q", got)
	}
}

// A target that dies must not look like one that has said all that it had to say.
func TestResetIsPassedOn(t *testing.T) {
	conn := dial(t, listen(t, to(serve(t, func(conn *net.TCPConn) {
		_, _ = conn.Read(make([]byte, 1))
		_ = conn.SetLinger(0)
	}))))
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read: %v, want a reset", err)
	}
}

// Each connection goes where the target is at that moment, and nowhere when there is none.
func TestTargetIsFollowed(t *testing.T) {
	say := func(what string) string {
		return serve(t, func(conn *net.TCPConn) { _, _ = io.WriteString(conn, what) })
	}
	var target atomic.Value
	r := listen(t, func() (string, bool) {
		address := target.Load().(string)
		return address, address != ""
	})
	for _, c := range []struct{ address, want string }{{say("one"), "one"}, {say("two"), "two"}} {
		target.Store(c.address)
		if got, err := io.ReadAll(dial(t, r)); err != nil || string(got) != c.want {
			t.Errorf("read %q, %v, want %q", got, err, c.want)
		}
	}
	gone := listen(t, to(""))
	gone.Close()
	for _, address := range []string{"", gone.Addr().String()} {
		target.Store(address)
		// A quick reset is there before the dialling is done.
		conn, err := tryDial(t, r)
		if err == nil {
			_ = conn.SetDeadline(time.Now().Add(patience))
			_, err = conn.Read(make([]byte, 1))
			conn.Close()
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("target %q: %v, want a reset", address, err)
		}
	}
}

// Nothing of a relay may outlive it: not its connections, its port nor a goroutine.
func TestEnd(t *testing.T) {
	for name, end := range map[string]func(*relay.Relay, context.CancelFunc){
		"Close":                func(r *relay.Relay, _ context.CancelFunc) { r.Close(); r.Close() },
		"its context's end":    func(r *relay.Relay, cancel context.CancelFunc) { cancel(); r.Wait() },
		"both":                 func(r *relay.Relay, cancel context.CancelFunc) { cancel(); r.Close() },
		"retired without wait": func(r *relay.Relay, _ context.CancelFunc) { r.Retire(time.Nanosecond); r.Wait() },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r, err := relay.Listen(ctx, anyPort, to(serve(t, echo)))
			if err != nil {
				t.Fatal(err)
			}
			conn := dial(t, r)
			untilCarried(t)
			end(r, cancel)
			if stacks := goroutines(); strings.Contains(stacks, "/relay.") {
				t.Errorf("left behind:\n%s", stacks)
			}
			if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("read: %v, want the connection's end", err)
			}
			wantRefused(t, r)
		})
	}
}

// Who takes over an address must not have to wait for its old connections.
func TestRetiredRelayKeepsItsConnectionsForAWhile(t *testing.T) {
	r := listen(t, to(serve(t, echo)))
	conn := dial(t, r)
	untilCarried(t)
	r.Retire(time.Hour)
	wantRefused(t, r)
	next, err := relay.Listen(t.Context(), r.Addr().(*net.TCPAddr).AddrPort(), to(""))
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	_, _ = io.WriteString(conn, "last words")
	_ = conn.CloseWrite()
	if got, err := io.ReadAll(conn); err != nil || string(got) != "last words" {
		t.Errorf("read %q, %v", got, err)
	}
	r.Wait() // the grace is longer than the test
}

// Two listeners on one address would steal each other's clients.
func TestTakenAddressIsAnError(t *testing.T) {
	r := listen(t, to(""))
	if other, err := relay.Listen(t.Context(), r.Addr().(*net.TCPAddr).AddrPort(), to("")); err == nil {
		other.Close()
		t.Error("a second relay listens on the same address")
	}
}

// untilCarried waits until a connection is copied in both directions.
func untilCarried(t *testing.T) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for strings.Count(goroutines(), "/relay.pass(") < 2 {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("no connection is carried:\n%s", goroutines())
		}
	}
}

// goroutines are the stacks of all.
func goroutines() string {
	stacks := make([]byte, 1<<20)
	return string(stacks[:runtime.Stack(stacks, true)])
}
