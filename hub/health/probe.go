package health

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// maxBody is how much of an answer's body is read: the verdict needs none of
// it, and a body may never end.
const maxBody = 64 << 10

// prober probes through one proxy at a time; it keeps nothing between probes.
type prober struct {
	// roots verify the probed site's certificate; nil for the system's.
	roots *x509.CertPool
}

// connectError is a CONNECT that was not answered with 2xx.
type connectError struct {
	status string // as a quoter words it
	code   int
}

func (e *connectError) Error() string { return "the proxy answered CONNECT with " + e.status }

// probe fetches target through the proxy at endpoint: an https target through
// a CONNECT tunnel, an http one as an absolute-form request. The proxy, and
// nobody behind it, is shown proof where it is not nil. The transport is
// fresh, so that the tunnel is exercised each time and none is kept. It ends
// with ctx.
func (p *prober) probe(ctx context.Context, endpoint, target string, proof *fleet.Credentials) result {
	began := time.Now()
	// The transport's goroutines may outlive the request, hence the atomic.
	var at atomic.Int32
	reached := func(st stage) { at.Store(int32(st)) }
	quote := quoter{secret: proof != nil}
	transport := p.transport(endpoint, proof, quote, reached)
	defer transport.CloseIdleConnections()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		TLSHandshakeDone: func(_ tls.ConnectionState, err error) {
			if err == nil {
				reached(secured)
			}
		},
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return failure(v1alpha1.ReasonUnexpectedStatus, "the probe's URL is not usable")
	}
	req.Header.Set("User-Agent", "proxy-operator-probe")
	client := &http.Client{
		Transport: transport,
		// A redirect is the site's answer; following it would probe another one.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	res, err := client.Do(req)
	if err != nil {
		return explain(err, stage(at.Load()), quote)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusProxyAuthRequired {
		return failure(v1alpha1.ReasonProxyAuthRequired, quote.refusal("the proxy answered "+quote.status(res)))
	}
	if res.StatusCode/100 != 2 {
		return failure(v1alpha1.ReasonUnexpectedStatus, "the probe's URL answered "+quote.status(res))
	}
	latency := time.Since(began)
	if _, err := io.Copy(io.Discard, io.LimitReader(res.Body, maxBody)); err != nil {
		return explain(err, stage(at.Load()), quote)
	}
	return result{ok: true, reason: v1alpha1.ReasonProbeSucceeded, message: "the probe passed", latency: latency}
}

// transport goes through the proxy at endpoint and says how far it got.
func (p *prober) transport(endpoint string, proof *fleet.Credentials, quote quoter, reached func(stage)) *http.Transport {
	dialer := net.Dialer{}
	via := &url.URL{Scheme: "http", Host: endpoint}
	if proof != nil {
		// They go with CONNECT or with the absolute-form request, and never through
		// the tunnel.
		via.User = url.UserPassword(proof.Username, proof.Password)
	}
	return &http.Transport{
		Proxy:             http.ProxyURL(via),
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: p.roots, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			reached(dialled)
			return newPatient(conn), nil
		},
		// Otherwise the status of a refused CONNECT is lost in an error's text.
		OnProxyConnectResponse: func(_ context.Context, _ *url.URL, _ *http.Request, res *http.Response) error {
			if res.StatusCode/100 != 2 {
				return &connectError{quote.status(res), res.StatusCode}
			}
			reached(tunnelled)
			return nil
		},
		MaxResponseHeaderBytes: maxBody,
	}
}

// failure is a failed probe. What a proxy says may be long; a verdict keeps
// what a person reads.
func failure(reason, message string) result {
	const most = 300
	if len(message) > most {
		message = strings.ToValidUTF8(message[:most], "") + "…"
	}
	return result{reason: reason, message: message}
}

// exhausted says that the hub's own machine has run out of something: no fault
// of the proxy's.
func exhausted(err error) bool {
	for _, own := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, own) {
			return true
		}
	}
	return false
}

// stage is how far a probe got.
type stage int32

const (
	nowhere   stage = iota
	dialled         // the proxy accepted the connection
	tunnelled       // it answered CONNECT with 2xx
	secured         // the site was verified through the tunnel
)

// explain says what failed, so that an admin can act.
func explain(err error, at stage, quote quoter) result {
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	var refused *connectError
	switch {
	case exhausted(err):
		return result{void: true, message: err.Error()}
	case errors.As(err, &refused) && refused.code == http.StatusProxyAuthRequired:
		return failure(v1alpha1.ReasonProxyAuthRequired, quote.refusal(refused.Error()))
	case errors.As(err, &refused):
		return failure(v1alpha1.ReasonConnectRefused, refused.Error())
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return failure(v1alpha1.ReasonTimeout, map[stage]string{
			nowhere:   "the proxy does not accept a connection in time",
			dialled:   "the proxy accepted the connection, but no answer came in time",
			tunnelled: "the tunnel is open, but no answer to the TLS handshake came in time",
			secured:   "the probe's URL did not answer in time",
		}[at])
	case at == nowhere:
		return failure(v1alpha1.ReasonDialFailed, err.Error())
	case at == dialled:
		return failure(v1alpha1.ReasonConnectRefused, "the connection broke before an answer: "+quote.err(err))
	case at == tunnelled:
		return failure(v1alpha1.ReasonTLSFailed, quote.err(err))
	default:
		return failure(v1alpha1.ReasonUnexpectedStatus, "the answer of the probe's URL broke off: "+quote.err(err))
	}
}
