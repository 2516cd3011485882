package health

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/proxyfleet/proxy-operator/cmd/forwardproxy/proxy"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
)

func TestASOCKS5ProxyIsProbedThroughATunnel(t *testing.T) {
	site := origin.Start(t)
	open := realProxy(t, proxy.Options{Protocol: proxy.SOCKS5})
	guarded := realProxy(t, proxy.Options{Protocol: proxy.SOCKS5, Credentials: asked(right)})
	longest := &fleet.Credentials{Username: strings.Repeat("u", 255), Password: strings.Repeat("p", 255)}
	toTheLast := realProxy(t, proxy.Options{Protocol: proxy.SOCKS5, Credentials: asked(longest)})
	var all []expectation
	for kind, target := range map[string]string{"https": site.URL + "/generate_204", "http": site.PlainURL + "/"} {
		all = append(all,
			expectation{kind, via("socks5", open, nil), target, site.CertPool(), "ProbeSucceeded", ""},
			expectation{kind + ", credentials that nobody asks for", via("socks5", open, right), target, site.CertPool(), "ProbeSucceeded", ""},
			expectation{kind + ", right credentials", via("socks5", guarded, right), target, site.CertPool(), "ProbeSucceeded", ""},
			expectation{kind + ", the longest credentials", via("socks5", toTheLast, longest), target, site.CertPool(), "ProbeSucceeded", ""},
			expectation{kind + ", no credentials", via("socks5", guarded, nil), target, site.CertPool(), "ProxyAuthRequired", "asks for a username and a password"},
			expectation{kind + ", wrong credentials", via("socks5", guarded, wrong), target, site.CertPool(), "ProxyAuthRequired", "asks for a username and a password: it does not take the credentials"},
		)
	}
	nowhere := "https://" + closedPort(t)
	expect(t, append(all,
		expectation{"the site answers 503", via("socks5", open, nil), site.URL + "/status/503", site.CertPool(), "UnexpectedStatus", "503"},
		expectation{"the plain site answers 503", via("socks5", open, nil), site.PlainURL + "/status/503", nil, "UnexpectedStatus", "503"},
		expectation{"the site's certificate is not trusted", via("socks5", open, nil), site.URL, nil, "TLSFailed", "unknown authority"},
		expectation{"the site's certificate is not trusted, with credentials", via("socks5", guarded, right), site.URL, nil, "TLSFailed", "the certificate is signed by an unknown authority"},
		expectation{"the site speaks no TLS", via("socks5", open, nil), strings.Replace(site.PlainURL, "http:", "https:", 1), nil, "TLSFailed", ""},
		expectation{"the proxy cannot reach the site", via("socks5", open, nil), nowhere, nil, "ConnectRefused", "answered 5, Connection refused"},
		expectation{"the proxy cannot reach the site, with credentials", via("socks5", guarded, right), nowhere, nil, "ConnectRefused", "answered 5, Connection refused"},
		expectation{"nothing listens", via("socks5", closedPort(t), nil), site.URL, nil, "DialFailed", "refused"},
	))
}

// tap relays to a proxy and keeps what clients send.
func tap(t *testing.T, endpoint string) (at string, sent func() []byte) {
	t.Helper()
	var mu sync.Mutex
	var kept bytes.Buffer
	at = peer(t, func(conn net.Conn) {
		relay(&tapped{conn, func(b []byte) {
			mu.Lock()
			defer mu.Unlock()
			kept.Write(b)
		}}, endpoint)
	})
	return at, func() []byte {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(kept.Bytes())
	}
}

type tapped struct {
	net.Conn
	keep func([]byte)
}

func (c *tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.keep(b[:n])
	return n, err
}

// A name that the hub resolved would be judged by the hub's name servers, and not
// by the proxy's, which crawlers depend on.
func TestTheSitesNameReachesTheSOCKS5ProxyUnresolved(t *testing.T) {
	for _, tc := range []struct {
		name, bind, site string
		request          func(port string) []byte
	}{
		{"a name", "127.0.0.1", "localhost", func(string) []byte { return append([]byte{5, 1, 0, 3, 9}, "localhost"...) }},
		{"IPv4", "127.0.0.1", "127.0.0.1", func(string) []byte { return []byte{5, 1, 0, 1, 127, 0, 0, 1} }},
		{"IPv6", "::1", "[::1]", func(string) []byte { return append([]byte{5, 1, 0, 4}, net.IPv6loopback...) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			site, err := origin.Run(t.Context(), origin.Options{Addr: net.JoinHostPort(tc.bind, "0")})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = site.Close() })
			_, port, _ := net.SplitHostPort(site.Addr())
			endpoint, sent := tap(t, realProxy(t, proxy.Options{Protocol: proxy.SOCKS5, BindAddress: netip.MustParseAddr(tc.bind)}))
			if r := local(site.CertPool()).probe(t.Context(), via("socks5", endpoint, nil), aim{url: "https://" + tc.site + ":" + port}); !r.ok {
				t.Fatalf("%+v", r)
			}
			if want := append([]byte{5, 1, 0}, tc.request(port)...); !bytes.HasPrefix(sent(), want) {
				t.Errorf("the proxy was sent %v…, want %v", sent()[:min(len(want), len(sent()))], want)
			}
		})
	}
}

