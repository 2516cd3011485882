// Package origin is the site at the far end of a proxy: a TLS and a plain HTTP server that
// tell every caller which address it came from, so that a test can prove that a request
// really left through the proxy that it was meant to.
//
// The certificate comes from a CA made at start and known to nobody else: who connects without
// verifying, or is intercepted on the way, is found out. Traded away: nothing survives a
// restart, the CA included.
//
// What it answers: any path with 200 and a Reply; /generate_204 and every HEAD with 204;
// /status/NNN with that status, for probes that must fail.
package origin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/internal/testkit/certs"
)

const loopback = "127.0.0.1:0"

// Reply is the JSON that a GET is answered with.
type Reply struct {
	// RemoteAddr is the caller's IP address, without the port.
	RemoteAddr string `json:"remoteAddr"`
	Host       string `json:"host"`
	Path       string `json:"path"`
	TLS        bool   `json:"tls"`
}

// Options say where to listen. Empty means a free port of 127.0.0.1.
type Options struct {
	Addr      string // of the TLS server
	PlainAddr string
}

// Server is a running pair of origins.
type Server struct {
	URL      string // https://host:port
	PlainURL string // http://host:port
	CAPEM    []byte // the certificate that signed the TLS server's

	tls, plain *http.Server
}

// Run starts both servers and returns once they accept. They outlive ctx.
func Run(ctx context.Context, options Options) (*Server, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", orLoopback(options.Addr))
	if err != nil {
		return nil, err
	}
	plain, err := config.Listen(ctx, "tcp", orLoopback(options.PlainAddr))
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	certificate, caPEM, err := certificateFor(listener.Addr().(*net.TCPAddr).IP)
	if err != nil {
		return nil, errors.Join(err, listener.Close(), plain.Close())
	}
	s := &Server{
		URL:      "https://" + listener.Addr().String(),
		PlainURL: "http://" + plain.Addr().String(),
		CAPEM:    caPEM,
		tls:      newServer(),
		plain:    newServer(),
	}
	s.tls.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}}
	go func() { _ = s.tls.ServeTLS(listener, "", "") }()
	go func() { _ = s.plain.Serve(plain) }()
	return s, nil
}

// certificateFor makes an authority, and a certificate of it for the address,
// loopback and localhost.
func certificateFor(address net.IP) (tls.Certificate, []byte, error) {
	ca, err := certs.NewAuthority("proxy-operator test origin CA")
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	pair, err := ca.Issue(address.String(), "127.0.0.1", "::1", "localhost")
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	certificate, err := pair.TLS()
	return certificate, ca.PEM, err
}

// Start is Run for a test: it ends with it.
func Start(t testing.TB) *Server {
	t.Helper()
	s, err := Run(t.Context(), Options{})
	if err != nil {
		t.Fatalf("start origin: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Close drops every connection.
func (s *Server) Close() error { return errors.Join(s.tls.Close(), s.plain.Close()) }

// Shutdown lets requests finish until ctx ends.
func (s *Server) Shutdown(ctx context.Context) error {
	return errors.Join(s.tls.Shutdown(ctx), s.plain.Shutdown(ctx))
}

// CertPool holds the CA, for a client's RootCAs.
func (s *Server) CertPool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.CAPEM)
	return pool
}

// Addr is the host:port of the TLS server, as a CONNECT wants it.
func (s *Server) Addr() string { return strings.TrimPrefix(s.URL, "https://") }

// Fetch gets a page of an origin, given by its URL, and returns what it said.
func Fetch(ctx context.Context, client *http.Client, page string) (Reply, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return Reply{}, err
	}
	response, err := client.Do(request)
	if err != nil {
		return Reply{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return Reply{}, fmt.Errorf("fetch %s: %s", page, response.Status)
	}
	var reply Reply
	if err := json.NewDecoder(response.Body).Decode(&reply); err != nil {
		return Reply{}, fmt.Errorf("fetch %s: %w", page, err)
	}
	return reply, nil
}

// Crawler is a client that goes through the forward proxy at proxyURL, as a lease's url is
// given, and trusts nobody but roots. It keeps no connection.
func Crawler(proxyURL string, roots *x509.CertPool) (*http.Client, error) {
	through, err := url.Parse(proxyURL)
	if err != nil {
		return nil, err
	}
	return &http.Client{
		Transport: &http.Transport{
			Proxy:             http.ProxyURL(through),
			TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			DisableKeepAlives: true,
		},
		Timeout: 15 * time.Second,
	}, nil
}

func newServer() *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(answer),
		ReadHeaderTimeout: 10 * time.Second,
		// Handshakes that a test breaks on purpose are no news.
		ErrorLog: log.New(io.Discard, "", 0),
	}
}

func answer(w http.ResponseWriter, r *http.Request) {
	if code, ok := strings.CutPrefix(r.URL.Path, "/status/"); ok {
		status, err := strconv.Atoi(code)
		if err != nil || status < 200 || status > 599 {
			http.Error(w, "want /status/NNN with 200 to 599", http.StatusBadRequest)
			return
		}
		w.WriteHeader(status)
		return
	}
	if r.URL.Path == "/generate_204" || r.Method == http.MethodHead {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	address, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		http.Error(w, fmt.Sprintf("read the caller's address: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(Reply{RemoteAddr: address, Host: r.Host, Path: r.URL.Path, TLS: r.TLS != nil})
}

func orLoopback(address string) string {
	if address == "" {
		return loopback
	}
	return address
}
