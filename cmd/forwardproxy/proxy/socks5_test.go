package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// failed is the reply with a code, and no address.
func failed(r reply) string {
	return "\x05" + string([]byte{byte(r)}) + "\x00\x01\x00\x00\x00\x00\x00\x00"
}

// What is said before a request: the client's greeting and the proxy's answer to it, without
// credentials and with, and what wrong ones get.
const (
	hello      = "\x05\x01\x00"
	agree      = "\x05\x00"
	loginHello = "\x05\x01\x02"
	loginAgree = "\x05\x02"
	loginWrong = "\x01\x01"
)

// What comes over the wire is answered to the byte, and the connection closed.
func TestSOCKS5Refusals(t *testing.T) {
	closed := connectTo(netip.MustParseAddrPort(closedPort(t)))
	open, guarded := start(t, speaking(SOCKS5)), start(t, Options{Protocol: SOCKS5, Credentials: &Credentials{"crawler", "hush"}})
	for _, c := range []struct {
		name string
		to   *running
		sent string
		want string
	}{
		{"nothing", open, "", ""},
		{"no methods", open, "\x05\x00", "\x05\xff"},
		{"only methods it has not", open, "\x05\x03\x01\x02\x80", "\x05\xff"},
		{"SOCKS4", open, "\x04\x01\x00\x50\x7f\x00\x00\x01\x00", ""},
		{"TLS", open, "\x16\x03\x01\x02\x00\x01", ""},
		{"zeros", open, strings.Repeat("\x00", 1000), ""},
		{"much", open, strings.Repeat("\xff", 1<<20), ""},
		{"cut in a greeting", open, "\x05\xff\x00", ""},
		{"cut in a request", open, hello + "\x05\x01\x00\x03\x0fexample", agree},
		{"another version's request", open, hello + "\x04\x01\x00\x01\x7f\x00\x00\x01\x00\x50", agree + failed(generalFailure)},
		{"BIND", open, hello + strings.Replace(closed, "\x05\x01", "\x05\x02", 1), agree + failed(commandNotSupported)},
		{"UDP ASSOCIATE", open, hello + "\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00", agree + failed(commandNotSupported)},
		{"no such command", open, hello + "\x05\x99\x00\x01\x7f\x00\x00\x01\x00\x50", agree + failed(commandNotSupported)},
		{"no such address type", open, hello + "\x05\x01\x00\x02\x7f\x00\x00\x01\x00\x50", agree + failed(addressTypeNotSupported)},
		{"no name", open, hello + connectToName("", 80), agree + failed(generalFailure)},
		{"port zero", open, hello + connectToName("localhost", 0), agree + failed(generalFailure)},
		{"a closed port", open, hello + closed, agree + failed(connectionRefused)},
		{"an unknown name", open, hello + connectToName("nosuch.invalid", 443), agree + failed(hostUnreachable)},
		{"a name that is none", open, hello + connectToName("a]b:c", 443), agree + failed(hostUnreachable)},
		{"a name with zeros", open, hello + connectToName("local\x00host", 443), agree + failed(hostUnreachable)},
		{"another family than the bind address", open, hello + connectTo(netip.MustParseAddrPort("[::1]:80")), agree + failed(networkUnreachable)},

		{"without a login", guarded, hello + closed, "\x05\xff"},
		{"wrong password", guarded, loginHello + "\x01\x07crawler\x05hushh", loginAgree + loginWrong},
		{"a prefix", guarded, loginHello + "\x01\x07crawler\x03hus", loginAgree + loginWrong},
		{"another username", guarded, loginHello + "\x01\x07Crawler\x04hush", loginAgree + loginWrong},
		{"swapped", guarded, loginHello + "\x01\x04hush\x07crawler", loginAgree + loginWrong},
		{"empty", guarded, loginHello + "\x01\x00\x00", loginAgree + loginWrong},
		{"another version's login", guarded, loginHello + "\x05\x07crawler\x04hush", loginAgree + loginWrong},
		{"wrong, and a request at once", guarded, loginHello + "\x01\x01x\x01x" + closed, loginAgree + loginWrong},
		{"cut in the login", guarded, loginHello + "\x01\x07crawler\x05hush", loginAgree},
		{"right", guarded, loginHello + "\x01\x07crawler\x04hush" + closed, loginAgree + "\x01\x00" + failed(connectionRefused)},
		{"right, one method of several", guarded, "\x05\x03\x00\x01\x02" + "\x01\x07crawler\x04hush" + closed, loginAgree + "\x01\x00" + failed(connectionRefused)},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := dialTCP(t, c.to)
			go func() {
				fmt.Fprint(conn, c.sent)
				_ = conn.CloseWrite()
			}()
			got, err := io.ReadAll(conn)
			if string(got) != c.want || os.IsTimeout(err) {
				t.Errorf("got %x, %v, want %x", got, err, c.want)
			}
		})
	}
}

// A client that goes on sending still gets to read why it was refused, to a clean end, and is cut.
func TestRefusedSOCKS5ClientsAreCut(t *testing.T) {
	conn := dialTCP(t, start(t, speaking(SOCKS5)))
	fmt.Fprint(conn, "\x05\x01\x02"+strings.Repeat("and a request", 100))
	if got, err := io.ReadAll(conn); err != nil || string(got) != "\x05\xff" {
		t.Errorf("got %x, %v", got, err)
	}
	mustNotWrite(t, conn)
}

