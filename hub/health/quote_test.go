package health

import (
	"bufio"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/proxyfleet/proxy-operator/cmd/forwardproxy/proxy"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// echo is what a proxy may repeat of what it was once sent, in a terminal's language.
const echo = "p4ssword\x1b[31m\x00\x07\x7f\u202e\xff"

// A proxy is shown a password, and then probed without one: authSecretRef was
// removed, or somebody else names the same endpoint.
func TestAPasswordOfAnEarlierProbeIsNotRepeatedToWhoReadsALaterOne(t *testing.T) {
	passwords := make(chan string, 1)
	passwords <- ""
	endpoint := peer(t, func(conn net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		last := <-passwords
		r.Header["Authorization"] = r.Header["Proxy-Authorization"]
		if _, password, shown := r.BasicAuth(); shown {
			last = password
		}
		passwords <- last
		fmt.Fprintf(conn, "HTTP/1.1 503 %s\r\n\r\n", last)
	})
	p := local(nil)
	for _, target := range []string{"https://site.test/", "http://site.test/"} {
		for _, proof := range []*fleet.Credentials{{Username: "crawler", Password: "p4ssword"}, nil} {
			r := p.probe(t.Context(), via("http", endpoint, proof), aim{url: target})
			if !strings.HasSuffix(r.message, "503 Service Unavailable") {
				t.Errorf("the condition will say %q", r.message)
			}
		}
	}
	if last := <-passwords; last != "p4ssword" {
		t.Errorf("the proxy was shown %q", last)
	}
}

func TestNothingThatAProxySaysIsQuoted(t *testing.T) {
	ca := newAuthority(t)
	certificate, v := ca.issue(t, "proxy.test"), verifying("proxy.test", ca)
	greets := []func(net.Conn) error{readGreeting, choosesNone, readRequest, grants}
	const tunnel, plain = "https://site.test/", "http://site.test/"
	for name, tc := range map[string]struct{ says, words string }{
		"status":                       {"HTTP/1.1 503 " + echo + "\r\n\r\n", "503 Service Unavailable"},
		"407":                          {"HTTP/1.1 407 " + echo + "\r\n\r\n", "407 Proxy Authentication Required"},
		"a status that nobody knows":   {"HTTP/1.1 799 " + echo + "\r\n\r\n", "799"},
		"a status that is no number":   {"HTTP/1.1 " + echo + "\r\n\r\n", malformed},
		"another protocol":             {echo + "\r\n\r\n", malformed},
		"another version":              {"HTTP/" + echo + " 200 OK\r\n\r\n", malformed},
		"HTTP/2 frames":                {"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + echo + "\r\n", "HTTP/2"},
		"HTTP/2 as text":               {"HTTP/2 200 OK\r\n\r\n", "HTTP/2"},
		"a header without a colon":     {"HTTP/1.1 200 OK\r\n" + echo + "\r\n\r\n", malformed},
		"a length that is none":        {"HTTP/1.1 200 OK\r\nContent-Length: " + echo + "\r\n\r\n", malformed},
		"two lengths":                  {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: p4ssword\r\n\r\n", malformed},
		"a transfer encoding":          {"HTTP/1.1 200 OK\r\nTransfer-Encoding: p4ssword\r\n\r\n", malformed},
		"a chunk of no length":         {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\np4ssword\r\n", malformed},
		"a header beyond all measures": {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("p4ssword", 10_000) + "\r\n\r\n", "too large"},
	} {
		for _, proof := range []*fleet.Credentials{nil, right} {
			for where, through := range map[string]through{
				"http":   via("http", peer(t, script(readHead, saysText(tc.says), hangs)), proof),
				"https":  via("https", peer(t, inTLS(certificate, script(readHead, saysText(tc.says), hangs))), proof, v),
				"socks5": via("socks5", peer(t, script(append(greets[:len(greets):len(greets)], readHead, saysText(tc.says), hangs)...)), proof),
			} {
				r := local(nil).probe(t.Context(), through, aim{url: plain})
				unspoken(t, name+", "+where, r)
				if !strings.Contains(r.message, tc.words) {
					t.Errorf("%s, %s: %q, want %q", name, where, r.message, tc.words)
				}
			}
			for where, through := range map[string]through{
				"CONNECT":        via("http", peer(t, script(readHead, saysText(tc.says))), proof),
				"CONNECT in TLS": via("https", peer(t, inTLS(certificate, script(readHead, saysText(tc.says)))), proof, v),
				"at once":        via("http", peer(t, script(saysText(tc.says), readHead)), proof),
				"no TLS":         via("https", peer(t, script(saysText(tc.says), readRecord)), proof, v),
				"the tunnel":     via("http", peer(t, script(readHead, saysText("HTTP/1.1 200 OK\r\n\r\n"), readRecord, saysText(tc.says))), proof),
				"SOCKS5":         via("socks5", peer(t, script(readGreeting, saysText(tc.says))), proof),
				"SOCKS5's":       via("socks5", peer(t, script(append(greets[:len(greets):len(greets)], readRecord, saysText(tc.says))...)), proof),
			} {
				unspoken(t, name+", "+where, local(nil).probe(t.Context(), through, aim{url: tunnel}))
			}
		}
	}
}

// unspoken fails if a failed probe tells of the echo, or of the hub's own addresses.
func unspoken(t *testing.T, name string, r result) {
	t.Helper()
	odd := strings.ContainsFunc(r.message, func(c rune) bool { return !unicode.IsPrint(c) })
	if r.ok || odd || strings.Contains(r.message, "p4ss") || strings.Contains(r.message, "127.0.0.1") {
		t.Errorf("%s: %v %s %q", name, r.ok, r.reason, r.message)
	}
}

func TestACertificateIsFoundFaultWithInOurOwnWords(t *testing.T) {
	ca := newAuthority(t)
	named := func(c *x509.Certificate) { c.Subject.CommonName = "p4ssword" }
	for _, tc := range []struct {
		name, asked string
		edit        func(*x509.Certificate)
		words       string
	}{
		{"another name", "proxy.test", func(c *x509.Certificate) { c.DNSNames = []string{"p4ssword.test"} }, "its certificate is for another name than proxy.test: give one of its own in tls.serverName"},
		{"a name of old", "p4ssword", func(c *x509.Certificate) { c.DNSNames = nil }, "its certificate is for another name than p4ssword: give one of its own in tls.serverName"},
		{"expired", "proxy.test", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) }, "the certificate has expired"},
		{"from tomorrow on", "proxy.test", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }, "the certificate is not yet valid"},
		{"for clients", "proxy.test", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, "the certificate is not for use by servers"},
		{"an unknown extension", "proxy.test", func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Critical: true, Value: []byte("p4ssword")}}
		}, "the certificate cannot be verified"},
	} {
		endpoint := realProxy(t, proxy.Options{Protocol: proxy.HTTPS, Certificate: ca.issue(t, "proxy.test", named, tc.edit)})
		for _, proof := range []*fleet.Credentials{nil, right} {
			r := local(nil).probe(t.Context(), via("https", endpoint, proof, verifying(tc.asked, ca)), aim{url: "https://site.test/"})
			if r.reason != "TLSFailed" || r.message != "TLS with the proxy itself: "+tc.words {
				t.Errorf("%s: %+v", tc.name, r)
			}
		}
	}
	// What no certificate of ours is like. Its detail holds the certificate's names.
	for reason := range x509.NoValidChains + 1 {
		words := cause(x509.CertificateInvalidError{Cert: new(x509.Certificate), Reason: reason, Detail: echo})
		if strings.Contains(words, "p4ss") || strings.HasSuffix(words, " ") || words == unquoted {
			t.Errorf("%d: %q", reason, words)
		}
	}
}

