package clients

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// goClient is net/http.
type goClient struct{}

// Go is net/http, which is there wherever this package is.
func Go() Client { return goClient{} }

func (goClient) Name() string { return "go" }

func (goClient) Supports(string) (ok bool, why string) { return true, "" }

func (c goClient) fetch(ctx context.Context, j job) (status int, body []byte, err error) {
	proxy, err := url.Parse(j.lease.secrets().url)
	if err != nil {
		return 0, nil, errors.New("net/url cannot parse proxy.url") // err quotes it
	}
	transport := &http.Transport{
		Proxy:                  http.ProxyURL(proxy),
		TLSClientConfig:        &tls.Config{RootCAs: roots(j.siteCA), MinVersion: tls.VersionTLS12},
		OnProxyConnectResponse: connectAnswered,
	}
	defer transport.CloseIdleConnections()
	if j.lease.Protocol == "https" {
		transport.DialTLSContext = proxyDialer(j.lease)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, j.page, nil)
	if err != nil {
		return 0, nil, err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, nil, &Error{Client: c.Name(), Refused: refused(err), Said: j.lease.quote(err.Error())}
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	if err != nil {
		return 0, nil, &Error{Client: c.Name(), Said: j.lease.quote(err.Error())}
	}
	return response.StatusCode, body, nil
}

// proxyDialer verifies an https proxy. TLSClientConfig cannot: it is the site's, whose name and
// CA are others. net/http dials the proxy, and nothing else, with a transport's DialTLSContext
// where there is one: it makes the TLS of the site, inside the tunnel, itself.
func proxyDialer(l Lease) func(ctx context.Context, network, address string) (net.Conn, error) {
	name := l.ServerName
	if name == "" {
		name = l.Host
	}
	dialer := &tls.Dialer{Config: &tls.Config{ServerName: name, RootCAs: roots([]byte(l.CA)), MinVersion: tls.VersionTLS12}}
	return dialer.DialContext
}

// roots holds the certificates of a PEM; nil, for the system's, if it is empty.
func roots(pem []byte) *x509.CertPool {
	if len(pem) == 0 {
		return nil
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem) // known to have some
	return pool
}

// errConnect is a proxy's answer to CONNECT.
type errConnect struct{ status int }

func (e errConnect) Error() string {
	return fmt.Sprintf("CONNECT is answered with %d %s", e.status, http.StatusText(e.status))
}

// connectAnswered tells only what net/http would turn into a text, so that the status is known.
func connectAnswered(_ context.Context, _ *url.URL, _ *http.Request, answer *http.Response) error {
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	return errConnect{answer.StatusCode}
}

func refused(err error) bool {
	var connect errConnect
	if errors.As(err, &connect) {
		return connect.status == http.StatusProxyAuthRequired
	}
	// For SOCKS there are only words.
	return strings.HasSuffix(err.Error(), "username/password authentication failed") ||
		strings.HasSuffix(err.Error(), "no acceptable authentication methods")
}
