package health_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/cmd/forwardproxy/proxy"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/health"
	"github.com/proxyfleet/proxy-operator/internal/testkit/certs"
	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
	"github.com/proxyfleet/proxy-operator/test/forwardproxies"
)

const (
	// patience is a probe's where nothing is to hang, haste where something is.
	patience = 30 * time.Second
	haste    = 2 * time.Second
)

// counter is a Recorder that counts probes.
type counter struct {
	mu      sync.Mutex
	probes  map[fleet.Key]int
	counted func(fleet.Key, int)
}

func (c *counter) Started(time.Duration) {}
func (c *counter) Size(int)              {}
func (c *counter) Forget(fleet.Key)      {}

func (c *counter) Probe(key fleet.Key, _ time.Duration, _ string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.probes == nil {
		c.probes = map[fleet.Key]int{}
	}
	c.probes[key]++
	if c.counted != nil {
		c.counted(key, c.probes[key])
	}
}

// run has an engine probe what is in the fleet that it returns, until the test ends.
func run(t *testing.T, roots *x509.CertPool, recorder health.Recorder) *fleet.Fleet {
	t.Helper()
	f := fleet.New(fleet.Options{AllowLocal: true})
	engine := health.New(health.Options{Fleet: f, Roots: roots, AllowLocal: true, Recorder: recorder})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- engine.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("the engine does not stop")
		}
	})
	return f
}

