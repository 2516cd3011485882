package health

import (
	"bufio"
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/elazarl/goproxy"

	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
)

// forwardProxy is a real one, as pods run it.
func forwardProxy(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(goproxy.NewProxyHttpServer())
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// peer accepts connections and lets behave do with each what it wants; the
// connection is closed when behave returns or the test ends.
func peer(t *testing.T, behave func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, listener, behave)
	return listener.Addr().String()
}

// serve is peer on a listener, which it closes.
func serve(t *testing.T, listener net.Listener, behave func(net.Conn)) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(ctx, func() { conn.Close() })
			go func() {
				defer conn.Close()
				behave(conn)
			}()
		}
	}()
}

// answering reads a request's header and answers with text.
func answering(text string) func(net.Conn) {
	return func(conn net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
			fmt.Fprint(conn, text)
		}
	}
}

func silent(conn net.Conn) { _, _ = conn.Read(make([]byte, 1<<20)); _, _ = conn.Read(make([]byte, 1)) }

func closedPort(t *testing.T) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(refusing(t, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})))
}

// refusing takes a port of an address until the test ends, and does not listen there:
// a port that is merely free may be somebody else's the next moment.
func refusing(t *testing.T, address syscall.Sockaddr) (port int) {
	t.Helper()
	family := syscall.AF_INET
	if _, is := address.(*syscall.SockaddrInet6); is {
		family = syscall.AF_INET6
	}
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(os.NewSyscallError("socket", err))
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, address); err != nil {
		t.Fatal(os.NewSyscallError("bind", err))
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(os.NewSyscallError("getsockname", err))
	}
	if name, is := name.(*syscall.SockaddrInet6); is {
		return name.Port
	}
	return name.(*syscall.SockaddrInet4).Port
}

func TestAProbeSaysWhatFailed(t *testing.T) {
	site := origin.Start(t)
	good := forwardProxy(t)
	for _, tc := range []struct {
		name, endpoint, target string
		roots                  *x509.CertPool
		reason, message        string
	}{
		{"https through a tunnel", good, site.URL + "/generate_204", site.CertPool(), "ProbeSucceeded", ""},
		{"http in absolute form", good, site.PlainURL + "/", site.CertPool(), "ProbeSucceeded", ""},
		{"the site's certificate is not trusted", good, site.URL, x509.NewCertPool(), "TLSFailed", "certificate"},
		{"the site answers 503", good, site.URL + "/status/503", site.CertPool(), "UnexpectedStatus", "503"},
		{"the site redirects", good, site.URL + "/status/302", site.CertPool(), "UnexpectedStatus", "302"},
		{"nothing listens", closedPort(t), site.URL, site.CertPool(), "DialFailed", "refused"},
		{"credentials wanted for the tunnel", peer(t, answering("HTTP/1.1 407 Who Are You\r\nContent-Length: 0\r\n\r\n")), site.URL, site.CertPool(), "ProxyAuthRequired", "407 Proxy Authentication Required"},
		{"credentials wanted for a plain request", peer(t, answering("HTTP/1.1 407 Who\r\nContent-Length: 0\r\n\r\n")), site.PlainURL, nil, "ProxyAuthRequired", "407 Proxy Authentication Required"},
		{"tunnel refused", peer(t, answering("HTTP/1.1 403 Not You\r\nContent-Length: 0\r\n\r\n")), site.URL, site.CertPool(), "ConnectRefused", "403 Forbidden"},
		{"closed before the answer", peer(t, answering("")), site.URL, site.CertPool(), "ConnectRefused", "EOF"},
		{"garbage for an answer", peer(t, answering("SSH-2.0-OpenSSH\r\n\r\n")), site.URL, site.CertPool(), "ConnectRefused", "malformed"},
		{"headers without end", peer(t, func(conn net.Conn) {
			answering("HTTP/1.1 200 OK\r\n")(conn)
			for {
				if _, err := fmt.Fprint(conn, "X-Filler: "+strings.Repeat("x", 4000)+"\r\n"); err != nil {
					return
				}
			}
		}), site.URL, site.CertPool(), "ConnectRefused", "what came is too large"},
		{"hangs after accepting", peer(t, silent), site.URL, site.CertPool(), "Timeout", "no answer"},
		{"hangs after the tunnel is open", peer(t, func(conn net.Conn) {
			answering("HTTP/1.1 200 OK\r\n\r\n")(conn)
			silent(conn)
		}), site.URL, site.CertPool(), "Timeout", "TLS handshake"},
		{"speaks no TLS after the tunnel is open", peer(t, answering("HTTP/1.1 200 OK\r\n\r\nhello, this is not TLS")), site.URL, site.CertPool(), "TLSFailed", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			timeout := 20 * time.Second
			if tc.reason == "Timeout" {
				timeout = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			r := local(tc.roots).probe(ctx, via("http", tc.endpoint, nil), aim{url: tc.target})
			if r.reason != tc.reason || r.ok != (tc.reason == "ProbeSucceeded") || !strings.Contains(r.message, tc.message) {
				t.Errorf("got %+v, want %s with %q", r, tc.reason, tc.message)
			}
			if r.ok && r.latency <= 0 {
				t.Error("a probe that passed took no time")
			}
		})
	}
}

func TestTheHubsOwnExhaustionIsNoFaultOfTheProxy(t *testing.T) {
	for _, own := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.EADDRNOTAVAIL} {
		err := &url.Error{Op: "Get", URL: "x", Err: &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", own)}}
		if r := explain(err, nowhere, advice{}); !r.void {
			t.Errorf("%v counts against the proxy: %+v", own, r)
		}
	}
}

func TestALongAnswerIsCut(t *testing.T) {
	chatty := peer(t, answering("HTTP/1.1 502 "+strings.Repeat("€", 8_000)+"\r\nContent-Length: 0\r\n\r\n"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if r := local(nil).probe(ctx, via("http", chatty, nil), aim{url: "https://site.test/"}); r.reason != "ConnectRefused" || r.message != "the proxy answered CONNECT with 502 Bad Gateway" {
		t.Errorf("%s with %d bytes", r.reason, len(r.message))
	}
	p := prober{dialer: dialer{resolver: &names{}}}
	if r := p.probe(ctx, via("http", strings.Repeat("€", 15_000)+":1", nil), aim{url: "https://site.test/"}); r.reason != "DialFailed" || len(r.message) > 400 || !utf8.ValidString(r.message) {
		t.Errorf("%s with %d bytes", r.reason, len(r.message))
	}
}

func TestABodyThatNeverEndsDoesNotFailOrHoldAProbe(t *testing.T) {
	endless := peer(t, func(conn net.Conn) {
		answering("HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")(conn)
		for {
			if _, err := conn.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if r := local(nil).probe(ctx, via("http", endless, nil), aim{url: "http://example.test/"}); !r.ok {
		t.Errorf("got %+v", r)
	}
}
