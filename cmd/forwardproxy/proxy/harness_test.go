package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/internal/testkit/certs"
	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
)

// exitAddress is an address that the test's own connections never come from.
var exitAddress = netip.MustParseAddr("127.7.7.7")

// patience is how long a test waits before it fails rather than hangs.
const patience = 20 * time.Second

// eachProtocol runs a test with the options for each.
func eachProtocol(t *testing.T, test func(*testing.T, Options)) {
	for _, protocol := range []Protocol{HTTP, HTTPS, SOCKS5} {
		t.Run(protocol.String(), func(t *testing.T) { test(t, speaking(protocol)) })
	}
}

func speaking(protocol Protocol) Options {
	options := Options{Protocol: protocol}
	if protocol == HTTPS {
		options.Certificate = ourCertificate()
	}
	return options
}

// ourCertificate is for the addresses that tests listen on.
var ourCertificate = sync.OnceValue(func() *tls.Certificate {
	ca, err := certs.NewAuthority("forwardproxy")
	if err != nil {
		panic(err)
	}
	pair, err := ca.Issue(exitAddress.String(), "::1")
	if err != nil {
		panic(err)
	}
	certificate, err := pair.TLS()
	if err != nil {
		panic(err)
	}
	return &certificate
})

// trust is a client's configuration that knows our certificate, and the site's if there is one.
func trust(site *origin.Server) *tls.Config {
	roots := x509.NewCertPool()
	if site != nil {
		roots = site.CertPool()
	}
	roots.AddCert(ourCertificate().Leaf)
	return &tls.Config{RootCAs: roots}
}

// running is a proxy that serves until stop, which the test's end calls too.
type running struct {
	*Server
	stop func() error
}

func start(t *testing.T, options Options) *running {
	t.Helper()
	if !options.BindAddress.IsValid() {
		options.BindAddress = exitAddress
	}
	server, err := Listen(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	var result error
	go func() {
		defer close(done)
		result = server.Serve(ctx)
	}()
	stop := func() error { cancel(); <-done; return result }
	t.Cleanup(func() { _ = stop() })
	return &running{Server: server, stop: stop}
}

// mustStop fails the test if the proxy takes its time to end.
func (p *running) mustStop(t *testing.T) {
	t.Helper()
	stopped := make(chan error, 1)
	go func() { stopped <- p.stop() }()
	select {
	case err := <-stopped:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatalf("it does not end, with %d connections open", p.conns.count())
	}
}

// client sends everything through the proxy, with the credentials if there are any.
func client(t *testing.T, p *running, site *origin.Server, c *Credentials) *http.Client {
	t.Helper()
	through := &url.URL{Scheme: p.protocol.String(), Host: p.Addr()}
	if c != nil {
		through.User = url.UserPassword(c.Username, c.Password)
	}
	// As most clients do, it would rather speak HTTP/2.
	transport := &http.Transport{Proxy: http.ProxyURL(through), TLSClientConfig: trust(site), ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// halfCloser is an end of a tunnel.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// tunnel opens a tunnel and returns both of its ends.
func tunnel(t *testing.T, p *running) (near, far halfCloser) {
	t.Helper()
	listener := listen(t)
	near = dial(t, p)
	target := listener.Addr().(*net.TCPAddr).AddrPort()
	if p.protocol == SOCKS5 {
		fmt.Fprintf(near, "\x05\x01\x00%s", connectTo(target))
	} else {
		fmt.Fprintf(near, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", target)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	far = accepted.(*net.TCPConn)
	t.Cleanup(func() { _ = far.Close() })
	failLate(t, far)
	if p.protocol == SOCKS5 {
		bound := far.RemoteAddr().(*net.TCPAddr).AddrPort()
		want := "\x05\x00" + "\x05\x00\x00\x01" + string(bound.Addr().AsSlice()) + port(bound)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(near, got); err != nil || string(got) != want {
			t.Fatalf("CONNECT: %x, %v, want %x", got, err, want)
		}
		return near, far
	}
	resp, err := http.ReadResponse(bufio.NewReader(near), &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("CONNECT: %s %v", resp.Status, err)
	}
	return near, far
}

// connectTo is a SOCKS5 request for an address.
func connectTo(target netip.AddrPort) string {
	kind := "\x01"
	if target.Addr().Is6() {
		kind = "\x04"
	}
	return "\x05\x01\x00" + kind + string(target.Addr().AsSlice()) + port(target)
}

// connectToName is a SOCKS5 request for a name.
func connectToName(name string, port uint16) string {
	return "\x05\x01\x00\x03" + string([]byte{byte(len(name))}) + name + string(binary.BigEndian.AppendUint16(nil, port))
}

func port(address netip.AddrPort) string {
	return string(binary.BigEndian.AppendUint16(nil, address.Port()))
}

// dial connects to the proxy, in TLS if that is what it speaks.
func dial(t *testing.T, p *running) halfCloser {
	t.Helper()
	conn := dialTCP(t, p)
	if p.protocol != HTTPS {
		return conn
	}
	config := trust(nil)
	config.ServerName = exitAddress.String()
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return secure
}

func dialTCP(t *testing.T, p *running) *net.TCPConn {
	t.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	failLate(t, conn)
	return conn.(*net.TCPConn)
}

// failLate makes an end fail rather than hang.
func failLate(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
}

// isCut reads until the connection has ended, in whatever way, and fails the test if it does not.
func isCut(t *testing.T, conn net.Conn) {
	t.Helper()
	n, err := io.Copy(io.Discard, conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("not cut: %d bytes, %v", n, err)
	}
}

// until waits for what nobody tells of.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for !holds() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// waitRefused returns once nobody listens at the address.
func waitRefused(t *testing.T, address string) {
	t.Helper()
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(t.Context(), "tcp", address)
		if err != nil {
			return
		}
		_ = conn.Close()
	}
}

func closedPort(t *testing.T) string {
	t.Helper()
	listener := listen(t)
	_ = listener.Close()
	return listener.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	return listenOn(t, "127.0.0.1:0")
}

func listenOn(t *testing.T, address string) net.Listener {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// logs keeps what a proxy logs.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// warnings are the lines that are not about the proxy's own life.
func (l *logs) warnings() (lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, "level=WARN") {
			lines = append(lines, line)
		}
	}
	return lines
}
