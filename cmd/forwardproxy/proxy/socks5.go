package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"
)

const (
	firstAcceptPause = 5 * time.Millisecond
	maxAcceptPause   = time.Second
)

// socks5Server is the front for SOCKS5. The messages are in socks5_messages.go.
type socks5Server struct {
	base  context.Context // ends what is being dialled
	log   *slog.Logger
	dial  dialFunc
	proof *proof        // nil: none is asked for
	limit time.Duration // of the client's part of the handshake
}

func newSOCKS5Server(base context.Context, options Options) *socks5Server {
	return &socks5Server{
		base:  base,
		log:   options.Logger,
		dial:  newDialer(options),
		proof: newProof(options.Credentials),
		limit: options.HeaderTimeout,
	}
}

// Serve accepts until the listener is closed.
func (s *socks5Server) Serve(listener net.Listener) error {
	pause := firstAcceptPause
	for {
		c, err := listener.Accept()
		var errno syscall.Errno
		switch {
		case err == nil:
			pause = firstAcceptPause
			go s.handle(c.(*conn))
		case errors.As(err, &errno) && errno.Temporary():
			// Out of file descriptors: until some tunnels end, to try at once is of no use.
			s.log.Warn("cannot accept", "error", err, "pause", pause)
			select {
			case <-time.After(pause):
			case <-s.base.Done():
			}
			pause = min(2*pause, maxAcceptPause)
		default:
			return err
		}
	}
}

// Shutdown has nothing to do: no connection is idle between requests, each is there for one
// tunnel, and for those there is the connSet.
func (s *socks5Server) Shutdown(context.Context) error { return nil }

func (s *socks5Server) handle(client *conn) {
	defer client.Close()
	// One deadline for all that the client has to say, so that it gains nothing by saying it
	// byte by byte.
	_ = client.SetDeadline(time.Now().Add(s.limit))
	address, err := s.handshake(client)
	var no refusal
	switch {
	case errors.As(err, &no):
		client.hangUp(no)
		return
	case err != nil:
		return
	}
	client.begin()

	target, err := s.dial(s.base, "tcp", address)
	if err != nil {
		answer := replyTo(err)
		if !errors.Is(err, context.Canceled) {
			s.log.Warn("target unreachable", "method", http.MethodConnect, "target", address, "reply", answer.String(), "error", cause(err))
		}
		client.hangUp(answer.message(nil))
		return
	}
	defer target.Close()
	// Relaying waits for the target too, which does not know that the proxy ends.
	stop := context.AfterFunc(s.base, func() { _ = target.Close() })
	defer stop()
	_ = client.SetDeadline(time.Now().Add(s.limit))
	if _, err := client.Write(succeeded.message(target.LocalAddr())); err != nil {
		return
	}
	if err := client.SetDeadline(time.Time{}); err != nil {
		return
	}
	relay(client, target)
}

// handshake returns the target that the client asks for. It reads not a byte more: what
// follows is the tunnel's, and the kernel's to pass on.
func (s *socks5Server) handshake(client *conn) (address string, err error) {
	if err := authenticate(client, s.proof); err != nil {
		return "", err
	}
	return readRequest(client)
}

// replyTo is the reply that tells a client why its target cannot be reached.
func replyTo(err error) reply {
	var name *net.DNSError
	var address *net.AddrError
	switch {
	case timedOut(err):
		// The protocol has no code for it. This one, whose cause only shows as silence, keeps
		// it apart from a host that is known to be unreachable, as 504 is from 502.
		return ttlExpired
	case errors.Is(err, syscall.ECONNREFUSED):
		return connectionRefused
	case errors.Is(err, syscall.EHOSTUNREACH), errors.As(err, &name):
		return hostUnreachable
	case errors.Is(err, syscall.ENETUNREACH), errors.As(err, &address):
		// An AddrError: the target has no address of the bind address's family.
		return networkUnreachable
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return notAllowed // by a firewall of this host
	}
	return generalFailure
}
