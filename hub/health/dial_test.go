package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/cmd/forwardproxy/proxy"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
)

// remote is a prober to which the proxies of a test are on public addresses, and
// which therefore dials no local ones.
func remote(n *names, r *routes) *prober {
	return &prober{dialer: dialer{resolver: n, connect: r.connect}}
}

// counting answers 204 to whatever is asked, and tells how often it was asked.
func counting(t *testing.T) (endpoint string, count func() int) {
	t.Helper()
	asked := make(chan struct{}, 100)
	return peer(t, func(conn net.Conn) {
		asked <- struct{}{}
		answering("HTTP/1.1 204 No Content\r\n\r\n")(conn)
	}), func() int { return len(asked) }
}

// A name that is looked up again for the connection, after it was checked, leads a
// probe to the machine's own secrets.
func TestANameLeadsAProbeNowhereElseThanWhereItWasChecked(t *testing.T) {
	endpoint, count := counting(t)
	n := &names{answers: map[string][][]string{"proxy.test": {{"203.0.113.7"}, {"169.254.169.254"}}}}
	r := &routes{to: map[string]string{"203.0.113.7:3128": endpoint, "169.254.169.254:3128": endpoint}}
	p := remote(n, r)
	if got := p.probe(t.Context(), via("http", "proxy.test:3128", nil), aim{url: "http://site.test/"}); !got.ok || n.lookups != 1 {
		t.Fatalf("%+v after %d lookups, want a pass after one", got, n.lookups)
	}
	if dialled := r.take(); count() != 1 || !slices.Equal(dialled, []string{"203.0.113.7:3128"}) {
		t.Errorf("dialled %v", dialled)
	}
	got := p.probe(t.Context(), via("http", "proxy.test:3128", nil), aim{url: "http://site.test/"})
	if got.reason != "EndpointForbidden" || got.message != "proxy.test leads to 169.254.169.254, a link-local address, which is not dialled: give the proxy an address that others can reach" {
		t.Errorf("%+v", got)
	}
	if dialled := r.take(); n.lookups != 2 || len(dialled) != 0 || count() != 1 {
		t.Errorf("%d lookups, dialled %v", n.lookups, dialled)
	}
}

func TestANameThatMovesIsFollowedByTheNextProbe(t *testing.T) {
	before, countBefore := counting(t)
	after, countAfter := counting(t)
	n := &names{answers: map[string][][]string{"proxy.test": {{"203.0.113.7"}, {"203.0.113.8"}}}}
	p := remote(n, &routes{to: map[string]string{"203.0.113.7:3128": before, "203.0.113.8:3128": after}})
	for _, want := range [][2]int{{1, 0}, {1, 1}, {1, 2}} {
		r := p.probe(t.Context(), via("http", "proxy.test:3128", nil), aim{url: "http://site.test/"})
		if got := [2]int{countBefore(), countAfter()}; !r.ok || got != want {
			t.Fatalf("%+v, probes %v, want %v", r, got, want)
		}
	}
}

func TestAnAddressThatNoProxyCanHaveIsNotDialled(t *testing.T) {
	for host, kind := range map[string]string{
		"127.0.0.1":              "127.0.0.1, a loopback address",
		"127.9.8.7":              "loopback",
		"::1":                    "loopback",
		"169.254.169.254":        "169.254.169.254, a link-local address",
		"::ffff:169.254.169.254": "a link-local address",
		"64:ff9b::a9fe:a9fe":     "a link-local address",
		"::ffff:127.0.0.1":       "loopback",
		"fe80::1%eth0":           "a link-local address",
		"0.0.0.0":                "an unspecified address",
		"0.1.2.3":                "an unspecified address",
		"::":                     "an unspecified address",
		"224.0.0.1":              "a multicast address",
		"ff02::1":                "a multicast address",
		"fd00:ec2::254":          "a cloud's metadata address",
		"168.63.129.16":          "a cloud's metadata address",
	} {
		for _, name := range []string{"", "proxy.test", "proxy.test, among others"} {
			n, r, endpoint, lookups := &names{}, &routes{}, net.JoinHostPort(host, "80"), 0
			switch name {
			case "proxy.test":
				n.answers, endpoint, lookups = map[string][][]string{"proxy.test": {{host}}}, "proxy.test:80", 1
			case "proxy.test, among others":
				n.answers, endpoint, lookups = map[string][][]string{"proxy.test": {{"203.0.113.7", host, "2001:db8::7"}}}, "proxy.test:80", 1
			}
			for _, protocol := range []string{"http", "https", "socks5"} {
				n.lookups = 0
				got := remote(n, r).probe(t.Context(), via(protocol, endpoint, nil), aim{url: "https://site.test/"})
				if got.reason != "EndpointForbidden" || !strings.Contains(got.message, kind) || strings.HasPrefix(got.message, "proxy.test leads to ") != (name != "") {
					t.Errorf("%s %s as %q: %+v", protocol, host, name, got)
				}
				if dialled := r.take(); len(dialled) > 0 || n.lookups != lookups {
					t.Errorf("%s %s as %q: dialled %v, %d lookups", protocol, host, name, dialled, n.lookups)
				}
			}
		}
	}
}

