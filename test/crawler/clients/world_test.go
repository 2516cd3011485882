package clients_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/proxyfleet/proxy-operator/cmd/forwardproxy/proxy"
	"github.com/proxyfleet/proxy-operator/internal/testkit/certs"
	"github.com/proxyfleet/proxy-operator/test/crawler/clients"
)

const (
	// exit is where requests come from that went through a proxy, and no others.
	exit = "127.7.7.7"
	// marker is in every password.
	marker = "MaRkEr40962"
	// proxyName is no name that could be resolved.
	proxyName = "proxy.example"
)

// printable is a password of every printable ASCII character.
var printable = func() string {
	s := marker
	for c := ' '; c <= '~'; c++ {
		s += string(c)
	}
	return s
}()

// running is a forward proxy that serves until the test ends.
type running struct {
	protocol string
	addr     string
	ca       string // of its certificate, if it has one
}

// serve starts a proxy. certified are the names and addresses in the certificate of an https one.
func serve(t *testing.T, protocol string, credentials *proxy.Credentials, certified ...string) running {
	t.Helper()
	options := proxy.Options{BindAddress: netip.MustParseAddr(exit), Credentials: credentials}
	var err error
	if options.Protocol, err = proxy.ParseProtocol(protocol); err != nil {
		t.Fatal(err)
	}
	r := running{protocol: protocol}
	if protocol == "https" {
		options.Certificate, r.ca = issue(t, certified...)
	}
	server, err := proxy.Listen(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	r.addr = server.Addr()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

// lease is the lease of a proxy, as the API would answer.
func (r running) lease(t *testing.T, username, password string, changes ...func(*answer)) clients.Lease {
	t.Helper()
	a := answer{LeaseID: "l-1"}
	a.Proxy.Protocol = r.protocol
	a.Proxy.URL = map[string]string{"http": "http", "https": "https", "socks5": "socks5h"}[r.protocol] + "://"
	if password != "" {
		a.Proxy.URL += encode(username) + ":" + encode(password) + "@"
	}
	a.Proxy.URL += r.addr
	if r.protocol == "https" {
		a.TLS = &answerTLS{CA: r.ca}
	}
	for _, change := range changes {
		change(&a)
	}
	lease, err := clients.ParseLease(a.json(t))
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// answer is a lease on the wire, in the words of the contract.
type answer struct {
	LeaseID string `json:"leaseID"`
	Proxy   struct {
		Protocol string `json:"protocol"`
		URL      string `json:"url"`
	} `json:"proxy"`
	TLS *answerTLS `json:"tls,omitempty"`
}

type answerTLS struct {
	ServerName string `json:"serverName,omitempty"`
	CA         string `json:"ca,omitempty"`
}

func (a answer) json(t *testing.T) []byte {
	t.Helper()
	content, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func named(serverName string) func(*answer) {
	return func(a *answer) { a.TLS.ServerName = serverName }
}

func signedBy(ca string) func(*answer) { return func(a *answer) { a.TLS.CA = ca } }

// at puts another host:port into the URL.
func at(addr string) func(*answer) {
	return func(a *answer) {
		end := cmp.Or(strings.LastIndex(a.Proxy.URL, "@")+1, strings.Index(a.Proxy.URL, "//")+2)
		a.Proxy.URL = a.Proxy.URL[:end] + addr
	}
}

// encode percent-encodes as the hub does.
func encode(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

// relay listens at an address and passes on what comes to another, so that a proxy is reached at
// one address and its requests leave from the one that proves them.
func relay(t *testing.T, listen, to string) string {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return // the test has ended
			}
			go func() {
				defer from.Close()
				onward, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer onward.Close()
				go func() {
					_, _ = io.Copy(onward, from)
					_ = onward.(*net.TCPConn).CloseWrite()
				}()
				_, _ = io.Copy(from, onward)
			}()
		}
	}()
	return listener.Addr().String()
}

// issue makes a certificate, and the PEM of the CA that signs it and nothing else.
func issue(t *testing.T, certified ...string) (*tls.Certificate, string) {
	t.Helper()
	authority, err := certs.NewAuthority("CA of a test's proxy")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(certified...)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	return &certificate, string(authority.PEM)
}

// mustNotTell fails if a text has a password in it, as it is or as it is sent.
func mustNotTell(t *testing.T, text, username, password string) {
	t.Helper()
	token := base64.StdEncoding.EncodeToString([]byte(username + ":" + password))
	for _, secret := range []string{marker, password, encode(password), token, base64.StdEncoding.EncodeToString([]byte(password))} {
		if strings.Contains(text, secret) {
			t.Fatalf("the password is told, as %q, in %q", secret, text)
		}
	}
}
