package health

import (
	"context"
	"crypto/x509"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/cmd/forwardproxy/proxy"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
)

// expectation is a probe and what must come of it.
type expectation struct {
	name            string
	through         through
	target          string
	roots           *x509.CertPool
	reason, message string
}

// expect makes the probes. What is to time out has little time, all else enough.
func expect(t *testing.T, all []expectation) {
	t.Helper()
	for _, e := range all {
		t.Run(e.name, func(t *testing.T) {
			timeout := 20 * time.Second
			if e.reason == "Timeout" {
				timeout = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			r := local(e.roots).probe(ctx, e.through, aim{url: e.target})
			if r.reason != e.reason || r.ok != (e.reason == "ProbeSucceeded") || !strings.Contains(r.message, e.message) {
				t.Errorf("got %+v, want %s with %q", r, e.reason, e.message)
			}
		})
	}
}

func TestAnHTTPSProxyIsProbedInTLSWithItAndWithTheSite(t *testing.T) {
	site, ca := origin.Start(t), newAuthority(t)
	certificate := ca.issue(t, "proxy.test")
	open := realProxy(t, proxy.Options{Protocol: proxy.HTTPS, Certificate: certificate})
	guarded := realProxy(t, proxy.Options{Protocol: proxy.HTTPS, Certificate: certificate, Credentials: asked(right)})
	byAddress := realProxy(t, proxy.Options{Protocol: proxy.HTTPS, Certificate: ca.issue(t, "", func(c *x509.Certificate) {
		c.DNSNames, c.IPAddresses = nil, []net.IP{net.IPv4(127, 0, 0, 1)}
	})})
	v := verifying("proxy.test", ca)
	var all []expectation
	for kind, target := range map[string]string{"tunnel": site.URL + "/generate_204", "absolute form": site.PlainURL + "/"} {
		all = append(all,
			expectation{kind, via("https", open, nil, v), target, site.CertPool(), "ProbeSucceeded", ""},
			expectation{kind + ", the certificate has the address", via("https", byAddress, nil, verifying("127.0.0.1", ca)), target, site.CertPool(), "ProbeSucceeded", ""},
			expectation{kind + ", credentials that nobody asks for", via("https", open, right, v), target, site.CertPool(), "ProbeSucceeded", ""},
			expectation{kind + ", right credentials", via("https", guarded, right, v), target, site.CertPool(), "ProbeSucceeded", ""},
			expectation{kind + ", no credentials", via("https", guarded, nil, v), target, site.CertPool(), "ProxyAuthRequired", "407"},
			expectation{kind + ", wrong credentials", via("https", guarded, wrong, v), target, site.CertPool(), "ProxyAuthRequired", "407 Proxy Authentication Required: it does not take the credentials"},
		)
	}
	expect(t, append(all,
		expectation{"the site answers 503", via("https", open, nil, v), site.URL + "/status/503", site.CertPool(), "UnexpectedStatus", "503"},
		expectation{"the site's certificate is not trusted", via("https", open, nil, v), site.URL, x509.NewCertPool(), "TLSFailed", "unknown authority"},
		expectation{"nothing listens", via("https", closedPort(t), nil, v), site.URL, nil, "DialFailed", "refused"},
	))
}

func TestAnHTTPSProxyIsWhoItsCertificateMustName(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	serve := func(a *authority, name string, edits ...func(*x509.Certificate)) string {
		return realProxy(t, proxy.Options{Protocol: proxy.HTTPS, Certificate: a.issue(t, name, edits...)})
	}
	good := serve(ca, "proxy.test")
	expired := serve(ca, "proxy.test", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) })
	system := func(v *through) { v.ServerName = "proxy.test" }
	const leg = "TLS with the proxy itself: "
	var all []expectation
	for _, tc := range []struct {
		name, endpoint string
		expects        func(*through)
		words          string
	}{
		{"another authority", serve(other, "proxy.test"), verifying("proxy.test", ca), "its certificate is signed by none of the authorities in tls.caSecretRef"},
		{"an authority that the system does not know", good, system, "its certificate is signed by an authority that this system does not trust: name it in tls.caSecretRef"},
		{"another name", good, verifying("another.test", ca), "its certificate is for another name than another.test: give one of its own in tls.serverName"},
		{"another address", good, verifying("127.0.0.1", ca), "its certificate is for another name than 127.0.0.1: give one of its own in tls.serverName"},
		{"expired", expired, verifying("proxy.test", ca), "the certificate has expired"},
		{"no TLS", forwardProxy(t), verifying("proxy.test", ca), "what came is not TLS"},
		{"an alert", peer(t, script(readRecord, says(21, 3, 3, 0, 2, 2, 40))), verifying("proxy.test", ca), "remote error: tls: handshake failure"},
		{"closed", peer(t, func(net.Conn) {}), verifying("proxy.test", ca), ""},
	} {
		for _, target := range []string{"https://site.test/", "http://site.test/"} {
			all = append(all,
				expectation{tc.name + ", " + target, via("https", tc.endpoint, nil, tc.expects), target, nil, "TLSFailed", leg + tc.words},
				expectation{tc.name + ", with credentials, " + target, via("https", tc.endpoint, right, tc.expects), target, nil, "TLSFailed", leg + tc.words},
			)
		}
	}
	expect(t, all)
}