// proxyAt is a Proxy at an endpoint, host:port, that is probed with a URL.
func proxyAt(t *testing.T, name, protocol, endpoint, target string) fleet.Proxy {
	t.Helper()
	host, digits, err := net.SplitHostPort(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(digits)
	if err != nil {
		t.Fatal(err)
	}
	return fleet.Proxy{
		Key: fleet.Key{Cluster: "eu", Namespace: "crawl", Name: name}, UID: "uid-" + name, Instance: endpoint,
		Protocol: protocol, Host: host, Port: port, Provisioned: true,
		Check: fleet.Check{URL: target, Interval: time.Millisecond, Timeout: patience, SuccessThreshold: 1, FailureThreshold: 1},
	}
}

// verdictOn waits for the first verdict on a Proxy.
func verdictOn(t *testing.T, f *fleet.Fleet, key fleet.Key) fleet.Verdict {
	t.Helper()
	first := make(chan fleet.Verdict, 1)
	f.Follow(func(c fleet.Change) {
		if c.New != nil && c.New.Key == key && c.New.Verdict.Health != fleet.Unknown {
			select {
			case first <- c.New.Verdict:
			default:
			}
		}
	})
	select {
	case v := <-first:
		return v
	case <-time.After(2 * patience):
		t.Fatalf("no verdict on %s in time", key)
		return fleet.Verdict{}
	}
}

// says fails unless a verdict is for a reason and its message has all words.
func says(t *testing.T, v fleet.Verdict, reason string, words ...string) {
	t.Helper()
	wanted := fleet.Unhealthy
	if reason == "ProbeSucceeded" {
		wanted = fleet.Healthy
	}
	if v.Health != wanted || v.Reason != reason {
		t.Errorf("verdict %d, %s: %s; want %d, %s", v.Health, v.Reason, v.Message, wanted, reason)
	}
	for _, word := range words {
		if !strings.Contains(v.Message, word) {
			t.Errorf("%s: %q has no %q", v.Reason, v.Message, word)
		}
	}
}

// sites are what probes are for.
type sites struct {
	good, unknown              *origin.Server
	expired, dead, hung, shuts string // host:port
	roots                      *x509.CertPool
}

func newSites(t *testing.T) *sites {
	t.Helper()
	s := &sites{good: origin.Start(t), unknown: origin.Start(t), dead: refusing(t)}
	s.hung = hostile{behave: does(hangs)}.listen(t).addr
	s.shuts = hostile{behave: does(readsOne)}.listen(t).addr
	authority := newAuthority(t)
	s.roots = s.good.CertPool()
	s.roots.AppendCertsFromPEM(authority.PEM)
	old := httptest.NewUnstartedServer(http.NotFoundHandler())
	old.Config.ErrorLog = discard
	old.TLS = &tls.Config{Certificates: []tls.Certificate{issue(t, authority, time.Now().AddDate(-2, 0, 0), "127.0.0.1")}}
	old.StartTLS()
	t.Cleanup(old.Close)
	s.expired = old.Listener.Addr().String()
	return s
}

// subject is a forward proxy, each time started anew.
type subject struct {
	name, protocol     string
	start              func(t *testing.T, username, password string, deny bool) (endpoint string)
	username, password string
	authorities        *fleet.Authorities
	// dead is what it says where nobody listens, denied if a rule refuses CONNECT;
	// empty where it has no rules.
	dead, denied string
	// wrong is how it refuses wrong credentials.
	wrong [2]string
}

// subjects are the proxies that are installed, and our own.
func subjects(t *testing.T) []subject {
	t.Helper()
	auth := [2]string{"ProxyAuthRequired", "does not take the credentials"}
	debian := map[string]subject{
		// It answers 407 to whoever shows no credentials, and 401 to those that are wrong.
		"tinyproxy":  {username: "crawler", password: "pa-ss_w.o3", dead: "500 Internal Server Error (Unable to connect)", denied: "403 Forbidden (Access violation)", wrong: [2]string{"ConnectRefused", "401 Unauthorized: it may not take the credentials"}},
		"squid":      {username: "crawler", password: `p:a/s@s?#[]%&+"\`, dead: "503", denied: "403", wrong: auth},
		"microsocks": {username: "cr@wl:er", password: `p:a/s@s?#[]%& +"\ö`, dead: "5, Connection refused", wrong: auth},
	}
	var all []subject
	for _, name := range forwardproxies.ForTest(t) {
		s, known := debian[name]
		if !known {
			t.Fatalf("what does %s say?", name)
		}
		s.name, s.protocol = name, forwardproxies.Protocol(name)
		s.start = func(t *testing.T, username, password string, deny bool) string {
			return forwardproxies.Start(t, name, forwardproxies.Options{Username: username, Password: password, DenyConnect: deny}).Addr
		}
		all = append(all, s)
	}
	authority := newAuthority(t)
	certificate := issue(t, authority, time.Now(), proxyName)
	for protocol, dead := range map[string]string{"http": "502", "https": "502", "socks5": "5, Connection refused"} {
		s := subject{name: "our own", protocol: protocol, username: "crawler ü@", password: `p:a/s@s?#[]%& +"\ö`, dead: dead, wrong: auth}
		s.start = func(t *testing.T, username, password string, _ bool) string {
			return ours(t, protocol, &certificate, username, password)
		}
		if protocol == "https" {
			s.authorities = authoritiesOf(t, authority)
		}
		all = append(all, s)
	}
	return all
}

// ours is what our pods run.
func ours(t *testing.T, protocol string, certificate *tls.Certificate, username, password string) string {
	t.Helper()
	o := proxy.Options{BindAddress: netip.MustParseAddr("127.0.0.1")}
	var err error
	if o.Protocol, err = proxy.ParseProtocol(protocol); err != nil {
		t.Fatal(err)
	}
	if protocol == "https" {
		o.Certificate = certificate
	}
	if username != "" {
		o.Credentials = &proxy.Credentials{Username: username, Password: password}
	}
	server, err := proxy.Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx) }()
	t.Cleanup(func() { cancel(); <-served })
	return server.Addr()
}

// trial is one behaviour of a subject.
type trial struct {
	name, endpoint, target string
	proof                  *fleet.Credentials
	reason                 string
	words                  []string
}

