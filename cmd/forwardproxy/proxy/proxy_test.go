package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
)

// exitAddress is an address that the test's own connections never come from.
var exitAddress = netip.MustParseAddr("127.7.7.7")

// running is a proxy that serves until stop, which the test's end calls too.
type running struct {
	*Server
	stop func() error
}

func start(t *testing.T, options Options) *running {
	t.Helper()
	if !options.BindAddress.IsValid() {
		options.BindAddress = exitAddress
	}
	server, err := Listen(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	var result error
	go func() {
		defer close(done)
		result = server.Serve(ctx)
	}()
	stop := func() error { cancel(); <-done; return result }
	t.Cleanup(func() { _ = stop() })
	return &running{Server: server, stop: stop}
}

func client(t *testing.T, p *running, site *origin.Server) *http.Client {
	t.Helper()
	transport := &http.Transport{
		Proxy:           http.ProxyURL(&url.URL{Scheme: "http", Host: p.Addr()}),
		TLSClientConfig: &tls.Config{RootCAs: site.CertPool()},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// A crawler must leave by the proxy's own address, over TLS it can verify and over plain HTTP.
func TestRequestsLeaveFromTheBindAddress(t *testing.T) {
	site, p := origin.Start(t), start(t, Options{})
	for _, base := range []string{site.URL, site.PlainURL} {
		reply, err := origin.Fetch(t.Context(), client(t, p, site), base+"/page")
		if err != nil {
			t.Fatal(err)
		}
		scheme, host, _ := strings.Cut(base, "://")
		want := origin.Reply{RemoteAddr: exitAddress.String(), Host: host, Path: "/page", TLS: scheme == "https"}
		if reply != want {
			t.Errorf("%s saw %+v, want %+v", base, reply, want)
		}
	}
}

// Without a bind address the proxy is reachable on every interface.
func TestListensEverywhereByDefault(t *testing.T) {
	server, err := Listen(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.listener.Close()
	if ip := server.listener.Addr().(*net.TCPAddr).IP; !ip.IsUnspecified() {
		t.Errorf("listens on %s only", ip)
	}
}

// What cannot be served is answered with a status and a sentence that a crawler's author can act on.
func TestRefusals(t *testing.T) {
	p := start(t, Options{})
	closed := closedPort(t)
	for _, c := range []struct {
		name, request string
		status        int
		body          string
	}{
		{"CONNECT to a closed port", "CONNECT " + closed + " HTTP/1.1\r\nHost: " + closed + "\r\n\r\n", 502, "cannot reach " + closed + ": connect: connection refused"},
		{"CONNECT to an unknown name", "CONNECT nosuch.invalid:443 HTTP/1.1\r\nHost: nosuch.invalid:443\r\n\r\n", 502, "cannot reach nosuch.invalid:443: "},
		{"GET from a closed port", "GET http://" + closed + "/secret HTTP/1.1\r\nHost: " + closed + "\r\n\r\n", 502, "cannot reach " + closed + ": connect: connection refused"},
		{"origin form", "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n", 400, "This is a forward proxy"},
		{"https in absolute form", "GET https://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n", 400, "use CONNECT for https"},
		{"CONNECT without a port", "CONNECT example.com HTTP/1.1\r\nHost: example.com\r\n\r\n", 400, "host:port"},
		{"CONNECT to port zero", "CONNECT example.com:0 HTTP/1.1\r\nHost: example.com\r\n\r\n", 400, "host:port"},
		{"HTTP/2 by prior knowledge", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "This is a forward proxy"},
		{"garbage", "\x16\x03\x01\x02\x00 not a request\r\n\r\n", 400, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := dial(t, p)
			fmt.Fprint(conn, c.request)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != c.status || !strings.Contains(string(body), c.body) {
				t.Errorf("got %d %q, want %d with %q", resp.StatusCode, body, c.status, c.body)
			}
		})
	}
}

// A target that swallows packets must not hold a crawler for the kernel's two minutes.
func TestSilentTargetTimesOut(t *testing.T) {
	silent := fullBacklog(t)
	p := start(t, Options{DialTimeout: 100 * time.Millisecond})
	conn := dial(t, p)
	fmt.Fprintf(conn, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", silent)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("got %s, want 504", resp.Status)
	}
}

// The client's credentials for the proxy are not the origin's to see, and a body is passed on
// in the encoding that was asked for.
func TestHeadersForTheProxyStayHere(t *testing.T) {
	seen := make(chan http.Header, 1)
	site := http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header })}
	listener := listen(t)
	go func() { _ = site.Serve(listener) }()
	t.Cleanup(func() { _ = site.Close() })

	conn := dial(t, start(t, Options{}))
	fmt.Fprintf(conn, "GET http://%[1]s/ HTTP/1.1\r\nHost: %[1]s\r\nAccept-Encoding: br\r\n"+
		"Proxy-Authorization: Basic c2VjcmV0\r\nProxy-Connection: keep-alive\r\n\r\n", listener.Addr())
	header := <-seen
	for name := range header {
		if strings.HasPrefix(name, "Proxy-") {
			t.Errorf("the origin got %s", name)
		}
	}
	if got := header.Get("Accept-Encoding"); got != "br" {
		t.Errorf("Accept-Encoding is %q, want br", got)
	}
}

