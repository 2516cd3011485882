package health

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// deafNames never answer.
type deafNames struct{}

func (deafNames) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// hang is a proxy that stops somewhere, and what a probe is to say of it.
type hang struct {
	name, protocol, target, message string
	guarded                         bool
	peer                            func(net.Conn) // nil: nobody accepts
}

// hesitations are hangs of every protocol at every step.
func hesitations(certificate *tls.Certificate) []hang {
	tunnel := saysText("HTTP/1.1 200 OK\r\n\r\n")
	inside := func(steps ...func(net.Conn) error) func(net.Conn) { return inTLS(certificate, script(steps...)) }
	const site, plain = "https://site.test/", "http://site.test/"
	const accept, answer, handshake, body = "the proxy does not accept a connection in time",
		"the proxy accepted the connection, but no answer came in time", "the tunnel is open, but no answer to the TLS handshake came in time",
		"the probe's URL did not answer in time"
	reads := func(conn net.Conn) error { _, err := conn.Read(make([]byte, 1)); return err }
	return []hang{
		{"accepting", "http", site, accept, false, nil},
		{"accepting", "https", site, accept, false, nil},
		{"accepting", "socks5", site, accept, false, nil},
		{"CONNECT", "http", site, answer, false, script(hangs)},
		{"taking CONNECT in", "http", site, answer, true, script(reads, stalls)},
		{"a half answer to CONNECT", "http", site, answer, false, script(readHead, saysText("HTTP/1.1 200 OK\r\nX: "), hangs)},
		{"the tunnel", "http", site, handshake, false, script(readHead, tunnel, hangs)},
		{"a plain request", "http", plain, answer, true, script(readHead, hangs)},
		{"TLS with the proxy", "https", site, answer, false, script(hangs)},
		{"taking TLS with the proxy in", "https", plain, answer, false, script(reads, stalls)},
		{"half of TLS with the proxy", "https", site, answer, true, script(reads, says(22, 3, 3), hangs)},
		{"CONNECT in TLS", "https", site, answer, true, inside(hangs)},
		{"the tunnel in TLS", "https", site, handshake, false, inside(readHead, tunnel, hangs)},
		{"a plain request in TLS", "https", plain, answer, false, inside(readHead, hangs)},
		{"taking the greeting in", "socks5", site, answer, false, script(stalls)},
		{"the greeting", "socks5", site, answer, false, script(hangs)},
		{"half an answer to the greeting", "socks5", site, answer, false, script(readGreeting, says(5), hangs)},
		{"taking the login in", "socks5", site, answer, true, script(readGreeting, choosesPassword, reads, stalls)},
		{"the login", "socks5", site, answer, true, script(readGreeting, choosesPassword, hangs)},
		{"half an answer to the login", "socks5", plain, answer, true, script(readGreeting, choosesPassword, readLogin, says(1), hangs)},
		{"the request", "socks5", site, answer, true, script(readGreeting, choosesPassword, readLogin, letsIn, hangs)},
		{"half an answer to the request", "socks5", plain, answer, false, script(readGreeting, choosesNone, readRequest, says(5, 0, 0, 3, 9), hangs)},
		{"the tunnel of SOCKS5", "socks5", site, handshake, false, script(readGreeting, choosesNone, readRequest, grants, hangs)},
		{"a plain site behind SOCKS5", "socks5", plain, body, false, script(readGreeting, choosesNone, readRequest, grants, hangs)},
	}
}

// Wherever a proxy hangs, the probe ends when its time is up, neither sooner nor
// later, and says how far it came. The bubble fails if a goroutine is left, and the
// peer's does not end before its connection is closed.
func TestAProbeEndsInTimeWhereverItHangs(t *testing.T) {
	ca := newAuthority(t)
	for _, tc := range hesitations(ca.issue(t, "proxy.test")) {
		t.Run(tc.protocol+" "+tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var proof *fleet.Credentials
				if tc.guarded {
					proof = right
				}
				p := prober{dialer: dialer{connect: func(ctx context.Context, _, _ string) (net.Conn, error) {
					if tc.peer == nil {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					ours, theirs := net.Pipe()
					go func() {
						defer theirs.Close()
						tc.peer(theirs)
					}()
					return ours, nil
				}}}
				expectTimeout(t, &p, via(tc.protocol, "203.0.113.7:3128", proof, verifying("proxy.test", ca)), tc.target, tc.message)
			})
		})
	}
	t.Run("lookup", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := prober{dialer: dialer{resolver: deafNames{}}}
			expectTimeout(t, &p, via("socks5", "proxy.test:3128", nil), "https://site.test/", "the lookup of the proxy's name does not end in time")
		})
	})
}

func expectTimeout(t *testing.T, p *prober, through through, target, message string) {
	t.Helper()
	const limit = 10 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began := time.Now()
	r := p.probe(ctx, through, aim{url: target})
	if took := time.Since(began); r.reason != "Timeout" || r.message != message || took != limit {
		t.Errorf("%+v after %s, want %q", r, took, message)
	}
}
