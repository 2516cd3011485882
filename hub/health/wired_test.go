package health

import (
	"crypto/x509"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/cmd/forwardproxy/proxy"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
)

// wiring is a Proxy, a hub's own URL and roots, and the verdict that must come of them.
type wiring struct {
	name, endpoint string
	url            string // the hub's
	roots          *x509.CertPool
	check          fleet.Check // of which URL and what is expected count
	authorities    *fleet.Authorities
	reason         string
	words          []string // of the message
}

// judged is the first verdict that an engine, as main makes it, comes to.
func (w wiring) judged(t *testing.T) fleet.Verdict {
	t.Helper()
	f := fleet.New(fleet.Options{AllowLocal: true})
	start(t, f, Options{AllowLocal: true, URL: w.url, Roots: w.roots})
	p := external(t, w.endpoint, func(p *fleet.Proxy) {
		p.Check.URL, p.Check.ExpectedStatuses, p.Check.InsecureSkipVerify = w.check.URL, w.check.ExpectedStatuses, w.check.InsecureSkipVerify
		if w.authorities != nil {
			p.Protocol, p.ServerName, p.NeedsAuthorities = "https", "proxy.test", true
		}
	})
	arrive(f, p)
	f.SetAuthorities(p.Key, p.Instance, w.authorities)
	await(t, f, "a", "judged", func(p *fleet.Proxy) bool { return p.Verdict.Health != fleet.Unknown })
	return f.Get(p.Key).Verdict
}

// expectWired has all of them judged.
func expectWired(t *testing.T, all []wiring) {
	t.Helper()
	for _, w := range all {
		t.Run(w.name, func(t *testing.T) {
			want := fleet.Unhealthy
			if w.reason == "ProbeSucceeded" {
				want = fleet.Healthy
			}
			v := w.judged(t)
			if v.Health != want || v.Reason != w.reason {
				t.Errorf("got %+v, want %s", v, w.reason)
			}
			for _, word := range w.words {
				if !strings.Contains(v.Message, word) {
					t.Errorf("%q does not name %q", v.Message, word)
				}
			}
		})
	}
}

func TestAProxyIsJudgedByTheStatusesThatItsOwnerExpects(t *testing.T) {
	site, front := origin.Start(t), forwardProxy(t)
	asks := peer(t, answering("HTTP/1.1 407 Who\r\nContent-Length: 0\r\n\r\n"))
	expects := func(code ...int) fleet.Check { return fleet.Check{ExpectedStatuses: code} }
	const passes, fails = "ProbeSucceeded", "UnexpectedStatus"
	var all []wiring
	for _, tc := range []struct {
		name, page string
		check      fleet.Check
		reason     string
		words      []string
	}{
		{"204, nothing said", "/generate_204", expects(), passes, nil},
		{"204 of 200", "/generate_204", expects(200), fails, []string{"204", "expectedStatuses"}},
		{"204 of 204", "/generate_204", expects(204), passes, nil},
		{"204 of several", "/generate_204", expects(200, 404, 204), passes, nil},
		{"301 of 302", "/status/301", expects(302), fails, []string{"301", "expectedStatuses"}},
		{"302, nothing said", "/status/302", expects(), fails, []string{"302"}},
		{"302 of 302", "/status/302", expects(302), passes, nil},
		{"301 of 301 and 302", "/status/301", expects(301, 302), passes, nil},
		{"404 of 404", "/status/404", expects(404), passes, nil},
		{"503 of 503", "/status/503", expects(503), passes, nil},
	} {
		for scheme, at := range map[string]string{"https": site.URL, "http": site.PlainURL} {
			own := tc.check
			own.URL = at + tc.page
			all = append(all,
				wiring{tc.name + ", " + scheme + ", the hub's URL", front, at + tc.page, site.CertPool(), tc.check, nil, tc.reason, tc.words},
				wiring{tc.name + ", " + scheme + ", its own URL", front, site.URL + "/status/500", site.CertPool(), own, nil, tc.reason, tc.words},
			)
		}
	}
	// What the proxy itself wants is not what its owner expects of the site.
	for _, target := range []string{site.PlainURL + "/", site.URL + "/"} {
		all = append(all, wiring{"407 of the proxy, " + target, asks, target, site.CertPool(), expects(407), nil, "ProxyAuthRequired", []string{"407"}})
	}
	expectWired(t, append(all, wiring{"407 of the site, through a tunnel", front, site.URL + "/status/407", site.CertPool(), expects(407), nil, passes, nil}))
}

