package health

import (
	"bufio"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/cmd/forwardproxy/proxy"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
)

// edit is a change of how a Proxy is used, from a wrong way to the right one.
type edit struct {
	name, endpoint string
	before         func(*fleet.Proxy)
	authorities    *fleet.Authorities // before
	after          func(*fleet.Proxy)
	better         *fleet.Authorities // after; nil: unchanged
	reason         string             // of the failure before
}

// edits returns one of each kind, and the site to probe.
func edits(t *testing.T) (*origin.Server, []edit) {
	t.Helper()
	site, ca, other := origin.Start(t), newAuthority(t), newAuthority(t)
	socks := realProxy(t, proxy.Options{Protocol: proxy.SOCKS5})
	inTLS := realProxy(t, proxy.Options{Protocol: proxy.HTTPS, Certificate: ca.issue(t, "proxy.test")})
	https := func(name string) func(*fleet.Proxy) {
		return func(p *fleet.Proxy) { p.Protocol, p.ServerName, p.NeedsAuthorities = "https", name, true }
	}
	return site, []edit{
		{"protocol", socks, func(*fleet.Proxy) {}, nil, func(p *fleet.Proxy) { p.Protocol = "socks5" }, nil, "ConnectRefused"},
		{"server name", inTLS, https("another.test"), ca.Authorities, https("proxy.test"), nil, "TLSFailed"},
		{"authorities", inTLS, https("proxy.test"), other.Authorities, https("proxy.test"), ca.Authorities, "TLSFailed"},
	}
}

// external is a Proxy of somebody else's that is probed once an hour.
func external(t *testing.T, endpoint string, how func(*fleet.Proxy)) fleet.Proxy {
	return proxyAt(t, "a", endpoint, how, func(p *fleet.Proxy) {
		p.Managed, p.Instance = false, p.Endpoint()
		p.Check.Interval, p.Check.Timeout, p.Check.FailureThreshold = time.Hour, time.Minute, 1
	})
}

func TestAnEditedExternalProxyIsProbedAtOnce(t *testing.T) {
	site, all := edits(t)
	for _, e := range all {
		t.Run(e.name, func(t *testing.T) {
			f, rec := fleet.New(fleet.Options{AllowLocal: true}), newRecorder()
			start(t, f, Options{AllowLocal: true, URL: site.URL + "/generate_204", Roots: site.CertPool(), Recorder: rec})
			p := external(t, e.endpoint, e.before)
			arrive(f, p)
			f.SetAuthorities(p.Key, p.Instance, e.authorities)
			await(t, f, "a", "unhealthy", is(fleet.Unhealthy))
			if v := f.Get(p.Key).Verdict; v.Reason != e.reason {
				t.Errorf("verdict before %+v", v)
			}
			arrive(f, external(t, e.endpoint, e.after))
			if e.better != nil {
				f.SetAuthorities(p.Key, p.Instance, e.better)
			}
			await(t, f, "a", "healthy", is(fleet.Healthy))
			if n := rec.count("a " + e.reason); n != 1 {
				t.Errorf("%d probes failed, want the one before the edit", n)
			}
		})
	}
}

func TestAProbeFromBeforeAnEditCountsForNothing(t *testing.T) {
	site, all := edits(t)
	for _, e := range all {
		t.Run(e.name, func(t *testing.T) {
			asked, answer := make(chan struct{}), make(chan struct{})
			var first atomic.Bool
			front := peer(t, func(conn net.Conn) {
				if first.CompareAndSwap(false, true) {
					close(asked)
					<-answer
				}
				relay(conn, e.endpoint)
			})
			f, rec := fleet.New(fleet.Options{AllowLocal: true}), newRecorder()
			start(t, f, Options{AllowLocal: true, URL: site.URL + "/generate_204", Roots: site.CertPool(), Recorder: rec})
			p := external(t, front, e.before)
			arrive(f, p)
			f.SetAuthorities(p.Key, p.Instance, e.authorities)
			<-asked
			arrive(f, external(t, front, e.after))
			if e.better != nil {
				f.SetAuthorities(p.Key, p.Instance, e.better)
			}
			close(answer)
			await(t, f, "a", "healthy", is(fleet.Healthy))
			if n := rec.count("a " + e.reason); n != 0 {
				t.Errorf("%d failures were counted for what the proxy was before", n)
			}
		})
	}
}