// A hub that is told so does dial them. Through New, so that the options count.
func TestLocalProxiesAreProbedOnlyByAHubThatIsToldSo(t *testing.T) {
	endpoint, count := counting(t)
	_, port, _ := net.SplitHostPort(endpoint)
	for allowed, wanted := range map[bool]fleet.Health{true: fleet.Healthy, false: fleet.Unhealthy} {
		f := fleet.New(fleet.Options{AllowLocal: allowed})
		n := &names{answers: map[string][][]string{"proxy.test": {{"127.0.0.1"}}}}
		start(t, f, Options{URL: "http://site.test/", Resolver: n, AllowLocal: allowed})
		before := count()
		arrive(f, proxyAt(t, "a", "127.0.0.1:"+port, func(p *fleet.Proxy) { p.Host, p.Check.Interval, p.Check.FailureThreshold = "proxy.test", time.Hour, 1 }))
		await(t, f, "a", "judged", is(wanted))
		v := f.Get(fleet.Key{Cluster: "eu", Namespace: "crawl", Name: "a"}).Verdict
		if n := count() - before; allowed != (n == 1) || allowed != (v.Reason != "EndpointForbidden") {
			t.Errorf("allowed %v: %d connections, verdict %+v", allowed, n, v)
		}
	}
}

// failingNames fails as the system's resolver does when its name server is away.
type failingNames struct{ err error }

func (n failingNames) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return nil, n.err
}

// Who reads a Proxy has no business with the hub's name servers.
func TestANameThatDoesNotResolveIsSaidWithoutTheNameServersAddress(t *testing.T) {
	const server = "192.0.2.53:53"
	for _, tc := range []struct {
		err     error
		message string
	}{
		{&net.DNSError{Err: "no such host", Name: "proxy.test", Server: server, IsNotFound: true}, "lookup proxy.test: no such host"},
		{&net.DNSError{Err: "read udp 192.0.2.9:4711->192.0.2.53:53: i/o timeout", Name: "proxy.test", Server: server, IsTimeout: true}, "lookup proxy.test: the name server does not answer in time"},
		{&net.DNSError{Err: "read udp 192.0.2.9:4711->192.0.2.53:53: read: connection refused", Name: "proxy.test", Server: server, IsTemporary: true}, "lookup proxy.test: the name server gives no usable answer"},
		{&net.DNSError{Err: "server misbehaving", Name: "proxy.test", Server: server, IsTemporary: true}, "lookup proxy.test: the name server gives no usable answer"},
		{nil, "lookup proxy.test: the name has no address"},
	} {
		for _, protocol := range []string{"http", "https", "socks5"} {
			p := prober{dialer: dialer{resolver: failingNames{tc.err}}}
			got := p.probe(t.Context(), via(protocol, "proxy.test:3128", nil), aim{url: "https://site.test/"})
			if got.reason != "DialFailed" || got.message != tc.message {
				t.Errorf("%s, %v: %+v", protocol, tc.err, got)
			}
		}
	}
}

// A real resolver, with a name server that refuses to speak to it.
func TestARealResolversFailureTellsNoAddress(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := conn.LocalAddr().String()
	conn.Close()
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, server)
	}}
	p := prober{dialer: dialer{resolver: resolver}}
	got := p.probe(t.Context(), via("http", "proxy.test.:3128", nil), aim{url: "https://site.test/"})
	if got.reason != "DialFailed" || !strings.HasPrefix(got.message, "lookup proxy.test.: ") || strings.ContainsAny(got.message, "0123456789") {
		t.Errorf("%+v", got)
	}
}