func TestASOCKS5ProxyThatAsksForNothingIsNotToldThePassword(t *testing.T) {
	site := origin.Start(t)
	endpoint, sent := tap(t, realProxy(t, proxy.Options{Protocol: proxy.SOCKS5}))
	if r := local(site.CertPool()).probe(t.Context(), via("socks5", endpoint, right), aim{url: site.URL}); !r.ok {
		t.Fatalf("%+v", r)
	}
	if bytes.Contains(sent(), []byte(right.Password)) || bytes.Contains(sent(), []byte(right.Username)) {
		t.Error("it was sent the credentials")
	}
}

func TestAProbeSaysWhatASOCKS5ProxyDidWrong(t *testing.T) {
	const target, plain = "https://site.test/", "http://site.test/"
	open := func(steps ...func(net.Conn) error) through { return via("socks5", peer(t, script(steps...)), nil) }
	guarded := func(steps ...func(net.Conn) error) through { return via("socks5", peer(t, script(steps...)), right) }
	const broke = "the connection broke before an answer: "
	all := []expectation{
		{"closes at once", open(readGreeting), target, nil, "ConnectRefused", broke + "EOF"},
		{"half an answer to the greeting", open(readGreeting, says(5)), target, nil, "ConnectRefused", broke + "unexpected EOF"},
		{"SOCKS4", open(readGreeting, says(0, 91)), target, nil, "ConnectRefused", "no SOCKS5 proxy"},
		{"garbage", open(readGreeting, saysText("SSH-2.0-OpenSSH\r\n")), target, nil, "ConnectRefused", "no SOCKS5 proxy"},
		{"HTTP", open(readGreeting, saysText("HTTP/1.1 400 Bad Request\r\n\r\n")), target, nil, "ConnectRefused", "no SOCKS5 proxy"},
		{"a method that was not offered", open(readGreeting, choosesPassword), target, nil, "ConnectRefused", "no SOCKS5 proxy"},
		{"none of the methods, of one", open(readGreeting, says(5, 255)), target, nil, "ProxyAuthRequired", "asks for a username and a password"},
		{"none of the methods, of two", guarded(readGreeting, says(5, 255)), target, nil, "ProxyAuthRequired", "takes neither"},
		{"GSSAPI", guarded(readGreeting, says(5, 1)), target, nil, "ConnectRefused", "no SOCKS5 proxy"},
		{"closes at the login", guarded(readGreeting, choosesPassword, readLogin), target, nil, "ConnectRefused", broke + "EOF"},
		{"half an answer to the login", guarded(readGreeting, choosesPassword, readLogin, says(1)), target, nil, "ConnectRefused", broke + "unexpected EOF"},
		{"refuses the login", guarded(readGreeting, choosesPassword, readLogin, says(1, 1)), target, nil, "ProxyAuthRequired", "does not take the credentials"},
		{"refuses the login in another version", guarded(readGreeting, choosesPassword, readLogin, says(5, 1)), target, nil, "ProxyAuthRequired", "does not take the credentials"},
		{"closes at the request", open(readGreeting, choosesNone, readRequest), target, nil, "ConnectRefused", broke + "EOF"},
		{"half an answer to the request", open(readGreeting, choosesNone, readRequest, says(5, 0, 0)), target, nil, "ConnectRefused", broke + "unexpected EOF"},
		{"half an address", open(readGreeting, choosesNone, readRequest, says(5, 0, 0, 1, 127)), target, nil, "ConnectRefused", broke + "EOF"},
		{"no length of a name", open(readGreeting, choosesNone, readRequest, says(5, 0, 0, 3)), target, nil, "ConnectRefused", broke + "EOF"},
		{"an address of no kind", open(readGreeting, choosesNone, readRequest, says(5, 0, 0, 9, 1, 2, 3, 4, 0, 80)), target, nil, "ConnectRefused", "no SOCKS5 proxy"},
		{"an answer in another version", open(readGreeting, choosesNone, readRequest, says(4, 0, 0, 1, 1, 2, 3, 4, 0, 80)), target, nil, "ConnectRefused", "no SOCKS5 proxy"},
		{"closes the tunnel", open(readGreeting, choosesNone, readRequest, grants, readRecord), target, nil, "TLSFailed", "EOF"},
		{"speaks no TLS in the tunnel", open(readGreeting, choosesNone, readRequest, grants, readRecord, saysText("hello, this is not TLS")), target, nil, "TLSFailed", "what came is not TLS"},
		{"closes the tunnel to a plain site", open(readGreeting, choosesNone, readRequest, grants, readHead), plain, nil, "UnexpectedStatus", "broke off: unexpected EOF"},
		{"speaks no HTTP for a plain site", open(readGreeting, choosesNone, readRequest, grants, readHead, saysText("hello, this is no HTTP\r\n\r\n")), plain, nil, "UnexpectedStatus", "malformed"},
		{"hangs", open(hangs), target, nil, "Timeout", "the proxy accepted the connection, but no answer came in time"},
		{"a username that is too long", via("socks5", peer(t, script(readGreeting, choosesPassword, hangs)), &fleet.Credentials{Username: strings.Repeat("u", 256)}), target, nil, "ProxyAuthRequired", "no room for a username"},
		{"a password that is too long", via("socks5", peer(t, script(readGreeting, choosesPassword, hangs)), &fleet.Credentials{Username: "u", Password: strings.Repeat("p", 256)}), target, nil, "ProxyAuthRequired", "no room for a username"},
		{"a name that is too long", open(hangs), "https://" + strings.Repeat("n", 256) + "/", nil, "UnexpectedStatus", "not usable"},
		{"a port that is none", open(hangs), "https://site.test:65536/", nil, "UnexpectedStatus", "not usable"},
	}
	for code, name := range map[byte]string{
		1: "general SOCKS server failure", 2: "connection not allowed by ruleset", 3: "Network unreachable", 4: "Host unreachable",
		5: "Connection refused", 6: "TTL expired", 7: "Command not supported", 8: "Address type not supported", 9: "answered 9", 200: "answered 200",
	} {
		refuses := []func(net.Conn) error{readGreeting, choosesNone, readRequest, says(5, code, 0, 1, 0, 0, 0, 0, 0, 0)}
		all = append(all,
			expectation{name, open(refuses...), target, nil, "ConnectRefused", name},
			expectation{name + ", with credentials", guarded(refuses...), target, nil, "ConnectRefused", name})
	}
	expect(t, all)
}