func TestAnHTTPSProxyIsNotProbedBeforeItsAuthoritiesAreKnown(t *testing.T) {
	site, ca := origin.Start(t), newAuthority(t)
	f, rec := fleet.New(fleet.Options{AllowLocal: true}), newRecorder()
	start(t, f, Options{AllowLocal: true, URL: site.URL + "/generate_204", Roots: site.CertPool(), Recorder: rec})
	p := external(t, realProxy(t, proxy.Options{Protocol: proxy.HTTPS, Certificate: ca.issue(t, "proxy.test")}), func(p *fleet.Proxy) {
		p.Protocol, p.ServerName, p.NeedsAuthorities = "https", "proxy.test", true
	})
	arrive(f, p)
	arrive(f, proxyAt(t, "canary", closedPort(t)))
	await(t, f, "canary", "unhealthy", is(fleet.Unhealthy))
	f.SetAuthorities(p.Key, p.Instance, ca.Authorities)
	await(t, f, "a", "healthy", is(fleet.Healthy))
	if n := rec.count("a TLSFailed"); n != 0 {
		t.Errorf("%d probes failed for want of the authorities", n)
	}
}

// An admin who takes back that a pod network is the hub's has reasons.
func TestNobodyIsDialledOnWhoWasRuledOutMeanwhile(t *testing.T) {
	pod := func(p *fleet.Proxy) { p.PodNetwork, p.NeedsCredentials, p.Credentials = true, true, right }
	f := fleet.New(fleet.Options{AllowLocal: true})
	f.SetRoutable("eu", true)
	start(t, f, Options{AllowLocal: true, URL: "https://site.example/", MaxInFlight: 1})

	reached, cut := make(chan struct{}), make(chan struct{})
	first := peer(t, func(conn net.Conn) {
		close(reached)
		_, _ = io.Copy(io.Discard, conn) // until the hub hangs up
		close(cut)
	})
	calls := make(chan struct{}, 100)
	second, last := peer(t, func(net.Conn) { calls <- struct{}{} }), make(chan struct{}, 100)
	barrier := peer(t, func(net.Conn) { last <- struct{}{} })
	arrive(f, proxyAt(t, "probed", first, pod, func(p *fleet.Proxy) { p.Check.Timeout = 5 * time.Minute }))
	<-reached
	arrive(f, proxyAt(t, "waits", second, pod)) // for the only slot
	f.SetRoutable("eu", false)
	<-cut // long before its timeout
	arrive(f, proxyAt(t, "other", barrier))
	<-last
	if len(calls) > 0 {
		t.Error("dialled, with its credentials")
	}
}

// Its verdict was about the other protocol: it has to get one about this.
func TestAHealthyProxyWhoseProtocolIsEditedIsJudgedAnew(t *testing.T) {
	site := origin.Start(t)
	plain, socks := realProxy(t, proxy.Options{}), realProxy(t, proxy.Options{Protocol: proxy.SOCKS5})
	both := peer(t, func(conn net.Conn) {
		first := bufio.NewReader(conn)
		if b, err := first.Peek(1); err == nil && b[0] == socksVersion {
			relay(readsFrom{conn, first}, socks)
		} else {
			relay(readsFrom{conn, first}, plain)
		}
	})
	f := fleet.New(fleet.Options{AllowLocal: true})
	start(t, f, Options{AllowLocal: true, URL: site.URL + "/generate_204", Roots: site.CertPool()})
	for _, protocol := range []string{"http", "socks5", "http"} {
		arrive(f, external(t, both, func(p *fleet.Proxy) { p.Protocol = protocol }))
		await(t, f, "a", "healthy", is(fleet.Healthy))
	}
}

// readsFrom is a connection of which something was read already.
type readsFrom struct {
	net.Conn
	reader io.Reader
}

// Read implements io.Reader.
func (r readsFrom) Read(b []byte) (int, error) { return r.reader.Read(b) }
