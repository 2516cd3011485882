package health

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
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
	server, err := proxy.Listen(t.Context(), proxy.Options{
		BindAddress: netip.MustParseAddr("127.0.0.1"), Credentials: &proxy.Credentials{Username: c.Username, Password: c.Password},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx) }()
	t.Cleanup(func() { cancel(); <-served })
	return server.Addr()
}

func TestAProbeProvesItselfToTheProxy(t *testing.T) {
	site := origin.Start(t)
	guarded := guardedProxy(t, right)
	p := prober{roots: site.CertPool()}
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
			if r := p.probe(t.Context(), guarded, target, tc.proof); r.reason != tc.reason || !strings.Contains(r.message, tc.message) {
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
	p, guarded := prober{roots: roots}, guardedProxy(t, right)
	for _, target := range []string{secure.URL, plain.URL} {
		if r := p.probe(t.Context(), guarded, target, right); !r.ok {
			t.Fatalf("%s: %+v", target, r)
		}
		for name := range <-seen {
			if strings.Contains(name, "Authorization") {
				t.Errorf("%s saw %s", target, name)
			}
		}
	}
}

// echoes are what a proxy may do with the credentials that it was sent; %[1]s stands for them.
var echoes = map[string]string{
	"in a refusal":              "HTTP/1.1 407 Not %[1]s\r\nContent-Length: 0\r\n\r\n",
	"in another refusal":        "HTTP/1.1 403 Not %[1]s\r\nContent-Length: 0\r\n\r\n",
	"in a status of its own":    "HTTP/1.1 699 %[1]s\r\nContent-Length: 0\r\n\r\n",
	"in an odd success":         "HTTP/1.1 201 %[1]s\r\nContent-Length: 0\r\n\r\n",
	"instead of HTTP":           "%[1]s\r\n\r\n",
	"as a status code":          "HTTP/1.1 %[1]s\r\n\r\n",
	"as a broken header":        "HTTP/1.1 200 OK\r\n%[1]s\r\n\r\n",
	"as the first of headers":   "HTTP/1.1 200 OK\r\n %[1]s\r\n\r\n",
	"as a length":               "HTTP/1.1 200 OK\r\nContent-Length: %[1]s\r\n\r\n",
	"as an encoding":            "HTTP/1.1 200 OK\r\nTransfer-Encoding: %[1]s\r\n\r\n",
	"in a place to go to":       "HTTP/1.1 302 Found\r\nLocation: http://%%zz/%[1]s\r\nContent-Length: 0\r\n\r\n",
	"in a broken chunk":         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%[1]s\r\n",
	"in the tunnel without TLS": "HTTP/1.1 200 OK\r\n\r\n%[1]s",
}

func TestNoCredentialIsInAVerdictWhateverTheProxyEchoes(t *testing.T) {
	c := &fleet.Credentials{Username: "crawler", Password: "p4ssword"}
	encoded := base64.StdEncoding.EncodeToString([]byte("crawler:p4ssword"))
	all := "Basic " + encoded + " crawler:p4ssword 703473"
	f := fleet.New()
	rec := newRecorder()
	start(t, f, Options{Recorder: rec})
	probe := func(name, endpoint, target string) {
		t.Helper()
		f.Upsert(proxyAt(t, name, endpoint, func(p *fleet.Proxy) {
			p.NeedsCredentials, p.Check.URL, p.Check.FailureThreshold = true, target, 1
		}))
		f.SetCredentials(fleet.Key{Cluster: "eu", Namespace: "crawl", Name: name}, "one", c)
		await(t, f, name, "unhealthy", is(fleet.Unhealthy))
		v := f.Get(fleet.Key{Cluster: "eu", Namespace: "crawl", Name: name}).Verdict
		for _, secret := range []string{"crawler", "p4ssword", encoded, encoded[:8], "703473"} {
			if strings.Contains(v.Reason+v.Message, secret) {
				t.Errorf("%s: %s %q", name, v.Reason, v.Message)
			}
		}
		if v.Message == "" {
			t.Errorf("%s: %s says nothing", name, v.Reason)
		}
	}
	for name, answer := range echoes {
		for _, target := range []string{"https://site.test/", "http://site.test/"} {
			if target[:5] == "http:" && (name == "in an odd success" || name == "in the tunnel without TLS") {
				continue // there it passes
			}
			probe(name+", "+target, peer(t, answering(fmt.Sprintf(answer, all))), target)
		}
	}
	named := certificate(t, "p4ssword.crawler.test")
	probe("on a certificate", peer(t, func(conn net.Conn) {
		answering("HTTP/1.1 200 OK\r\n\r\n")(conn)
		_ = tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{named}}).Handshake()
	}), "https://site.test/")
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if text := fmt.Sprint(rec.probes); strings.Contains(text, "p4ssword") {
		t.Errorf("recorded %s", text)
	}
}

// certificate is self-signed and for one name.
func certificate(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestChangedCredentialsReachTheNextProbeWhichFollowsAtOnce(t *testing.T) {
	site := origin.Start(t)
	f := fleet.New()
	rec := newRecorder()
	start(t, f, Options{URL: site.URL + "/generate_204", Roots: site.CertPool(), Recorder: rec})
	f.Upsert(proxyAt(t, "a", guardedProxy(t, right), func(p *fleet.Proxy) {
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
	f := fleet.New()
	rec := newRecorder()
	start(t, f, Options{URL: site.URL + "/generate_204", Roots: site.CertPool(), Recorder: rec})
	key := fleet.Key{Cluster: "eu", Namespace: "crawl", Name: "a"}
	f.Upsert(proxyAt(t, "a", front, func(p *fleet.Proxy) {
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
	greeting := peer(t, func(conn net.Conn) {
		fmt.Fprint(conn, "220 p4ssword\r\n")
		silent(conn)
	})
	talkative := peer(t, func(conn net.Conn) {
		answering("HTTP/1.1 204 No Content\r\n\r\n220 p4ssword\r\n")(conn)
		silent(conn)
	})
	p := prober{}
	for range 50 {
		if r := p.probe(t.Context(), greeting, "http://site.test/", right); r.reason != "ConnectRefused" {
			t.Fatalf("%+v", r)
		}
		if r := p.probe(t.Context(), talkative, "http://site.test/", right); !r.ok {
			t.Fatalf("%+v", r)
		}
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
