package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
)

// A crawler must leave by the proxy's own address, over TLS it can verify and over plain HTTP,
// to an address and to a name, which the proxy resolves.
func TestRequestsLeaveFromTheBindAddress(t *testing.T) {
	site := origin.Start(t)
	eachProtocol(t, func(t *testing.T, options Options) {
		p := start(t, options)
		crawler := client(t, p, site, nil)
		for _, base := range []string{site.URL, site.PlainURL} {
			for _, base := range []string{base, strings.Replace(base, "127.0.0.1", "localhost", 1)} {
				reply, err := origin.Fetch(t.Context(), crawler, base+"/page")
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
	})
}

func TestIPv6TargetsAreReached(t *testing.T) {
	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RemoteAddr) }))
	site.Listener = listenOn(t, "[::1]:0")
	site.Start()
	t.Cleanup(site.Close)
	eachProtocol(t, func(t *testing.T, options Options) {
		options.BindAddress = netip.IPv6Loopback()
		p := start(t, options)
		resp, err := client(t, p, nil, nil).Get(site.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if from, err := io.ReadAll(resp.Body); err != nil || !strings.HasPrefix(string(from), "[::1]:") {
			t.Errorf("the site saw %q, %v", from, err)
		}
	})
}

// A crawler in the middle of a page keeps its tunnel while the proxy ends, and nobody new gets in.
func TestOpenTunnelFinishesAfterTheEnd(t *testing.T) {
	eachProtocol(t, func(t *testing.T, options Options) {
		options.DrainTimeout = time.Minute
		p := start(t, options)
		near, far := tunnel(t, p)
		stopped := make(chan error, 1)
		go func() { stopped <- p.stop() }()
		waitRefused(t, p.Addr())

		echoed := make([]byte, 4)
		fmt.Fprint(near, "ping")
		if _, err := io.ReadFull(far, echoed); err != nil || string(echoed) != "ping" {
			t.Fatalf("through the draining proxy came %q, %v", echoed, err)
		}
		if n := p.conns.count(); n != 1 {
			t.Errorf("%d connections are waited for, want 1", n)
		}
		_ = near.Close()
		_ = far.Close()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
}

// A tunnel that nobody uses must not keep the pod from ending.
func TestIdleTunnelIsCutWhenDrainingIsOver(t *testing.T) {
	eachProtocol(t, func(t *testing.T, options Options) {
		options.DrainTimeout = 50 * time.Millisecond
		p := start(t, options)
		near, far := tunnel(t, p)
		p.mustStop(t)
		isCut(t, near)
		isCut(t, far)
		if open := p.conns.count(); open != 0 {
			t.Errorf("%d connections are still tracked", open)
		}
	})
}

// Who says that it has said all still gets the answer, whichever end it is.
func TestHalfClosePassesBothWays(t *testing.T) {
	eachProtocol(t, func(t *testing.T, options Options) {
		p := start(t, options)
		bothWays(t, p, func(t *testing.T, first, second halfCloser) {
			for _, turn := range []struct {
				from, to halfCloser
				text     string
			}{{first, second, "a question"}, {second, first, strings.Repeat("an answer", 1<<16)}} {
				go func() {
					fmt.Fprint(turn.from, turn.text)
					_ = turn.from.CloseWrite()
				}()
				if got, err := io.ReadAll(turn.to); err != nil || string(got) != turn.text {
					t.Fatalf("%d bytes came, %v, want %d", len(got), err, len(turn.text))
				}
			}
		})
		// The proxy has let go of what both ends have closed.
		until(t, "no connection is open", func() bool { return p.conns.count() == 0 })
	})
}

// A peer that has said all must not leave its other end's connection open for ever.
func TestHalfClosedTunnelEnds(t *testing.T) {
	eachProtocol(t, func(t *testing.T, options Options) {
		options.HalfClosedTimeout = 50 * time.Millisecond
		p := start(t, options)
		bothWays(t, p, func(t *testing.T, first, second halfCloser) {
			if err := first.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			// The other gets the end, and never closes its side.
			if n, err := second.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Fatalf("read %d bytes, %v; want the end", n, err)
			}
			isCut(t, first)
			mustNotWrite(t, second)
		})
	})
}

// Nor must one that has said all and takes no answer, while the other end has much to say.
func TestHalfClosedTunnelThatIsStuckEnds(t *testing.T) {
	eachProtocol(t, func(t *testing.T, options Options) {
		options.HalfClosedTimeout = 50 * time.Millisecond
		p := start(t, options)
		bothWays(t, p, func(t *testing.T, first, second halfCloser) {
			if err := first.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			mustNotWrite(t, second)
		})
	})
}

// bothWays runs a test with a tunnel that the client is the first to act in, and with one
// where the target is.
func bothWays(t *testing.T, p *running, test func(t *testing.T, first, second halfCloser)) {
	t.Helper()
	near, far := tunnel(t, p)
	t.Run("client first", func(t *testing.T) { test(t, near, far) })
	near, far = tunnel(t, p)
	t.Run("target first", func(t *testing.T) { test(t, far, near) })
}

// mustNotWrite writes until the other side has gone.
func mustNotWrite(t *testing.T, conn net.Conn) {
	t.Helper()
	chunk := make([]byte, 64<<10)
	for {
		if _, err := conn.Write(chunk); os.IsTimeout(err) {
			t.Fatalf("not cut: %v", err)
		} else if err != nil {
			return
		}
	}
}

// unfinished are openings that a client may never get beyond.
var unfinished = map[Protocol][]string{
	HTTP:   {"", "CONNECT exam"},
	HTTPS:  {"", "\x16", "\x16\x03\x01\x02\x00\x01"},
	SOCKS5: {"", "\x05", "\x05\x02\x00", "\x05\x01\x00\x05\x01\x00\x03\xffexam"},
}

// Who does not say what it wants is not waited for.
func TestSilentClientsAreCut(t *testing.T) {
	eachProtocol(t, func(t *testing.T, options Options) {
		options.HeaderTimeout = 50 * time.Millisecond
		p := start(t, options)
		for _, opening := range unfinished[options.Protocol] {
			conn := dialTCP(t, p)
			fmt.Fprint(conn, opening)
			isCut(t, conn)
		}
		if options.Protocol == HTTPS { // and not after its handshake either
			conn := dial(t, p)
			fmt.Fprint(conn, "CONNECT exam")
			isCut(t, conn)
		}
		until(t, "no connection is open", func() bool { return p.conns.count() == 0 })
	})
}

// Nor does it keep others from their pages, or the pod from ending.
func TestSilentClientsHoldUpNobody(t *testing.T) {
	eachProtocol(t, func(t *testing.T, options Options) {
		options.HeaderTimeout, options.DrainTimeout = time.Hour, time.Hour
		p := start(t, options)
		var silent []net.Conn
		for _, opening := range unfinished[options.Protocol] {
			conn := dialTCP(t, p)
			fmt.Fprint(conn, opening)
			silent = append(silent, conn)
		}
		until(t, "all are connected", func() bool { return p.conns.count() == len(silent) })
		near, far := tunnel(t, p)
		_, _ = near.Close(), far.Close()
		p.mustStop(t)
		for _, conn := range silent {
			isCut(t, conn)
		}
	})
}

// Who has said it may take its time: a tunnel outlives the limit.
func TestTunnelsOutliveTheHeaderTimeout(t *testing.T) {
	eachProtocol(t, func(t *testing.T, options Options) {
		options.HeaderTimeout = 200 * time.Millisecond
		p := start(t, options)
		near, far := tunnel(t, p)
		isCut(t, dialTCP(t, p)) // which says that the time is over
		for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
			got := make([]byte, 4)
			fmt.Fprint(way[0], "ping")
			if _, err := io.ReadFull(way[1], got); err != nil || string(got) != "ping" {
				t.Errorf("got %q, %v", got, err)
			}
		}
	})
}

