package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

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
