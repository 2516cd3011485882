// Package proxy is a plain HTTP forward proxy: CONNECT tunnels, and absolute-form requests for
// http URLs. It is what our pods run, and what tests that need a real proxy start in process.
//
// goproxy does the forwarding. This package adds what a server that faces crawlers needs around
// it: limits on how long a peer may take to send its headers, to be connected to or to end the
// other half of a tunnel, credentials if it is to demand them, requests refused with a sentence
// that says what to send instead, 502 and 504 with a reason where goproxy says 500 or nothing,
// an outgoing address of its own, and a shutdown that knows about tunnels (net/http forgets a
// connection once it is hijacked).
//
// Traded away: there is no access log, because a proxy's requests are its clients' business
// and a busy one would drown its node's disk; only the proxy's own life and failed targets are
// logged. Proxies named in the environment are ignored: what leaves here leaves from here. A tunnel
// that is open in both directions has no idle limit; TCP keep-alive ends the dead ones.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/elazarl/goproxy"
)

const (
	defaultDialTimeout       = 10 * time.Second
	defaultDrainTimeout      = 5 * time.Second
	defaultHalfClosedTimeout = time.Minute

	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 90 * time.Second
	maxHeaderBytes    = 64 << 10
)

// Options configure a Server. The zero value listens on a free port of all interfaces.
type Options struct {
	// Port to listen on; 0 lets the kernel choose, see Server.Addr.
	Port uint16
	// BindAddress, when valid, is the only address listened on, and the source of every
	// outgoing connection, so that a host with several addresses leaves by the right one.
	BindAddress netip.Addr
	// DialTimeout limits name resolution and connecting to a target. Default 10s.
	DialTimeout time.Duration
	// DrainTimeout is what open connections get to finish in after the end. Default 5s.
	DrainTimeout time.Duration
	// HalfClosedTimeout is how long one direction of a tunnel may outlive the other. Default 1m.
	HalfClosedTimeout time.Duration
	// Credentials, when not nil, are demanded of every request (407).
	Credentials *Credentials
	// Logger defaults to discarding.
	Logger *slog.Logger
}

// Server is a listening proxy. Make it with Listen, then call Serve once.
type Server struct {
	log      *slog.Logger
	listener net.Listener
	conns    *connSet
	http     *http.Server
	drain    time.Duration
	guarded  bool
	// abort ends what is still being dialled once draining is over.
	abort context.CancelFunc
}

// Listen opens the port, so that the address is known and taken before Serve runs. What ctx
// ends is this call alone.
func Listen(ctx context.Context, options Options) (*Server, error) {
	if options.DialTimeout == 0 {
		options.DialTimeout = defaultDialTimeout
	}
	if options.DrainTimeout == 0 {
		options.DrainTimeout = defaultDrainTimeout
	}
	if options.HalfClosedTimeout == 0 {
		options.HalfClosedTimeout = defaultHalfClosedTimeout
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	host := ""
	if options.BindAddress.IsValid() {
		host = options.BindAddress.String()
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(options.Port))))
	if err != nil {
		return nil, err
	}
	base, abort := context.WithCancel(context.WithoutCancel(ctx))
	s := &Server{log: options.Logger, drain: options.DrainTimeout, guarded: options.Credentials != nil, abort: abort}
	s.conns = newConnSet(options.HalfClosedTimeout)
	s.listener = &trackingListener{Listener: listener, conns: s.conns}
	s.http = &http.Server{
		Handler:           gate(guard(options.Credentials, newForwarder(options))),
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(options.Logger.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return base },
	}
	return s, nil
}

// Addr is the address listened on.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Serve proxies until ctx ends, then stops accepting and lets open requests and tunnels finish
// within the drain timeout before it cuts them. Being asked to end is not an error.
func (s *Server) Serve(ctx context.Context) error {
	defer s.abort()
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(s.listener) }()
	s.log.Info("listening", "address", s.Addr(), "authentication", s.guarded)
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}

	s.log.Info("draining", "connections", s.conns.count(), "limit", s.drain)
	deadline, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.drain)
	defer cancel()
	// Shutdown ends the listener and idle connections and waits for plain requests; its only
	// error here is the deadline, which conns.wait meets as well.
	_ = s.http.Shutdown(deadline)
	s.conns.wait(deadline)
	s.log.Info("stopped", "cut", s.conns.closeAll())
	return nil
}

// newForwarder is goproxy set up to forward and nothing else.
func newForwarder(options Options) *goproxy.ProxyHttpServer {
	dialer := &net.Dialer{Timeout: options.DialTimeout}
	if options.BindAddress.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(options.BindAddress, 0))
	}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &conn{TCPConn: c.(*net.TCPConn), halfClosed: options.HalfClosedTimeout}, nil
	}

	p := goproxy.NewProxyHttpServer()
	// goproxy warns here of every connection that a peer cuts short; failures that matter
	// are logged below.
	p.Logger = log.New(io.Discard, "", 0)
	// The defaults take an upstream proxy from the environment and do not verify TLS.
	p.ConnectDial = nil
	p.Tr = &http.Transport{
		DialContext:     dial,
		IdleConnTimeout: idleTimeout,
		// Bodies pass as the client asked for them.
		DisableCompression: true,
	}
	p.KeepAcceptEncoding = true
	p.ConnectionErrHandler = func(client io.Writer, ctx *goproxy.ProxyCtx, err error) {
		status, reason := unreachable(options.Logger, ctx.Req, err)
		fmt.Fprintf(client, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\n"+
			"Content-Length: %d\r\nConnection: close\r\n\r\n%s", status, http.StatusText(status), len(reason), reason)
	}
	p.OnResponse().DoFunc(func(resp *http.Response, ctx *goproxy.ProxyCtx) *http.Response {
		if resp != nil || ctx.Error == nil {
			return resp
		}
		status, reason := unreachable(options.Logger, ctx.Req, ctx.Error)
		return goproxy.NewResponse(ctx.Req, "text/plain; charset=utf-8", status, reason)
	})
	return p
}

// unreachable logs and words the failure to reach a request's target. Only the host is told:
// paths and queries may hold a client's secrets.
func unreachable(log *slog.Logger, r *http.Request, err error) (status int, reason string) {
	status = http.StatusBadGateway
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		status = http.StatusGatewayTimeout
	}
	// Without its wrapping, which names the proxy's own addresses.
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		err = op.Err
	}
	if !errors.Is(err, context.Canceled) {
		log.Warn("target unreachable", "method", r.Method, "target", r.URL.Host, "status", status, "error", err)
	}
	return status, fmt.Sprintf("The proxy cannot reach %s: %v\n", r.URL.Host, err)
}

// gate refuses what a forward proxy cannot serve, saying what to send instead.
func gate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		problem := ""
		switch {
		case r.Method == http.MethodConnect:
			if _, port, err := net.SplitHostPort(r.URL.Host); err != nil || !validPort(port) {
				problem = "CONNECT needs a target of the form host:port."
			}
		case !r.URL.IsAbs() || r.URL.Host == "":
			problem = "This is a forward proxy: send CONNECT host:port, or a request for an absolute http:// URL."
		case r.URL.Scheme != "http":
			problem = "Only http:// URLs can be requested in absolute form: use CONNECT for " + r.URL.Scheme + "."
		}
		if problem != "" {
			http.Error(w, problem, http.StatusBadRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func validPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}
