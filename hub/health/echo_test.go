package health

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

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

// tunnelled5 are the steps of a SOCKS5 proxy that asks for credentials and is shown them.
var tunnelled5 = []func(net.Conn) error{readGreeting, choosesPassword, readLogin, letsIn, readRequest, grants}

// inTunnel has behave speak through one.
func inTunnel(behave func(net.Conn)) func(net.Conn) {
	return script(append(slices.Clip(tunnelled5), func(conn net.Conn) error { behave(conn); return nil })...)
}

// socksEchoes are what one of SOCKS5 may do with them.
func socksEchoes(all string) map[string][]func(net.Conn) error {
	said, n := saysText(all), byte(len(all))
	return map[string][]func(net.Conn) error{
		"instead of a method":              {readGreeting, said},
		"as HTTP":                          {readGreeting, saysText("HTTP/1.1 407 " + all + "\r\n\r\n")},
		"instead of the login's answer":    {readGreeting, choosesPassword, readLogin, said},
		"after the login's refusal":        {readGreeting, choosesPassword, readLogin, says(1, 1), said},
		"instead of an answer":             {readGreeting, choosesPassword, readLogin, letsIn, readRequest, said},
		"as a reply":                       {readGreeting, choosesPassword, readLogin, letsIn, readRequest, says(5, 'p', '4', 's'), said},
		"as where a refusal comes from":    {readGreeting, choosesPassword, readLogin, letsIn, readRequest, says(5, 1, 0, 3, n), said, says(0, 80)},
		"as an address that breaks off":    {readGreeting, choosesPassword, readLogin, letsIn, readRequest, says(5, 0, 0, 3, n+9), said},
		"as where it connects from":        {readGreeting, choosesPassword, readLogin, letsIn, readRequest, says(5, 0, 0, 3, n), said, says(0, 80)},
		"in the tunnel, without TLS":       append(slices.Clip(tunnelled5), said),
		"in the tunnel, as HTTP":           append(slices.Clip(tunnelled5), saysText("HTTP/1.1 407 "+all+"\r\n\r\n")),
		"in the tunnel, as a broken alert": append(slices.Clip(tunnelled5), says(21, 3, 3, 0, n), said),
	}
}

// named are certificates with them on. The proxy is expected to be proxy.test.
func named(t *testing.T, ca *authority) map[string]*tls.Certificate {
	return map[string]*tls.Certificate{
		"nobody's":                 newAuthority(t).issue(t, "p4ssword.crawler.test"),
		"under another name":       ca.issue(t, "p4ssword.crawler.test"),
		"under many names":         ca.issue(t, "crawler", func(c *x509.Certificate) { c.DNSNames = append(c.DNSNames, "p4ssword.test", "703473.test") }),
		"under none":               ca.issue(t, "crawler", func(c *x509.Certificate) { c.DNSNames = nil }),
		"of the past":              ca.issue(t, "p4ssword", func(c *x509.Certificate) { c.NotAfter = time.Unix(703473, 0) }),
		"for what nobody asks for": ca.issue(t, "p4ssword", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }),
	}
}

func TestNoCredentialIsInAVerdictWhateverTheProxyEchoes(t *testing.T) {
	c := &fleet.Credentials{Username: "crawler", Password: "p4ssword"}
	encoded := base64.StdEncoding.EncodeToString([]byte("crawler:p4ssword"))
	secrets := []string{"crawler", "p4ssword", encoded, encoded[:8], "703473"}
	all := "Basic " + encoded + " crawler:p4ssword 703473"
	f := fleet.New(fleet.Options{AllowLocal: true})
	rec := newRecorder()
	start(t, f, Options{AllowLocal: true, Recorder: rec})
	ca := newAuthority(t)
	probe := func(name, protocol, endpoint, target string) {
		t.Helper()
		arrive(f, proxyAt(t, name, endpoint, func(p *fleet.Proxy) {
			p.NeedsCredentials, p.Check.URL, p.Check.FailureThreshold, p.Check.Interval = true, target, 1, time.Hour
			p.Protocol, p.ServerName, p.NeedsAuthorities = protocol, "proxy.test", true
		}))
		key := fleet.Key{Cluster: "eu", Namespace: "crawl", Name: name}
		f.SetAuthorities(key, "one", ca.Authorities)
		f.SetCredentials(key, "one", c)
		await(t, f, name, "unhealthy", is(fleet.Unhealthy))
		v := f.Get(key).Verdict
		if v.Message == "" || slices.ContainsFunc(secrets, func(s string) bool { return strings.Contains(v.Reason+v.Message, s) }) {
			t.Errorf("%s: %s %q", name, v.Reason, v.Message)
		}
	}
	in := ca.issue(t, "proxy.test")
	for name, answer := range echoes {
		answer := answering(fmt.Sprintf(answer, all))
		for _, target := range []string{"https://site.test/", "http://site.test/"} {
			if target[:5] == "http:" && (name == "in an odd success" || name == "in the tunnel without TLS") {
				continue // there it passes
			}
			probe("http, "+name+", "+target, "http", peer(t, answer), target)
			probe("https, "+name+", "+target, "https", peer(t, inTLS(in, answer)), target)
			if target[:5] == "http:" {
				probe("socks5, "+name+", "+target, "socks5", peer(t, inTunnel(answer)), target)
			}
		}
	}
	for name, steps := range socksEchoes(all) {
		probe("socks5, "+name, "socks5", peer(t, script(steps...)), "https://site.test/")
	}
	for name, certificate := range named(t, ca) {
		shake := inTLS(certificate, func(net.Conn) {})
		probe("http, on a certificate, "+name, "http", peer(t, func(conn net.Conn) {
			answering("HTTP/1.1 200 OK\r\n\r\n")(conn)
			shake(conn)
		}), "https://site.test/")
		probe("https, on its own certificate, "+name, "https", peer(t, shake), "https://site.test/")
		probe("socks5, on a certificate, "+name, "socks5", peer(t, inTunnel(shake)), "https://site.test/")
	}
	probe("https, instead of TLS", "https", peer(t, func(conn net.Conn) { fmt.Fprint(conn, all) }), "https://site.test/")
	probe("https, as HTTP instead of TLS", "https", peer(t, func(conn net.Conn) { fmt.Fprintf(conn, "HTTP/1.1 407 %s\r\n\r\n", all) }), "https://site.test/")
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if text := fmt.Sprint(rec.probes); strings.Contains(text, "p4ssword") {
		t.Errorf("recorded %s", text)
	}
}