// What a proxy says that it connects from is skipped to the byte: one too many or
// too few, and TLS with the site fails.
func TestAnyAddressThatASOCKS5ProxyConnectsFromIsFine(t *testing.T) {
	site := origin.Start(t)
	onward := func(conn net.Conn) error { relay(conn, site.Addr()); return nil }
	var all []expectation
	for name, bound := range map[string][]byte{
		"IPv4":               {1, 192, 0, 2, 1},
		"IPv6":               append([]byte{4}, net.IPv6loopback...),
		"a name":             append([]byte{3, 10}, "proxy.test"...),
		"a name of no bytes": {3, 0},
		"the longest name":   append([]byte{3, 255}, bytes.Repeat([]byte("n"), 255)...),
	} {
		reply := slices.Concat([]byte{5, 0, 0}, bound, []byte{0x12, 0x34})
		all = append(all, expectation{name, via("socks5", peer(t, script(readGreeting, choosesNone, readRequest, says(reply...), onward)), nil), site.URL, site.CertPool(), "ProbeSucceeded", ""})
	}
	expect(t, all)
}

// answers is a connection whose other end has said all that it ever says.
type answers struct {
	*bytes.Reader
	sent bytes.Buffer
}

func (a *answers) Write(b []byte) (int, error) { return a.sent.Write(b) }

// Whatever a proxy answers, the handshake ends, in words of our own; and where it
// succeeds, what follows is left for the tunnel.
func FuzzTheSOCKS5Handshake(f *testing.F) {
	for _, seed := range []string{
		"", "\x05", "\x05\x00", "\x05\xff", "\x05\x02", "\x05\x02\x01\x00", "\x05\x02\x01\x01",
		"\x05\x00\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x50", "\x05\x00\x05\x00\x00\x03\x01n\x00\x50", "\x05\x00\x05\x00\x00\x03\xffn",
		"\x05\x02\x01\x00\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00", "\x05\x00\x05\x00\x00\x04", "HTTP/1.1 400 Bad Request\r\n\r\n",
	} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, said string, guarded bool) {
		var proof *fleet.Credentials
		if guarded {
			proof = &fleet.Credentials{Username: "crawler", Password: "p4ssword"}
		}
		const rest = "the tunnel's"
		conn := &answers{Reader: bytes.NewReader([]byte(said))}
		err := socksHandshake(conn, []byte{socksVersion, socksConnect}, proof)
		var own *socksError
		switch {
		case err == nil:
			again := &answers{Reader: bytes.NewReader([]byte(said[:len(said)-conn.Len()] + rest))}
			if err := socksHandshake(again, []byte{socksVersion, socksConnect}, proof); err != nil {
				t.Fatalf("without what follows: %v", err)
			}
			if left, _ := io.ReadAll(again); string(left) != rest {
				t.Errorf("%q is left of %q", left, rest)
			}
		case errors.As(err, &own), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		default:
			t.Errorf("%T: %v", err, err)
		}
		if !strings.HasPrefix(said, "\x05\x02") && bytes.Contains(conn.sent.Bytes(), []byte("p4ssword")) {
			t.Error("it was sent a password that it did not ask for")
		}
	})
}
