// Package proxy is a forward proxy that clients speak to by one of three protocols: HTTP, with
// CONNECT tunnels and absolute-form requests for http URLs; HTTPS, which is the same inside
// TLS; and SOCKS5, its CONNECT alone. It is what our pods run, and what tests that need a real
// proxy start in process.
//
// For HTTP and HTTPS goproxy does the forwarding; SOCKS5 is written here, for want of a library
// that is looked after. Around both is what a server that faces crawlers needs: limits on how
// long a peer may take to say what it wants, to be connected to or to end the other half of a
// tunnel, credentials if it is to demand them, requests refused in words, or in the reply codes
// that SOCKS5 has, an outgoing address of its own, and a shutdown that knows about tunnels
// (net/http forgets a connection once it is hijacked). The kernel moves a tunnel's bytes by
// itself where neither side is in TLS.
//
// Traded away: there is no access log, because a proxy's requests are its clients' business
// and a busy one would drown its node's disk; only the proxy's own life, failed targets and,
// once a minute, failed TLS handshakes are logged. Proxies named in the environment are
// ignored: what leaves here leaves from here. A tunnel that is open in both directions has no
// idle limit; TCP keep-alive ends the dead ones. HTTP/2 is not offered to clients, and neither
// are SOCKS5's BIND and UDP ASSOCIATE: a crawler needs none of them, and each is a way in.
package proxy

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"time"
)

const (
	defaultDialTimeout       = 10 * time.Second
	defaultDrainTimeout      = 5 * time.Second
	defaultHalfClosedTimeout = time.Minute
	defaultHeaderTimeout     = 10 * time.Second

	idleTimeout    = 90 * time.Second
	maxHeaderBytes = 64 << 10
)

// Options configure a Server. The zero value speaks HTTP on a free port of all interfaces.
type Options struct {
	// Protocol that clients speak. Default HTTP.
	Protocol Protocol
	// Certificate, with its private key, that clients are shown: with HTTPS, and only there.
	Certificate *tls.Certificate
	// Port to listen on; 0 lets the kernel choose, see Server.Addr.
	Port uint16
	// BindAddress, when valid, is the only address listened on, and the source of every
	// outgoing connection, so that a host with several addresses leaves by the right one.
	BindAddress netip.Addr
	// HeaderTimeout is how long a client may take to say what it wants: the TLS handshake and
	// a request's headers, or the SOCKS5 handshake. Default 10s.
	HeaderTimeout time.Duration
	// DialTimeout limits name resolution and connecting to a target. Default 10s.
	DialTimeout time.Duration
	// DrainTimeout is what open connections get to finish in after the end. Default 5s.
	DrainTimeout time.Duration
	// HalfClosedTimeout is how long one direction of a tunnel may outlive the other. Default 1m.
	HalfClosedTimeout time.Duration
	// Credentials, when not nil, are demanded of every request, or every SOCKS5 connection.
	Credentials *Credentials
	// Logger defaults to discarding.
	Logger *slog.Logger
}

// Server is a listening proxy. Make it with Listen, then call Serve once.
type Server struct {
	log      *slog.Logger
	listener net.Listener
	conns    *connSet
	front    front
	// accepting is listener, with TLS if the front's clients speak it.
	accepting net.Listener
	protocol  Protocol
	drain     time.Duration
	guarded   bool
	// abort ends what is still being dialled once draining is over.
	abort context.CancelFunc
}

// front speaks the protocol of the clients.
type front interface {
	// Serve accepts until the listener is closed.
	Serve(net.Listener) error
	// Shutdown ends connections that wait for another request, now and as they come to,
	// until there are none left or ctx ends.
	Shutdown(ctx context.Context) error
}

// Listen opens the port, so that the address is known and taken before Serve runs. Options
// that cannot be meant together are an error. What ctx ends is this call alone.
func Listen(ctx context.Context, options Options) (*Server, error) {
	if err := options.check(); err != nil {
		return nil, err
	}
	options.setDefaults()
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
	s := &Server{
		log:      options.Logger,
		protocol: options.Protocol,
		drain:    options.DrainTimeout,
		guarded:  options.Credentials != nil,
		abort:    abort,
	}
	s.conns = newConnSet(options.HalfClosedTimeout)
	s.listener = &trackingListener{Listener: listener, conns: s.conns}
	s.accepting = s.listener
	switch options.Protocol {
	case SOCKS5:
		s.front = newSOCKS5Server(base, options)
	case HTTPS:
		s.accepting = newTLSListener(s.listener, options)
		fallthrough
	default:
		s.front = newHTTPServer(base, options)
	}
	return s, nil
}

func (o *Options) setDefaults() {
	for _, timeout := range []struct {
		value *time.Duration
		none  time.Duration
	}{
		{&o.HeaderTimeout, defaultHeaderTimeout},
		{&o.DialTimeout, defaultDialTimeout},
		{&o.DrainTimeout, defaultDrainTimeout},
		{&o.HalfClosedTimeout, defaultHalfClosedTimeout},
	} {
		if *timeout.value == 0 {
			*timeout.value = timeout.none
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Addr is the address listened on.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Serve proxies until ctx ends, then stops accepting and lets open requests and tunnels finish
// within the drain timeout before it cuts them. Being asked to end is not an error.
func (s *Server) Serve(ctx context.Context) error {
	defer s.abort()
	served := make(chan error, 1)
	go func() { served <- s.front.Serve(s.accepting) }()
	s.log.Info("listening", "address", s.Addr(), "protocol", s.protocol.String(), "authentication", s.guarded)
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}

	_ = s.listener.Close()
	s.conns.drain()
	s.log.Info("draining", "connections", s.conns.count(), "limit", s.drain)
	deadline, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.drain)
	defer cancel()
	// Beside the wait and not before it: TLS is ended with words that a stalled client may
	// not take, and then it takes closeAll to get on. Its only error here is the deadline,
	// which conns.wait meets as well.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.front.Shutdown(deadline)
	}()
	s.conns.wait(deadline)
	s.log.Info("stopped", "cut", s.conns.closeAll())
	<-ended
	return nil
}
