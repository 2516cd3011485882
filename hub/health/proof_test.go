package health

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/cmd/forwardproxy/proxy"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
)

var (
	right = &fleet.Credentials{Username: "crawler ü@", Password: `p:a/s@s?#[]%& +"\ö`}
	wrong = &fleet.Credentials{Username: "crawler ü@", Password: "another"}
)

// guardedProxy is the one that our pods run, with credentials.
func guardedProxy(t *testing.T, c *fleet.Credentials) string {
	t.Helper()
	return realProxy(t, proxy.Options{Credentials: asked(c)})
}

func TestAProbeProvesItselfToTheProxy(t *testing.T) {
	site := origin.Start(t)
	guarded := guardedProxy(t, right)
	p := local(site.CertPool())
	for _, target := range []string{site.URL, site.PlainURL} {
		for _, tc := range []struct {
			name, reason, message string
			proof                 *fleet.Credentials
		}{
			{"the right ones", "ProbeSucceeded", "passed", right},
			{"none", "ProxyAuthRequired", "407", nil},
			{"others", "ProxyAuthRequired", "does not take the credentials", wrong},
			{"username and password swapped", "ProxyAuthRequired", "407", &fleet.Credentials{Username: right.Password, Password: right.Username}},
		} {
			if r := p.probe(t.Context(), via("http", guarded, tc.proof), aim{url: target}); r.reason != tc.reason || !strings.Contains(r.message, tc.message) {
				t.Errorf("%s with %s: %+v", target, tc.name, r)
			}
		}
	}
}

func TestTheProbedSiteNeverSeesTheCredentials(t *testing.T) {
	seen := make(chan http.Header, 1)
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header })
	secure, plain := httptest.NewTLSServer(handler), httptest.NewServer(handler)
	t.Cleanup(func() { secure.Close(); plain.Close() })
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	ca := newAuthority(t)
	inTLS := proxy.Options{Protocol: proxy.HTTPS, Certificate: ca.issue(t, "proxy.test"), Credentials: asked(right)}
	for _, through := range []through{
		via("http", guardedProxy(t, right), right),
		via("https", realProxy(t, inTLS), right, verifying("proxy.test", ca)),
		via("socks5", realProxy(t, proxy.Options{Protocol: proxy.SOCKS5, Credentials: asked(right)}), right),
	} {
		for _, target := range []string{secure.URL, plain.URL} {
			if r := local(roots).probe(t.Context(), through, aim{url: target}); !r.ok {
				t.Fatalf("%s, %s: %+v", through.Protocol, target, r)
			}
			for name := range <-seen {
				if strings.Contains(name, "Authorization") {
					t.Errorf("%s, %s saw %s", through.Protocol, target, name)
				}
			}
		}
	}
}

func TestChangedCredentialsReachTheNextProbeWhichFollowsAtOnce(t *testing.T) {
	site := origin.Start(t)
	f := fleet.New(fleet.Options{AllowLocal: true})
	rec := newRecorder()
	start(t, f, Options{AllowLocal: true, URL: site.URL + "/generate_204", Roots: site.CertPool(), Recorder: rec})
	arrive(f, proxyAt(t, "a", guardedProxy(t, right), func(p *fleet.Proxy) {
		p.NeedsCredentials, p.Check.Interval, p.Check.FailureThreshold = true, time.Hour, 1
	}))
	key := fleet.Key{Cluster: "eu", Namespace: "crawl", Name: "a"}
	f.SetCredentials(key, "one", wrong)
	await(t, f, "a", "unhealthy", is(fleet.Unhealthy))
	if v := f.Get(key).Verdict; v.Reason != "ProxyAuthRequired" {
		t.Errorf("verdict %+v", v)
	}
	f.SetCredentials(key, "one", right)
	await(t, f, "a", "healthy", is(fleet.Healthy))
	if n := rec.count("a ProxyAuthRequired"); n != 1 {
		t.Errorf("%d probes refused, want the one with the wrong credentials: none is sent before there are any", n)
	}
}

func TestAProbeWithCredentialsThatHaveChangedMeanwhileCountsForNothing(t *testing.T) {
	site := origin.Start(t)
	guarded := guardedProxy(t, right)
	asked, answer := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	front := peer(t, func(conn net.Conn) {
		if first.CompareAndSwap(false, true) {
			close(asked)
			<-answer
		}
		relay(conn, guarded)
	})
	f := fleet.New(fleet.Options{AllowLocal: true})
	rec := newRecorder()
	start(t, f, Options{AllowLocal: true, URL: site.URL + "/generate_204", Roots: site.CertPool(), Recorder: rec})
	key := fleet.Key{Cluster: "eu", Namespace: "crawl", Name: "a"}
	arrive(f, proxyAt(t, "a", front, func(p *fleet.Proxy) {
		p.NeedsCredentials, p.Check.Interval, p.Check.FailureThreshold, p.Check.Timeout = true, time.Hour, 1, time.Minute
	}))
	f.SetCredentials(key, "one", wrong)
	<-asked
	f.SetCredentials(key, "one", right)
	close(answer)
	await(t, f, "a", "healthy", is(fleet.Healthy))
	if n := rec.count("a ProxyAuthRequired"); n != 0 {
		t.Errorf("%d failures were counted for what the old credentials met with", n)
	}
}

// net/http logs by itself what comes before it has asked, whatever that is.
func TestWhatAProxySaysUnaskedIsNotLogged(t *testing.T) {
	var logged lockedBuffer
	log.SetOutput(&logged)
	t.Cleanup(func() { log.SetOutput(os.Stderr) })
	ca := newAuthority(t)
	certificate, v := ca.issue(t, "proxy.test"), verifying("proxy.test", ca)
	const said = "220 p4ssword\r\n"
	greeting := func(conn net.Conn) {
		fmt.Fprint(conn, said)
		silent(conn)
	}
	talkative := func(conn net.Conn) {
		answering("HTTP/1.1 204 No Content\r\n\r\n" + said)(conn)
		silent(conn)
	}
	unasked := script(readGreeting, choosesPassword, readLogin, letsIn, readRequest, grants, saysText(said), hangs)
	all := []expectation{
		{"http", via("http", peer(t, greeting), right), "http://site.test/", nil, "ConnectRefused", ""},
		{"http, after the answer", via("http", peer(t, talkative), right), "http://site.test/", nil, "ProbeSucceeded", ""},
		{"https", via("https", peer(t, inTLS(certificate, greeting)), right, v), "http://site.test/", nil, "ConnectRefused", ""},
		{"https, after the answer", via("https", peer(t, inTLS(certificate, talkative)), right, v), "http://site.test/", nil, "ProbeSucceeded", ""},
		{"socks5", via("socks5", peer(t, unasked), right), "http://site.test/", nil, "UnexpectedStatus", ""},
	}
	for range 50 {
		expect(t, all)
	}
	if text := logged.String(); text != "" {
		t.Errorf("logged %s", text)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}
