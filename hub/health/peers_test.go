package health

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/cmd/forwardproxy/proxy"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// local is a prober that finds proxies on this machine.
func local(roots *x509.CertPool) *prober {
	return &prober{dialer: dialer{allowLocal: true}, roots: roots}
}

// via is the proxy at an endpoint, host:port.
func via(protocol, endpoint string, proof *fleet.Credentials, edits ...func(*through)) through {
	host, portText, err := net.SplitHostPort(endpoint)
	if err != nil {
		panic(err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		panic(err)
	}
	v := through{fleet.Approach{Protocol: protocol, Proof: proof}, host, port}
	if protocol == "https" {
		v.ServerName = host
	}
	for _, edit := range edits {
		edit(&v)
	}
	return v
}

// verifying expects the certificate of name, signed by a.
func verifying(name string, a *authority) func(*through) {
	return func(v *through) { v.ServerName, v.Authorities = name, a.Authorities }
}

// realProxy is one that our pods run.
func realProxy(t *testing.T, o proxy.Options) string {
	t.Helper()
	if !o.BindAddress.IsValid() {
		o.BindAddress = netip.MustParseAddr("127.0.0.1")
	}
	server, err := proxy.Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx) }()
	t.Cleanup(func() { cancel(); <-served })
	return server.Addr()
}

func asked(c *fleet.Credentials) *proxy.Credentials {
	return &proxy.Credentials{Username: c.Username, Password: c.Password}
}

// authority signs certificates.
type authority struct {
	*fleet.Authorities
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{certificate: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a test's authority"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, a.certificate, a.certificate, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.Authorities, err = fleet.ParseAuthorities(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})); err != nil {
		t.Fatal(err)
	}
	return a
}

// issue signs a certificate for a name. It is valid at any time, that of a test's
// bubble included.
func (a *authority) issue(t *testing.T, name string, edits ...func(*x509.Certificate)) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: a.certificate.NotBefore, NotAfter: a.certificate.NotAfter,
	}
	for _, edit := range edits {
		edit(leaf)
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.certificate, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// inTLS has behave speak through TLS that the peer at the other end has asked for.
func inTLS(c *tls.Certificate, behave func(net.Conn)) func(net.Conn) {
	return func(conn net.Conn) {
		server := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{*c}})
		if server.Handshake() == nil {
			behave(server)
		}
	}
}

// script does one step after another with a connection, as long as they succeed.
func script(steps ...func(net.Conn) error) func(net.Conn) {
	return func(conn net.Conn) {
		for _, step := range steps {
			if step(conn) != nil {
				return
			}
		}
	}
}

// says is a step that sends bytes.
func says(b ...byte) func(net.Conn) error {
	return func(conn net.Conn) error { _, err := conn.Write(b); return err }
}

func saysText(s string) func(net.Conn) error { return says([]byte(s)...) }

// hangs is a step that takes all in and says nothing, until the other side closes.
func hangs(conn net.Conn) error { _, err := io.Copy(io.Discard, conn); return err }

// stalls is a step for a net.Pipe that takes nothing in, until the other side closes:
// what it says is waited for by nobody who cannot get rid of what they say.
func stalls(conn net.Conn) error { _, err := conn.Write([]byte{0}); return err }

// readHead is a step that reads the header of a request.
func readHead(conn net.Conn) error {
	var read []byte
	for b := make([]byte, 1); !bytes.HasSuffix(read, []byte("\r\n\r\n")); read = append(read, b...) {
		if _, err := conn.Read(b); err != nil {
			return err
		}
	}
	return nil
}

// readRecord is a step that reads one record of TLS. A peer that closed without
// having read it would have the kernel reset the connection.
func readRecord(conn net.Conn) error {
	var head [5]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, conn, int64(head[3])<<8|int64(head[4]))
	return err
}

// The steps that read what a client of SOCKS5 sends.
var (
	readGreeting = func(conn net.Conn) error { return readCounted(conn, 1, 1) }
	readLogin    = func(conn net.Conn) error { return readCounted(conn, 1, 2) }
	readRequest  = func(conn net.Conn) error {
		var head [4]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return err
		}
		if head[3] == socksDomain {
			return cmp.Or(readCounted(conn, 0, 1), readCounted(conn, 2, 0))
		}
		return readCounted(conn, map[byte]int64{socksIPv4: 6, socksIPv6: 18}[head[3]], 0)
	}
)

// readCounted reads some bytes, and then strings with their length before them.
func readCounted(conn net.Conn, n int64, strings int) error {
	if _, err := io.CopyN(io.Discard, conn, n); err != nil {
		return err
	}
	for range strings {
		var length [1]byte
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, conn, int64(length[0])); err != nil {
			return err
		}
	}
	return nil
}

var (
	choosesNone     = says(5, 0)
	choosesPassword = says(5, 2)
	letsIn          = says(1, 0)
	grants          = says(5, 0, 0, 1, 127, 0, 0, 1, 0, 80)
)

// names is a Resolver that answers each name with one set of addresses after
// another, the last of them again and again.
type names struct {
	mu      sync.Mutex
	answers map[string][][]string
	lookups int
}

func (n *names) LookupNetIP(_ context.Context, network, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lookups++
	sets := n.answers[host]
	if network != "ip" || len(sets) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, Server: "192.0.2.53:53", IsNotFound: true}
	}
	var addresses []netip.Addr
	for _, text := range sets[0] {
		addresses = append(addresses, netip.MustParseAddr(text))
	}
	n.answers[host] = sets[min(1, len(sets)-1):]
	return addresses, nil
}

// routes leads connections to public addresses, host:port, to local ones, and those
// to any other address nowhere. It notes what was dialled.
type routes struct {
	mu      sync.Mutex
	to      map[string]string
	dialled []string
}

func (r *routes) connect(ctx context.Context, network, address string) (net.Conn, error) {
	r.mu.Lock()
	to, known := r.to[address]
	r.dialled = append(r.dialled, address)
	r.mu.Unlock()
	if !known {
		return nil, fmt.Errorf("no route to %s", address)
	}
	return new(net.Dialer).DialContext(ctx, network, to)
}

// take returns what was dialled since it was called last.
func (r *routes) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	dialled := slices.Clone(r.dialled)
	r.dialled = nil
	return dialled
}
