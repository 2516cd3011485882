package proxy

import (
	"bufio"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyfleet/proxy-operator/internal/testkit/certs"
)

func TestWhatTLSIsOffered(t *testing.T) {
	p := start(t, speaking(HTTPS))
	for _, c := range []struct {
		name    string
		version uint16
		offer   []string
		chosen  string
		refused bool
	}{
		{name: "1.3", version: tls.VersionTLS13},
		{name: "1.2", version: tls.VersionTLS12},
		{name: "1.1", version: tls.VersionTLS11, refused: true},
		{name: "HTTP/2 or 1.1", version: tls.VersionTLS13, offer: []string{"h2", "http/1.1"}, chosen: "http/1.1"},
		{name: "HTTP/2", version: tls.VersionTLS13, offer: []string{"h2"}, refused: true},
	} {
		config := trust(nil)
		config.ServerName = exitAddress.String()
		config.MinVersion, config.MaxVersion, config.NextProtos = tls.VersionTLS10, c.version, c.offer
		conn := tls.Client(dialTCP(t, p), config)
		if err := conn.HandshakeContext(t.Context()); (err != nil) != c.refused {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := conn.ConnectionState().NegotiatedProtocol; got != c.chosen {
			t.Errorf("%s: chosen %q, want %q", c.name, got, c.chosen)
		}
	}
}

// Who forgets the s of https:// reads what to write instead.
func TestPlainHTTPOnTheTLSPortIsAnswered(t *testing.T) {
	p := start(t, speaking(HTTPS))
	for _, line := range []string{"CONNECT example.com:443", "GET http://example.com/"} {
		conn := dialTCP(t, p)
		fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: example.com\r\n\r\n", line)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "https://") {
			t.Errorf("%s: %s %q %v", line, resp.Status, body, err)
		}
	}
}

// Whoever finds the port must not fill the node's disk.
func TestFailedHandshakesDoNotFloodTheLog(t *testing.T) {
	var log logs
	options := speaking(HTTPS)
	options.Logger = log.logger()
	p := start(t, options)
	for range 20 {
		conn := dialTCP(t, p) // a probe that connects and goes
		_ = conn.Close()
		for _, garbage := range []string{"GET / HTTP/1.1\r\n\r\n", "\x05\x01\x00", "\x16\x03\x01\x00\x01\x00", "SSH-2.0-x\r\n"} {
			conn := dialTCP(t, p)
			fmt.Fprint(conn, garbage)
			_ = conn.CloseWrite()
			isCut(t, conn)
		}
		conn = dialTCP(t, p)
		if err := tls.Client(conn, &tls.Config{ServerName: "unknown.example"}).HandshakeContext(t.Context()); err == nil {
			t.Fatal("a stranger's certificate was trusted")
		}
		_ = conn.Close()
	}
	p.mustStop(t)
	if got := log.warnings(); len(got) != 1 || !strings.Contains(got[0], "TLS handshakes failed") {
		t.Errorf("logged %q, want one line", got)
	}
}

func TestFailedHandshakesAreCountedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs
		failures := &failureLog{log: log.logger()}
		for range 5 {
			failures.add(errors.New(strings.Repeat("x", 1000)))
		}
		failures.add(io.EOF)
		<-time.After(failureLogInterval)
		failures.add(errors.New("another"))
		got := log.warnings()
		if len(got) != 2 || !strings.Contains(got[0], "count=1 last="+strings.Repeat("x", maxFailureLength)+"\n") || !strings.Contains(got[1], "count=5 last=another") {
			t.Errorf("logged %q", got)
		}
	})
}

// What is wrong with the files is said so that it can be put right, and nothing of what is in them.
func TestCertificatesThatAreNoneAreAnError(t *testing.T) {
	certificate, key := ourFiles(t)
	_, another := ourFiles(t)
	block := func(kind, text string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte(text)}))
	}
	const absent = "absent"
	for _, c := range []struct {
		name, certificate, key string
		want                   string // empty: they are good
	}{
		{"a pair", certificate, key, ""},
		{"with text around it", "hush\n" + certificate, "hush\n" + key + "hush", ""},
		{"neither", absent, absent, "neither is there"},
		{"no certificate", absent, key, "tls.crt is missing"},
		{"no key", certificate, absent, "tls.key is missing"},
		{"empty", "", "", "tls.crt has no certificate"},
		{"certificate without PEM", "hush", key, "tls.crt has no certificate"},
		{"key without PEM", certificate, "hush", "tls.key has no private key"},
		{"in each other's place", key, certificate, "tls.crt has no certificate"},
		{"another kind of key", certificate, block("HUSH", "hush"), "tls.key has no private key"},
		{"a broken certificate", block("CERTIFICATE", "hush"), key, "tls.crt has a certificate that cannot be read"},
		{"a broken key", certificate, block("PRIVATE KEY", "hush"), "tls.key has a private key that cannot be read"},
		{"an encrypted key", certificate, block("ENCRYPTED PRIVATE KEY", "hush"), "not encrypted"},
		{"another's key", certificate, another, "not the certificate's"},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"tls.crt": c.certificate, "tls.key": c.key} {
			if text == absent {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := ReadCertificate(dir)
		if (got != nil) != (c.want == "") || (err == nil) != (c.want == "") {
			t.Errorf("%s: %v, %v", c.name, got != nil, err)
		}
		if err == nil {
			continue
		}
		text := err.Error()
		if !strings.Contains(text, c.want) || !strings.Contains(text, dir) || strings.Contains(text, "\n") || strings.Contains(strings.ToLower(text), "hush") {
			t.Errorf("%s: %q, want %q and the directory in it, on one line and without content", c.name, text, c.want)
		}
	}
	if got, err := ReadCertificate("/dev/null"); got != nil || err == nil {
		t.Errorf("no directory: %v", err)
	}
}

// ourFiles are a new key, and a certificate for it.
func ourFiles(t *testing.T) (certificate, key string) {
	t.Helper()
	ca, err := certs.NewAuthority("forwardproxy")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(exitAddress.String())
	if err != nil {
		t.Fatal(err)
	}
	return string(pair.Certificate), string(pair.Key)
}