func TestAProbeThatIsCutOffTellsTheKernelsWordsAndNoAddress(t *testing.T) {
	ca := newAuthority(t)
	resets := func(conn net.Conn) error {
		if tcp, is := conn.(*net.TCPConn); is {
			_ = tcp.SetLinger(0)
		}
		return conn.Close()
	}
	const broke, reset = "the connection broke before an answer: ", "connection reset by peer"
	for _, tc := range []struct {
		name    string
		through through
		words   string
	}{
		{"CONNECT", via("http", peer(t, script(readHead, resets)), nil), broke + reset},
		{"the tunnel", via("http", peer(t, script(readHead, saysText("HTTP/1.1 200 OK\r\n\r\n"), readRecord, resets)), nil), "TLS with the probed site: " + reset},
		{"TLS", via("https", peer(t, script(readRecord, resets)), nil, verifying("proxy.test", ca)), "TLS with the proxy itself: " + reset},
		{"SOCKS5", via("socks5", peer(t, script(readGreeting, resets)), nil), broke + reset},
		{"a TLS alert", via("https", peer(t, script(readRecord, says(21, 3, 3, 0, 2, 2, 70))), nil, verifying("proxy.test", ca)), "TLS with the proxy itself: remote error: tls: protocol version not supported"},
		{"a TLS alert that nobody knows", via("https", peer(t, script(readRecord, says(21, 3, 3, 0, 2, 2, 200))), nil, verifying("proxy.test", ca)), "TLS with the proxy itself: remote error: tls: alert(200)"},
	} {
		if r := local(nil).probe(t.Context(), tc.through, aim{url: "https://site.test/"}); r.message != tc.words {
			t.Errorf("%s: %+v, want %q", tc.name, r, tc.words)
		}
	}
	for err, words := range map[error]string{
		fmt.Errorf("read 192.0.2.9:1->192.0.2.7:2: %w", syscall.EHOSTUNREACH): "no route to host",
		fmt.Errorf("%s: %w", echo, os.ErrDeadlineExceeded):                    "no answer came in time",
		errors.New(echo): unquoted,
		fmt.Errorf("tls: %s: %w", echo, errors.New(echo)): unquoted,
	} {
		if got := cause(err); got != words {
			t.Errorf("%q, want %q", got, words)
		}
	}
	closed := closedPort(t)
	for _, protocol := range []string{"http", "https", "socks5"} {
		r := local(nil).probe(t.Context(), via(protocol, closed, nil), aim{url: "https://site.test/"})
		if r.reason != "DialFailed" || r.message != "dial "+closed+": connection refused" {
			t.Errorf("%s: %+v", protocol, r)
		}
	}
}

