package health

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// maxBody is how much of an answer's body is read: the verdict needs none of
// it, and a body may never end.
const maxBody = 64 << 10

// prober probes through one proxy at a time; it keeps nothing between probes.
type prober struct {
	dialer
	// roots verify the probed site's certificate; nil for the system's.
	roots *x509.CertPool
}

// through is the proxy that a probe goes through.
type through struct {
	fleet.Approach
	host string
	port int
}

func throughOf(p *fleet.Proxy) through { return through{p.Approach(), p.Host, p.Port} }

// connectError is a CONNECT that was not granted.
type connectError struct{ code int }

func (e *connectError) Error() string { return "the proxy answered CONNECT with " + statusLine(e.code) }

// probe fetches target through a proxy: an https target through a tunnel, an http
// one of a proxy that speaks HTTP as an absolute-form request. The proxy, and
// nobody behind it, is shown the proof that it asks for. The transport is fresh, so
// that the tunnel is exercised each time and none is kept. It ends with ctx.
func (p *prober) probe(ctx context.Context, via through, target string) result {
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return failure(v1alpha1.ReasonUnexpectedStatus, "the probe's URL is not usable")
	}
	req.Header.Set("User-Agent", "proxy-operator-probe")
	// The transport's goroutines may outlive the request, hence the atomic.
	var at atomic.Int32
	reached := func(st stage) {
		if st == tunnelled && req.URL.Scheme == "http" {
			st = secured // there is no more to come before the answer
		}
		at.Store(int32(st))
	}
	advise := advice{proven: via.Proof != nil, named: via.Authorities != nil}
	transport := p.transport(via, reached)
	defer transport.CloseIdleConnections()
	req = req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		TLSHandshakeDone: func(_ tls.ConnectionState, err error) {
			if err == nil {
				reached(secured)
			}
		},
	}))
	client := &http.Client{
		Transport: transport,
		// A redirect is the site's answer; following it would probe another one.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	res, err := client.Do(req)
	if err != nil {
		return explain(err, stage(at.Load()), advise)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusProxyAuthRequired && stage(at.Load()) < tunnelled {
		return failure(v1alpha1.ReasonProxyAuthRequired, advise.refusal("the proxy answered "+statusLine(res.StatusCode)))
	}
	if res.StatusCode/100 != 2 {
		return failure(v1alpha1.ReasonUnexpectedStatus, "the probe's URL answered "+statusLine(res.StatusCode))
	}
	latency := time.Since(began)
	if _, err := io.Copy(io.Discard, io.LimitReader(res.Body, maxBody)); err != nil {
		return explain(err, stage(at.Load()), advise)
	}
	return result{ok: true, reason: v1alpha1.ReasonProbeSucceeded, message: "the probe passed", latency: latency}
}

// transport goes through a proxy and says how far it got.
func (p *prober) transport(via through, reached func(stage)) *http.Transport {
	t := &http.Transport{
		DisableKeepAlives:      true,
		TLSClientConfig:        &tls.Config{RootCAs: p.roots, MinVersion: tls.VersionTLS12},
		MaxResponseHeaderBytes: maxBody,
	}
	if via.Protocol == string(v1alpha1.ProtocolSOCKS5) {
		// No proxy as far as net/http knows, so that TLS with the site is the
		// transport's, on a connection that leads there.
		t.DialContext = func(ctx context.Context, _, site string) (net.Conn, error) {
			return p.connectTo(ctx, via, reached, func(conn net.Conn) (net.Conn, error) {
				if err := socksTunnel(ctx, conn, site, via.Proof); err != nil {
					return nil, err
				}
				reached(tunnelled)
				return conn, nil
			})
		}
		return t
	}
	proxyURL := &url.URL{Scheme: via.Protocol, Host: net.JoinHostPort(via.host, strconv.Itoa(via.port))}
	if via.Proof != nil {
		// They go with CONNECT or with the absolute-form request, and never through
		// the tunnel.
		proxyURL.User = url.UserPassword(via.Proof.Username, via.Proof.Password)
	}
	t.Proxy = http.ProxyURL(proxyURL)
	t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return p.connectTo(ctx, via, reached, func(conn net.Conn) (net.Conn, error) { return conn, nil })
	}
	// For TLS with the proxy itself; with the site it is the transport's.
	t.DialTLSContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return p.connectTo(ctx, via, reached, func(conn net.Conn) (net.Conn, error) {
			return secure(ctx, conn, via.Approach)
		})
	}
	// Otherwise the status of a refused CONNECT is lost in an error's text.
	t.OnProxyConnectResponse = func(_ context.Context, _ *url.URL, _ *http.Request, res *http.Response) error {
		if res.StatusCode != http.StatusOK { // net/http takes no other
			return &connectError{res.StatusCode}
		}
		reached(tunnelled)
		return nil
	}
	return t
}

// connectTo dials the proxy, and has prepare make of that what net/http is to send
// its request on. What comes unasked after that is not read: patience begins only
// here, since prepare asks for itself. It also keeps net/http from taking TLS with
// the proxy for TLS with the site.
func (p *prober) connectTo(ctx context.Context, via through, reached func(stage), prepare func(net.Conn) (net.Conn, error)) (net.Conn, error) {
	addresses, err := p.resolve(ctx, via.host)
	if err != nil {
		return nil, err
	}
	reached(located)
	conn, err := p.dial(ctx, addresses, via.port)
	if err != nil {
		return nil, err
	}
	reached(dialled)
	ready, err := prepare(conn)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return newPatient(ready), nil
}

// proxyTLSError is TLS that a proxy did not bring about.
type proxyTLSError struct{ error }

func (e *proxyTLSError) Unwrap() error { return e.error }

// secure speaks TLS with the proxy at the other end of conn.
func secure(ctx context.Context, conn net.Conn, with fleet.Approach) (net.Conn, error) {
	config := &tls.Config{ServerName: with.ServerName, MinVersion: tls.VersionTLS12}
	if with.Authorities != nil {
		config.RootCAs = with.Authorities.Pool
	}
	client := tls.Client(conn, config)
	if err := client.HandshakeContext(ctx); err != nil {
		return nil, &proxyTLSError{err}
	}
	return client, nil
}

// failure is a failed probe. The names in its message are a Proxy's own, which may be
// long and hold anything where no CRD forbids it; a verdict keeps what a person reads.
func failure(reason, message string) result {
	const most = 300
	message = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, message)
	if len(message) > most {
		message = strings.ToValidUTF8(message[:most], "") + "…"
	}
	return result{reason: reason, message: message}
}