func TestAnUnverifiedSiteIsForWhoNamesIt(t *testing.T) {
	site, front, ca := origin.Start(t), forwardProxy(t), newAuthority(t)
	none := x509.NewCertPool()
	inTLS := realProxy(t, proxy.Options{Protocol: proxy.HTTPS, Certificate: ca.issue(t, "proxy.test")})
	page, unknown := site.URL+"/generate_204", []string{"unknown authority"}
	const passes, fails = "ProbeSucceeded", "TLSFailed"
	careless, careful := fleet.Check{URL: page, InsecureSkipVerify: true}, fleet.Check{URL: page}
	expectWired(t, []wiring{
		{"its own URL, verified", front, "https://site.test/", none, careful, nil, fails, unknown},
		{"its own URL, not verified", front, "https://site.test/", none, careless, nil, passes, nil},
		{"the hub's URL, verified", front, page, none, fleet.Check{}, nil, fails, unknown},
		{"the hub's URL, not to be verified", front, page, none, fleet.Check{InsecureSkipVerify: true}, nil, fails, unknown},
		{"an https proxy, its own URL, verified", inTLS, "https://site.test/", none, careful, ca.Authorities, fails, unknown},
		{"an https proxy, its own URL, not verified", inTLS, "https://site.test/", none, careless, ca.Authorities, passes, nil},
		{"an https proxy of another authority", inTLS, "https://site.test/", site.CertPool(), careless, newAuthority(t).Authorities, fails, []string{"TLS with the proxy itself"}},
	})
}

// impostor opens every tunnel and passes for every site. It counts the connections that
// it has done with, and the requests that it has read.
type impostor struct {
	endpoint string
	read     atomic.Int32
	done     chan struct{}
}

func newImpostor(t *testing.T, name string) *impostor {
	i := &impostor{done: make(chan struct{}, 100)}
	site := inTLS(newAuthority(t).issue(t, name), func(conn net.Conn) {
		if readHead(conn) == nil {
			i.read.Add(1)
			_ = saysText("HTTP/1.1 204 No Content\r\n\r\n")(conn)
		}
	})
	i.endpoint = peer(t, func(conn net.Conn) {
		script(readHead, saysText("HTTP/1.1 200 OK\r\n\r\n"), func(conn net.Conn) error { site(conn); return nil })(conn)
		i.done <- struct{}{}
	})
	return i
}

// ended waits until it has done with one connection.
func (i *impostor) ended(t *testing.T) {
	t.Helper()
	select {
	case <-i.done:
	case <-time.After(10 * time.Second):
		t.Fatal("a tunnel stays open")
	}
}

// The hub's URL may hold secrets of the admin's: whoever may write Proxies must not have
// it sent to a proxy of theirs that passes for the site.
func TestTheHubsURLIsNotShownToAProxyThatPassesForItsSite(t *testing.T) {
	const secret = "https://hub:secret@site.test/page?key=secret"
	for _, check := range []fleet.Check{{}, {InsecureSkipVerify: true}, {InsecureSkipVerify: true, ExpectedStatuses: []int{204}}} {
		i := newImpostor(t, "site.test")
		v := wiring{endpoint: i.endpoint, url: secret, roots: x509.NewCertPool(), check: check}.judged(t)
		i.ended(t)
		if v.Reason != "TLSFailed" || i.read.Load() != 0 {
			t.Errorf("%+v: the impostor read %d requests, verdict %+v", check, i.read.Load(), v)
		}
	}
	// It would have been read by this one, had it been sent: a URL of the Proxy's own is.
	i := newImpostor(t, "site.test")
	own := fleet.Check{URL: "https://site.test/", InsecureSkipVerify: true}
	v := wiring{endpoint: i.endpoint, url: secret, roots: x509.NewCertPool(), check: own}.judged(t)
	i.ended(t)
	if v.Reason != "ProbeSucceeded" || i.read.Load() != 1 {
		t.Errorf("its own URL: the impostor read %d requests, verdict %+v", i.read.Load(), v)
	}
}