// trials starts a subject in its variants.
func (s subject) trials(t *testing.T, at *sites) []trial {
	t.Helper()
	open := s.start(t, "", "", false)
	guarded := s.start(t, s.username, s.password, false)
	right := &fleet.Credentials{Username: s.username, Password: s.password}
	// Of another user, since squid mixes up passwords that are shown for one at once.
	wrong := &fleet.Credentials{Username: s.username + "2", Password: "another"}
	const tls = "https://"
	none, refused := []string{"authSecretRef"}, []string{s.wrong[1]}
	all := []trial{
		{"a site", open, at.good.URL, nil, "ProbeSucceeded", nil},
		{"a plain site", open, at.good.PlainURL, nil, "ProbeSucceeded", nil},
		{"a site, with credentials", guarded, at.good.URL, right, "ProbeSucceeded", nil},
		{"a plain site, with credentials", guarded, at.good.PlainURL, right, "ProbeSucceeded", nil},
		{"a site, with wrong credentials", guarded, at.good.URL, wrong, s.wrong[0], refused},
		{"a site, without credentials", guarded, at.good.URL, nil, "ProxyAuthRequired", none},
		{"a plain site, without credentials", guarded, at.good.PlainURL, nil, "ProxyAuthRequired", none},
		{"a site that is down", open, tls + at.dead, nil, "ConnectRefused", []string{s.dead}},
		{"a site with an expired certificate", open, tls + at.expired, nil, "TLSFailed", []string{"certificate", "expired"}},
		{"a site of an unknown authority", open, at.unknown.URL, nil, "TLSFailed", []string{"certificate", "authority"}},
		{"a site that answers 404", open, at.good.URL + "/status/404", nil, "UnexpectedStatus", []string{"404"}},
		{"a plain site that answers 404", open, at.good.PlainURL + "/status/404", nil, "UnexpectedStatus", []string{"404"}},
		{"a site that hangs", open, tls + at.hung, nil, "Timeout", []string{"TLS handshake"}},
		{"a plain site that hangs", open, "http://" + at.hung, nil, "Timeout", []string{"answer"}},
		{"a site that closes", open, tls + at.shuts, nil, "TLSFailed", nil},
	}
	if s.wrong[0] == "ProxyAuthRequired" { // else it cannot be told from the site's answer
		all = append(all, trial{"a plain site, with wrong credentials", guarded, at.good.PlainURL, wrong, s.wrong[0], refused})
	}
	if s.denied != "" {
		denying := s.start(t, "", "", true)
		all = append(all,
			trial{"a site, against a rule", denying, at.good.URL, nil, "ConnectRefused", []string{"CONNECT", s.denied}},
			trial{"a plain site, as a rule says", denying, at.good.PlainURL, nil, "ProbeSucceeded", nil})
	}
	return all
}

// Whoever reads a Proxy's status is to learn what is wrong, whatever software the proxy is.
func TestRealProxiesAreJudgedByWhatTheyDo(t *testing.T) {
	at := newSites(t)
	f := run(t, at.roots, &counter{})
	for _, s := range subjects(t) {
		t.Run(s.name+" "+s.protocol, func(t *testing.T) {
			trials := s.trials(t, at)
			proxies := make([]fleet.Proxy, len(trials))
			for i, tc := range trials {
				p := proxyAt(t, fmt.Sprintf("%s-%s-%d", s.name, s.protocol, i), s.protocol, tc.endpoint, tc.target)
				p.NeedsCredentials, p.Credentials = tc.proof != nil, tc.proof
				if s.authorities != nil {
					p.ServerName, p.NeedsAuthorities, p.Authorities = proxyName, true, s.authorities
				}
				if tc.reason == "Timeout" {
					p.Check.Timeout = haste
				}
				f.Upsert(p)
				proxies[i] = p
			}
			for i, tc := range trials {
				t.Run(tc.name, func(t *testing.T) {
					says(t, verdictOn(t, f, proxies[i].Key), tc.reason, tc.words...)
					f.Delete(proxies[i].Key, proxies[i].UID)
				})
			}
		})
	}
}

func newAuthority(t *testing.T) *certs.Authority {
	t.Helper()
	a, err := certs.NewAuthority("a test's authority")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func authoritiesOf(t *testing.T, a *certs.Authority) *fleet.Authorities {
	t.Helper()
	all, err := fleet.ParseAuthorities(a.PEM)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func issue(t *testing.T, a *certs.Authority, at time.Time, hosts ...string) tls.Certificate {
	t.Helper()
	pair, err := a.IssueAt(at, hosts...)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}
