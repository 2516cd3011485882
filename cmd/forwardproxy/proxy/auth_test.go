package proxy

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
)

var awkward = &Credentials{"crawler ü@/?", `p:a/s@s?#[]%& +"\ö`}

// A client that has the credentials in its proxy's URL gets through, over TLS and plain.
func TestTheRightCredentialsOpenTheProxy(t *testing.T) {
	site := origin.Start(t)
	eachProtocol(t, func(t *testing.T, options Options) {
		options.Credentials = awkward
		p := start(t, options)
		crawler := client(t, p, site, awkward)
		for _, base := range []string{site.URL, site.PlainURL} {
			for range 2 { // on a connection that is kept, each request proves itself
				reply, err := origin.Fetch(t.Context(), crawler, base)
				if err != nil || reply.RemoteAddr != exitAddress.String() {
					t.Errorf("%s: saw %+v, %v", base, reply, err)
				}
			}
		}
	})
}

// One that has others, or none, reads that it is those.
func TestWrongCredentialsAreNamed(t *testing.T) {
	site := origin.Start(t)
	eachProtocol(t, func(t *testing.T, options Options) {
		options.Credentials = &Credentials{"crawler", "hush"}
		p := start(t, options)
		want := map[*Credentials]string{nil: "no acceptable authentication methods", {"crawler", "hushh"}: "username/password authentication failed"}
		for c, want := range want {
			if options.Protocol != SOCKS5 {
				want = "Proxy Authentication Required"
			}
			crawler := client(t, p, site, c)
			if _, err := origin.Fetch(t.Context(), crawler, site.URL); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %v, want %q", c, err, want)
			}
			if _, err := origin.Fetch(t.Context(), crawler, site.PlainURL); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, plain: %v, want %q", c, err, want)
			}
		}
	})
}

// A colon is only of HTTP's syntax.
func TestSOCKS5UsernamesMayHaveColons(t *testing.T) {
	site, c := origin.Start(t), &Credentials{"craw:ler", strings.Repeat("x", 255)}
	p := start(t, Options{Protocol: SOCKS5, Credentials: c})
	if _, err := origin.Fetch(t.Context(), client(t, p, site, c), site.URL); err != nil {
		t.Error(err)
	}
}

// Whoever lacks them reads that they are wanted, and reaches nothing.
func TestWithoutTheCredentialsNothingIsReached(t *testing.T) {
	reached := make(chan struct{}, 100)
	listener := listen(t)
	site := http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached <- struct{}{} })}
	go func() { _ = site.Serve(listener) }()
	t.Cleanup(func() { _ = site.Close() })
	p := start(t, Options{Credentials: &Credentials{"crawler", "hush"}})
	basic := func(pair string) string {
		return "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(pair)) + "\r\n"
	}
	for name, header := range map[string]string{
		"none":                   "",
		"another password":       basic("crawler:hushh"),
		"a prefix":               basic("crawler:hus"),
		"another username":       basic("Crawler:hush"),
		"no password":            basic("crawler:"),
		"nothing":                basic(":"),
		"no colon":               basic("crawlerhush"),
		"for the site":           strings.TrimPrefix(basic("crawler:hush"), "Proxy-"),
		"another scheme":         strings.Replace(basic("crawler:hush"), "Basic", "Bearer", 1),
		"no base64":              "Proxy-Authorization: Basic crawler:hush\r\n",
		"twice, the wrong first": basic("crawler:x") + basic("crawler:hush"),
		"twice, the right first": basic("crawler:hush") + basic("crawler:x"),
	} {
		for _, line := range []string{"CONNECT %s HTTP/1.1\r\n", "GET http://%s/ HTTP/1.1\r\n"} {
			conn := dial(t, p)
			fmt.Fprintf(conn, line+"Host: %s\r\n%s\r\n", listener.Addr(), listener.Addr(), header)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != http.StatusProxyAuthRequired || !strings.Contains(string(body), "Proxy-Authorization") {
				t.Errorf("%s: %s %q %v", name, resp.Status, body, err)
			}
			if got := resp.Header.Get("Proxy-Authenticate"); !strings.HasPrefix(got, `Basic realm="`) {
				t.Errorf("%s: Proxy-Authenticate is %q", name, got)
			}
		}
	}
	if n := len(reached); n != 0 {
		t.Errorf("%d requests got through", n)
	}
}

func TestTheSiteNeverSeesTheCredentials(t *testing.T) {
	seen := make(chan http.Header, 1)
	listener := listen(t)
	site := http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header })}
	go func() { _ = site.Serve(listener) }()
	t.Cleanup(func() { _ = site.Close() })
	conn := dial(t, start(t, Options{Credentials: &Credentials{"crawler", "hush"}}))
	fmt.Fprintf(conn, "GET http://%[1]s/ HTTP/1.1\r\nHost: %[1]s\r\nAuthorization: Basic c2l0ZTpvd24=\r\n"+
		"Proxy-Authorization: basic Y3Jhd2xlcjpodXNo\r\n\r\n", listener.Addr())
	header := <-seen
	if got := header.Values("Authorization"); !slices.Equal(got, []string{"Basic c2l0ZTpvd24="}) {
		t.Errorf("Authorization is %q, want the site's own", got)
	}
	if got := header.Values("Proxy-Authorization"); len(got) > 0 {
		t.Errorf("the site saw %q", got)
	}
}

// A file that is there and cannot be read must not leave the proxy open.
func TestCredentialsThatCannotBeReadAreAnError(t *testing.T) {
	dir := t.TempDir()
	if got, err := ReadCredentials(filepath.Join(dir, "none")); got != nil || err != nil {
		t.Errorf("no directory: %v, %v", got, err)
	}
	for _, name := range []string{"username", "password"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := ReadCredentials(dir); got != nil || err == nil {
		t.Errorf("directories for files: %v, %v", got, err)
	}
}