// The roots that the hub is started with are for sites, a Proxy's authorities for
// the proxy: neither must vouch for the other.
func TestTheRootsOfSitesDoNotVouchForAProxy(t *testing.T) {
	site, ca := origin.Start(t), newAuthority(t)
	endpoint := realProxy(t, proxy.Options{Protocol: proxy.HTTPS, Certificate: ca.issue(t, "proxy.test")})
	roots := site.CertPool()
	roots.AppendCertsFromPEM([]byte(ca.PEM))
	elsewhere := newAuthority(t)
	expect(t, []expectation{
		{"the system's authorities", via("https", endpoint, nil, func(v *through) { v.ServerName = "proxy.test" }), site.URL, roots, "TLSFailed", "TLS with the proxy itself"},
		{"authorities of its own", via("https", endpoint, nil, verifying("proxy.test", elsewhere)), site.URL, roots, "TLSFailed", "TLS with the proxy itself"},
		{"the right ones", via("https", endpoint, nil, verifying("proxy.test", ca)), site.URL, roots, "ProbeSucceeded", ""},
	})
}

func TestTheAuthoritiesOfAProxyDoNotVouchForASite(t *testing.T) {
	site, ca := origin.Start(t), newAuthority(t)
	both, err := fleet.ParseAuthorities(append([]byte(ca.PEM), site.CAPEM...))
	if err != nil {
		t.Fatal(err)
	}
	endpoint := realProxy(t, proxy.Options{Protocol: proxy.HTTPS, Certificate: ca.issue(t, "proxy.test")})
	v := func(v *through) { v.ServerName, v.Authorities = "proxy.test", both }
	expect(t, []expectation{
		{"no roots for sites", via("https", endpoint, nil, v), site.URL, x509.NewCertPool(), "TLSFailed", "the certificate is signed by an unknown authority"},
		{"the system's", via("https", endpoint, nil, v), site.URL, nil, "TLSFailed", "the certificate is signed by an unknown authority"},
		{"the right ones", via("https", endpoint, nil, v), site.URL, site.CertPool(), "ProbeSucceeded", ""},
	})
}

// TLS with the proxy is not TLS with the site: what fails after the one and before
// the other has to be told from what fails after both.
func TestAProbeSaysWhatFailedInsideTLSWithTheProxy(t *testing.T) {
	ca := newAuthority(t)
	certificate, v := ca.issue(t, "proxy.test"), verifying("proxy.test", ca)
	secret := func(behave func(net.Conn)) through { return via("https", peer(t, inTLS(certificate, behave)), nil, v) }
	const tunnel, plain = "https://site.test/", "http://site.test/"
	expect(t, []expectation{
		{"never shakes hands", via("https", peer(t, silent), nil, v), tunnel, nil, "Timeout", "the proxy accepted the connection, but no answer came"},
		{"closes before it answers CONNECT", secret(answering("")), tunnel, nil, "ConnectRefused", "EOF"},
		{"closes before it answers a plain request", secret(answering("")), plain, nil, "ConnectRefused", "EOF"},
		{"refuses the tunnel", secret(answering("HTTP/1.1 403 Not You\r\nContent-Length: 0\r\n\r\n")), tunnel, nil, "ConnectRefused", "403 Forbidden"},
		{"wants credentials for the tunnel", secret(answering("HTTP/1.1 407 Who\r\nContent-Length: 0\r\n\r\n")), tunnel, nil, "ProxyAuthRequired", "407 Proxy Authentication Required"},
		{"wants credentials for a plain request", secret(answering("HTTP/1.1 407 Who\r\nContent-Length: 0\r\n\r\n")), plain, nil, "ProxyAuthRequired", "407 Proxy Authentication Required"},
		{"answers CONNECT as nobody can", secret(answering("HTTP/1.1 304 Not Modified\r\n\r\n")), tunnel, nil, "ConnectRefused", "304 Not Modified"},
		{"speaks no TLS after the tunnel is open", secret(answering("HTTP/1.1 200 OK\r\n\r\nhello, this is not TLS")), tunnel, nil, "TLSFailed", ""},
	})
}

// A site may answer 407 as well; what came through a tunnel is the site's.
func TestASiteThatAnswers407DoesNotMakeTheProxyAskForCredentials(t *testing.T) {
	site, ca := origin.Start(t), newAuthority(t)
	inTLS := realProxy(t, proxy.Options{Protocol: proxy.HTTPS, Certificate: ca.issue(t, "proxy.test")})
	socks := realProxy(t, proxy.Options{Protocol: proxy.SOCKS5})
	secret, plain := site.URL+"/status/407", site.PlainURL+"/status/407"
	const words = "the probe's URL answered 407"
	expect(t, []expectation{
		{"http", via("http", forwardProxy(t), nil), secret, site.CertPool(), "UnexpectedStatus", words},
		{"https", via("https", inTLS, nil, verifying("proxy.test", ca)), secret, site.CertPool(), "UnexpectedStatus", words},
		{"socks5", via("socks5", socks, nil), secret, site.CertPool(), "UnexpectedStatus", words},
		{"socks5, plain", via("socks5", socks, nil), plain, nil, "UnexpectedStatus", words},
	})
}
