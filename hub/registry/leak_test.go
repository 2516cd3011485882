package registry

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/testkit/apiserver"
)

// certificate is self-signed, for loopback or for a name.
func certificate(t *testing.T, name string, until time.Time) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: until.Add(-2 * time.Hour), NotAfter: until, IsCA: true, BasicConstraintsValid: true}
	if name == "" {
		c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	} else {
		c.DNSNames = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// parrot answers every request with what say makes of its token, byte for byte,
// and closes. After the first it shows the token as its certificate's name.
func parrot(t *testing.T, say string) []byte {
	t.Helper()
	good, ca := certificate(t, "", time.Now().Add(time.Hour))
	evil, _ := certificate(t, theToken, time.Now().Add(time.Hour))
	var heard atomic.Bool
	address := listenTLS(t, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if heard.Load() && say == "" {
			return &evil, nil
		}
		return &good, nil
	}}, func(c net.Conn) {
		if req, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			heard.Store(true)
			_, _ = io.WriteString(c, strings.ReplaceAll(say, "TOKEN", strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")))
		}
	})
	return kubeconfigTo(t, "https://"+address, ca)
}

// listenTLS hands every connection to handle, and closes it, until the test ends.
func listenTLS(t *testing.T, config *tls.Config, handle func(net.Conn)) (address string) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
	return l.Addr().String()
}

// lockedBuffer is what several goroutines write to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) add(s string) { l.mu.Lock(); defer l.mu.Unlock(); l.b.WriteString(s + "\n") }
func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func label(name string) string { return strings.ToLower(strings.ReplaceAll(name, " ", "-")) }

func TestASpokeThatEchoesTheTokenIsNotQuoted(t *testing.T) {
	standIn := apiserver.Start(t)
	said := 0
	with := func(path string, code int, body string) []byte {
		said++
		c := standIn.Cluster(fmt.Sprintf("c%d", said))
		c.Answer(path, apiserver.Answer{Status: code, Body: body})
		return c.Kubeconfig(theToken)
	}
	status := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"you are %s"}`
	encoded := base64.StdEncoding.EncodeToString([]byte(theToken))
	bad := map[string][]byte{
		"escaped":      with(apiserver.VersionPath, 403, fmt.Sprintf(status, `\u0074he-token`)),
		"base64":       with(apiserver.VersionPath, 403, fmt.Sprintf(status, encoded)),
		"a good code":  with(apiserver.KubeSystemPath, 200, fmt.Sprintf(status, theToken)),
		"version":      with(apiserver.VersionPath, 200, `{"gitVersion":"`+theToken+`"}`),
		"UID":          with(apiserver.KubeSystemPath, 200, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"uid":"`+theToken+`"}}`),
		"user":         with("/apis/authentication.k8s.io/v1/selfsubjectreviews", 200, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"`+theToken+`"}}}`),
		"first line":   parrot(t, "hello TOKEN\r\n\r\n"),
		"status code":  parrot(t, "HTTP/1.1 TOKEN x\r\n\r\n"),
		"header":       parrot(t, "HTTP/1.1 200 OK\r\nTOKEN\r\n\r\n"),
		"length":       parrot(t, "HTTP/1.1 200 OK\r\nContent-Length: TOKEN\r\n\r\n"),
		"encoding":     parrot(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: TOKEN\r\n\r\n"),
		"phrase":       parrot(t, "HTTP/1.1 403 TOKEN\r\nContent-Length: 100\r\n\r\n"),
		"content type": parrot(t, "HTTP/1.1 200 OK\r\nContent-Type: TOKEN\r\nContent-Length: 2\r\n\r\n{}"),
		"warning":      parrot(t, "HTTP/1.1 200 OK\r\nWarning: 299 - \"TOKEN\"\r\nContent-Length: 2\r\n\r\n{}"),
		"trailer":      parrot(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nTOKEN\r\n"),
		"certificate":  parrot(t, ""),
	}
	standIn.Cluster("c6").Deny("create", "pods") // or nobody asks for the user
	var log lockedBuffer
	r, _ := started(t)
	r.Log = funcr.New(func(prefix, args string) { log.add(prefix + args) }, funcr.Options{Verbosity: 4})
	for name, kubeconfig := range bad {
		name = label(name)
		put(r, name, kubeconfig)
	}
	for name := range bad {
		s := r.spokes[label(name)]
		eventually(t, name+" has been tried", func() bool { return s.State().Reason != v1alpha1.ReasonConnecting }, func() any { return s.State() })
	}
	for name := range bad {
		if shown := fmt.Sprintf("%+v", r.spokes[label(name)].State()); strings.Contains(shown, theToken) || strings.Contains(shown, encoded) {
			t.Errorf("%s: the Spoke shows the token: %s", name, shown)
		}
	}
	if text := log.String(); strings.Contains(text, theToken) || strings.Contains(text, encoded) || !strings.Contains(text, "Spoke changed") {
		t.Errorf("the log shows the token, or nothing:\n%s", text)
	}
}

func TestAMarkThatIsTheTokenIsNotShown(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	p := proxyNamed("a")
	p.Annotations = map[string]string{v1alpha1.AnnotationHub: theToken}
	c.Put(p)
	_, _, s := connected(t, c)
	if st := until(t, s, "contested", func(st State) bool { return st.Others != "" }); strings.Contains(st.Others, theToken) {
		t.Errorf("contested by %s", st.Others)
	}
}

func TestAnExpiredCertificateIsSaidInTheSameWordsEachTime(t *testing.T) {
	expired, ca := certificate(t, "", time.Now().Add(-time.Hour))
	address := listenTLS(t, &tls.Config{Certificates: []tls.Certificate{expired}}, func(c net.Conn) {
		_ = c.(*tls.Conn).HandshakeContext(t.Context())
	})
	cred, err := vet("c", registration{kubeconfig: kubeconfigTo(t, "https://"+address, ca)}, options(t).Allowed)
	if err != nil {
		t.Fatal(err)
	}
	words := map[string]bool{}
	for range 2 {
		_, err := connect(t.Context(), t.Context(), cred, options(t), options(t).Log, nil, anybody)
		_, message := explain(err)
		words[message] = true
		<-time.After(1100 * time.Millisecond) // the library's words have the time in seconds
	}
	for message := range words {
		if len(words) != 1 || !strings.Contains(message, "valid from") {
			t.Errorf("said %v", words)
		}
	}
}