func TestANameOfWhichOneAddressAnswersPasses(t *testing.T) {
	for listens, refuses := range map[string]syscall.Sockaddr{
		"127.0.0.1": &syscall.SockaddrInet6{Addr: netip.IPv6Loopback().As16()},
		"::1":       &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}},
	} {
		site, err := origin.Run(t.Context(), origin.Options{Addr: net.JoinHostPort(listens, "0")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = site.Close() })
		onward := realProxy(t, proxy.Options{BindAddress: netip.MustParseAddr(listens)})
		var front net.Listener
		for front == nil { // somebody else may have the port in this family
			front, err = net.Listen("tcp", net.JoinHostPort(listens, strconv.Itoa(refusing(t, refuses))))
			if err != nil && !errors.Is(err, syscall.EADDRINUSE) {
				t.Fatal(err)
			}
		}
		serve(t, front, func(conn net.Conn) { relay(conn, onward) })
		_, port, _ := net.SplitHostPort(front.Addr().String())
		for _, order := range [][]string{{"::1", "127.0.0.1"}, {"127.0.0.1", "::1"}, {"::ffff:127.0.0.1", "::1"}} {
			n := &names{answers: map[string][][]string{"proxy.test": {order}}}
			p := prober{dialer: dialer{resolver: n, allowLocal: true}, roots: site.CertPool()}
			if r := p.probe(t.Context(), via("http", "proxy.test:"+port, nil), aim{url: site.URL}); !r.ok {
				t.Errorf("on %s, %v: %+v", listens, order, r)
			}
		}
	}
}

func TestProxiesOnIPv6AreProbed(t *testing.T) {
	site, err := origin.Run(t.Context(), origin.Options{Addr: "[::1]:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = site.Close() })
	ca := newAuthority(t)
	there := netip.MustParseAddr("::1")
	expect(t, []expectation{
		{"http", via("http", realProxy(t, proxy.Options{BindAddress: there}), nil), site.URL, site.CertPool(), "ProbeSucceeded", ""},
		{"https", via("https", realProxy(t, proxy.Options{BindAddress: there, Protocol: proxy.HTTPS, Certificate: ca.issue(t, "proxy.test")}), nil, verifying("proxy.test", ca)), site.URL, site.CertPool(), "ProbeSucceeded", ""},
		{"socks5", via("socks5", realProxy(t, proxy.Options{BindAddress: there, Protocol: proxy.SOCKS5}), nil), site.URL, site.CertPool(), "ProbeSucceeded", ""},
	})
}

// One of a cluster that does not hold its Proxies to the CRD.
func TestAPortThatIsNoneIsNotTakenForAnother(t *testing.T) {
	endpoint, count := counting(t)
	v := via("http", endpoint, nil)
	v.port += 1 << 16
	if r := local(nil).probe(t.Context(), v, aim{url: "http://site.test/"}); r.reason != "DialFailed" || count() != 0 {
		t.Errorf("%+v", r)
	}
}

func TestAddressesOfBothFamiliesAreTriedInTurn(t *testing.T) {
	for _, tc := range []struct{ given, tried string }{
		{"1.1.1.1", "1.1.1.1"},
		{"2001:db8::1 2001:db8::2 1.1.1.1", "2001:db8::1 1.1.1.1 2001:db8::2"},
		{"1.1.1.1 1.1.1.2 1.1.1.3 2001:db8::1", "1.1.1.1 2001:db8::1 1.1.1.2 1.1.1.3"},
		{"::ffff:1.1.1.1 2001:db8::1 1.1.1.2", "1.1.1.1 2001:db8::1 1.1.1.2"},
		{"1.1.1.1 1.1.1.2 1.1.1.3 1.1.1.4 1.1.1.5 1.1.1.6 1.1.1.7 1.1.1.8 1.1.1.9", "1.1.1.1 1.1.1.2 1.1.1.3 1.1.1.4"},
	} {
		n := &names{answers: map[string][][]string{"proxy.test": {strings.Fields(tc.given)}}}
		got, err := dialer{resolver: n}.resolve(t.Context(), "proxy.test")
		if tried := strings.Trim(fmt.Sprint(got), "[]"); err != nil || tried != tc.tried {
			t.Errorf("%s: %s, %v, want %s", tc.given, tried, err, tc.tried)
		}
	}
	// One that would not be tried forbids the name all the same.
	n := &names{answers: map[string][][]string{"proxy.test": {append(strings.Fields("1.1.1.1 1.1.1.2 1.1.1.3 1.1.1.4 1.1.1.5 1.1.1.6 1.1.1.7 1.1.1.8"), "127.0.0.1")}}}
	var forbidden *forbiddenError
	if _, err := (dialer{resolver: n}).resolve(t.Context(), "proxy.test"); !errors.As(err, &forbidden) {
		t.Errorf("a ninth address is not looked at: %v", err)
	}
}