// A crawler in the middle of a page keeps its tunnel while the proxy ends, and nobody new gets in.
func TestOpenTunnelFinishesAfterTheEnd(t *testing.T) {
	p := start(t, Options{DrainTimeout: time.Minute})
	near, far := tunnel(t, p)
	stopped := make(chan error, 1)
	go func() { stopped <- p.stop() }()
	waitRefused(t, p.Addr())

	echoed := make([]byte, 4)
	fmt.Fprint(near, "ping")
	if _, err := io.ReadFull(far, echoed); err != nil || string(echoed) != "ping" {
		t.Fatalf("through the draining proxy came %q, %v", echoed, err)
	}
	_ = near.Close()
	_ = far.Close()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// A tunnel that nobody uses must not keep the pod from ending.
func TestIdleTunnelIsCutWhenDrainingIsOver(t *testing.T) {
	p := start(t, Options{DrainTimeout: 50 * time.Millisecond})
	near, far := tunnel(t, p)
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	for _, end := range []net.Conn{near, far} {
		if n, err := end.Read(make([]byte, 1)); err == nil {
			t.Errorf("read %d bytes from a cut tunnel", n)
		}
	}
	if open := p.conns.count(); open != 0 {
		t.Errorf("%d connections are still tracked", open)
	}
}

// A client that has gone must not leave its target's connection open for ever.
func TestHalfClosedTunnelEnds(t *testing.T) {
	p := start(t, Options{HalfClosedTimeout: 50 * time.Millisecond})
	near, far := tunnel(t, p)
	_ = near.Close()
	if n, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("read %d bytes, %v; want the client's end", n, err)
	}
	// The target never closes its side; writing into it fails once the proxy has let go.
	for t.Context().Err() == nil {
		if _, err := far.Write([]byte("x")); err != nil {
			return
		}
	}
	t.Fatal(t.Context().Err())
}

// tunnel opens a CONNECT tunnel and returns both of its ends.
func tunnel(t *testing.T, p *running) (near, far net.Conn) {
	t.Helper()
	listener := listen(t)
	near = dial(t, p)
	fmt.Fprintf(near, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", listener.Addr())
	far, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	resp, err := http.ReadResponse(bufio.NewReader(near), &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("CONNECT: %s %v", resp.Status, err)
	}
	return near, far
}

func dial(t *testing.T, p *running) net.Conn {
	t.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	// Fail rather than hang.
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// waitRefused returns once nobody listens at the address.
func waitRefused(t *testing.T, address string) {
	t.Helper()
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(t.Context(), "tcp", address)
		if err != nil {
			return
		}
		_ = conn.Close()
	}
}

func closedPort(t *testing.T) string {
	t.Helper()
	listener := listen(t)
	_ = listener.Close()
	return listener.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}