// And so does a page that the site takes its time for.
func TestResponsesOutliveTheHeaderTimeout(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-answer
		fmt.Fprint(w, "the page")
	}))
	t.Cleanup(site.Close)
	eachProtocol(t, func(t *testing.T, options Options) {
		options.HeaderTimeout = 200 * time.Millisecond
		p := start(t, options)
		type result struct {
			page []byte
			err  error
		}
		got := make(chan result, 1)
		go func() {
			resp, err := client(t, p, nil, nil).Get(site.URL)
			if err != nil {
				got <- result{err: err}
				return
			}
			defer resp.Body.Close()
			page, err := io.ReadAll(resp.Body)
			got <- result{page, err}
		}()
		select {
		case <-asked:
			isCut(t, dialTCP(t, p))
			answer <- struct{}{}
		case r := <-got:
			t.Fatalf("before the site was asked: %v", r.err)
		}
		if r := <-got; r.err != nil || string(r.page) != "the page" {
			t.Errorf("got %q, %v", r.page, r.err)
		}
	})
}

// Options that would serve nobody, or whom they should not, are refused before the port is open.
func TestUnusableOptions(t *testing.T) {
	certificate := ourCertificate()
	long := strings.Repeat("x", 256)
	for _, c := range []struct {
		name    string
		options Options
		want    string // empty: they are usable
	}{
		{"https without a certificate", Options{Protocol: HTTPS}, "needs a certificate"},
		{"https with an empty one", Options{Protocol: HTTPS, Certificate: &tls.Certificate{}}, "needs a certificate"},
		{"http with one", Options{Certificate: certificate}, "the protocol is http"},
		{"socks5 with one", Options{Protocol: SOCKS5, Certificate: certificate}, "the protocol is socks5"},
		{"no such protocol", Options{Protocol: 3}, "unknown protocol"},
		{"http, colon", Options{Credentials: &Credentials{"a:b", "c"}}, "colon"},
		{"https, colon", Options{Protocol: HTTPS, Certificate: certificate, Credentials: &Credentials{"a:b", "c"}}, "colon"},
		{"socks5, colon", Options{Protocol: SOCKS5, Credentials: &Credentials{"a:b", "c"}}, ""},
		{"socks5, long username", Options{Protocol: SOCKS5, Credentials: &Credentials{long, "c"}}, "username has 256 bytes"},
		{"socks5, long password", Options{Protocol: SOCKS5, Credentials: &Credentials{"a", long}}, "password has 256 bytes"},
		{"socks5, as long as can be", Options{Protocol: SOCKS5, Credentials: &Credentials{long[1:], long[1:]}}, ""},
		{"http, long", Options{Credentials: &Credentials{long, long}}, ""},
	} {
		server, err := Listen(t.Context(), c.options)
		if err == nil {
			_ = server.listener.Close()
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "xxx") {
			t.Errorf("%s: tells the credentials: %v", c.name, err)
		}
	}
}