// Where no CRD holds a Proxy to names, they may be anything.
func TestANameThatIsNoneReachesNoTerminal(t *testing.T) {
	p := prober{dialer: dialer{resolver: &names{}}}
	r := p.probe(t.Context(), via("http", "proxy.test:1", nil, func(v *through) { v.host = "proxy" + echo }), aim{url: "https://site.test/"})
	if strings.ContainsFunc(r.message, func(c rune) bool { return !unicode.IsPrint(c) }) || !strings.HasPrefix(r.message, "lookup proxyp4ssword") {
		t.Errorf("%q", r.message)
	}
}

// A hub without IPv6 fails whoever is to be reached by it alone: a proxy that nobody
// can say works must not be leased on for ever.
func TestAHubWithoutIPv6FailsAProxyThatHasNothingElse(t *testing.T) {
	for _, tc := range []struct {
		name      string
		addresses []string
		void      bool
		words     string
	}{
		{"IPv6", []string{"2001:db8::7"}, false, "dial [2001:db8::7]:3128: cannot assign requested address: the hub may have no IPv6"},
		{"IPv4: the ports are used up", []string{"203.0.113.7"}, true, ""},
		{"the same, written as IPv6", []string{"::ffff:203.0.113.7"}, true, ""},
		{"both", []string{"203.0.113.7", "2001:db8::7"}, false, "dial [2001:db8::7]:3128: cannot assign requested address: the hub may have no IPv6"},
		{"IPv6, and IPv4 that refuses", []string{"2001:db8::7", "203.0.113.9"}, false, "dial [2001:db8::7]:3128: cannot assign requested address: the hub may have no IPv6"},
		{"IPv4 that has no port left, and one that refuses", []string{"203.0.113.7", "203.0.113.9"}, false, "dial 203.0.113.9:3128: connection refused"},
	} {
		p := prober{dialer: dialer{
			resolver: &names{answers: map[string][][]string{"proxy.test": {tc.addresses}}},
			connect: func(_ context.Context, network, address string) (net.Conn, error) {
				why := syscall.EADDRNOTAVAIL
				if address == "203.0.113.9:3128" {
					why = syscall.ECONNREFUSED
				}
				return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", why)}
			},
		}}
		for _, protocol := range []string{"http", "https", "socks5"} {
			r := p.probe(t.Context(), via(protocol, "proxy.test:3128", nil), aim{url: "https://site.test/"})
			if r.void != tc.void || !tc.void && (r.reason != "DialFailed" || r.message != tc.words) {
				t.Errorf("%s, %s: %+v", tc.name, protocol, r)
			}
		}
	}
}