// Who takes the port for one of HTTP reads what to write instead.
func TestHTTPOnTheSOCKS5PortIsAnswered(t *testing.T) {
	conn := dialTCP(t, start(t, speaking(SOCKS5)))
	fmt.Fprint(conn, "CONNECT example.com:443 HTTP/1.1\r\n\r\n")
	_ = conn.CloseWrite()
	if got, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 400 ") || !strings.Contains(string(got), "socks5h://") {
		t.Errorf("got %q, %v", got, err)
	}
}

// What a client sends without waiting for the reply is the target's.
func TestEarlyBytesReachTheTarget(t *testing.T) {
	site := listen(t)
	conn := dialTCP(t, start(t, speaking(SOCKS5)))
	fmt.Fprintf(conn, "\x05\x01\x00%searly", connectTo(site.Addr().(*net.TCPAddr).AddrPort()))
	far, err := site.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	failLate(t, far)
	_ = conn.CloseWrite()
	if got, err := io.ReadAll(far); err != nil || string(got) != "early" {
		t.Errorf("got %q, %v", got, err)
	}
}

// A target that swallows packets must not hold a crawler for the kernel's two minutes, and
// the log says which it was.
func TestSilentTargetsReplyIsTTLExpired(t *testing.T) {
	silent := fullBacklog(t)
	var log logs
	p := start(t, Options{Protocol: SOCKS5, DialTimeout: 100 * time.Millisecond, Logger: log.logger()})
	conn := dialTCP(t, p)
	fmt.Fprint(conn, hello+connectTo(netip.MustParseAddrPort(silent)))
	_ = conn.CloseWrite()
	if got, err := io.ReadAll(conn); err != nil || string(got) != agree+failed(ttlExpired) {
		t.Errorf("got %x, %v", got, err)
	}
	if got := log.warnings(); len(got) != 1 || !strings.Contains(got[0], "target="+silent) || strings.Contains(got[0], exitAddress.String()) {
		t.Errorf("logged %q", got)
	}
}

// One that is still being dialled must not keep the pod from ending.
func TestDiallingEndsWhenDrainingIsOver(t *testing.T) {
	p := start(t, Options{Protocol: SOCKS5, DialTimeout: time.Hour, DrainTimeout: 50 * time.Millisecond})
	conn := dialTCP(t, p)
	fmt.Fprint(conn, hello+connectTo(netip.MustParseAddrPort(fullBacklog(t))))
	until(t, "the request has been read", func() bool {
		p.conns.mu.Lock()
		defer p.conns.mu.Unlock()
		for _, begun := range p.conns.open {
			return begun
		}
		return false
	})
	p.mustStop(t)
	isCut(t, conn)
	nobodyIsServed(t)
}

// Nor must a target that takes nothing and says nothing keep what was its tunnel.
func TestStuckTunnelGoesWithTheProxy(t *testing.T) {
	p := start(t, Options{Protocol: SOCKS5, DrainTimeout: 50 * time.Millisecond})
	near, _ := tunnel(t, p)
	chunk := make([]byte, 1<<20)
	for stuck := false; !stuck; {
		_ = near.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		_, err := near.Write(chunk)
		stuck = os.IsTimeout(err)
	}
	p.mustStop(t)
	nobodyIsServed(t)
}

// nobodyIsServed waits until no goroutine of a client is left.
func nobodyIsServed(t *testing.T) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	until(t, "no client is served", func() bool {
		return !strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "(*socks5Server).handle")
	})
}

func TestReplyCodes(t *testing.T) {
	dialling := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for _, c := range []struct {
		err  error
		want reply
	}{
		{dialling(os.NewSyscallError("connect", syscall.ECONNREFUSED)), connectionRefused},
		{dialling(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), hostUnreachable},
		{dialling(os.NewSyscallError("connect", syscall.ENETUNREACH)), networkUnreachable},
		{dialling(os.NewSyscallError("connect", syscall.ETIMEDOUT)), ttlExpired},
		{dialling(os.NewSyscallError("connect", syscall.EACCES)), notAllowed},
		{dialling(os.NewSyscallError("bind", syscall.EADDRNOTAVAIL)), generalFailure},
		{dialling(os.ErrDeadlineExceeded), ttlExpired},
		{dialling(&net.AddrError{Err: "no suitable address found"}), networkUnreachable},
		{dialling(&net.DNSError{Err: "no such host", IsNotFound: true}), hostUnreachable},
		{dialling(&net.DNSError{Err: "i/o timeout", IsTimeout: true}), ttlExpired},
		{errors.New("else"), generalFailure},
	} {
		if got := replyTo(c.err); got != c.want {
			t.Errorf("%v: %s, want %s", c.err, got, c.want)
		}
	}
}

// exhausted is a listener that fails with an error before it is closed.
type exhausted struct {
	net.Listener
	err  error
	left int
}

func (l *exhausted) Accept() (net.Conn, error) {
	if l.left--; l.left >= 0 {
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", l.err)}
	}
	return nil, net.ErrClosed
}

// A moment without file descriptors must not be a proxy's end.
func TestAcceptingGoesOnWhenFilesRunOut(t *testing.T) {
	var log logs
	s := newSOCKS5Server(t.Context(), Options{Logger: log.logger()})
	if err := s.Serve(&exhausted{err: syscall.EMFILE, left: 3}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("ended with %v", err)
	}
	if n := len(log.warnings()); n != 3 {
		t.Errorf("%d warnings, want 3", n)
	}
	if err := s.Serve(&exhausted{err: syscall.EBADF, left: 3}); !errors.Is(err, syscall.EBADF) {
		t.Errorf("ended with %v", err)
	}
}
