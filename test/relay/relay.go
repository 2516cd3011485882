// Package relay carries TCP connections on: it listens on one address and copies between each
// client and whatever address a function names at that moment. It is what host ports and load
// balancers consist of where there is no kernel to rewrite packets for them.
//
// A client sees of its target what it would see without a relay, as far as that can be told
// over a second connection: bytes, half-close and reset. Traded away: a target that is not to
// be reached is found out only after the client's connection was accepted, which then is reset
// instead of refused, and the target sees the relay's address.
package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	dialTimeout = 5 * time.Second
	acceptRetry = 50 * time.Millisecond
)

// Target says where a new connection is to go, as host:port; false means nowhere for now. It
// is called for every connection, from several goroutines.
type Target func() (address string, ok bool)

// Relay is a listener and the connections that came from it.
type Relay struct {
	listener net.Listener
	end      context.CancelFunc
	running  sync.WaitGroup
}

// Listen starts a relay on an address; port 0 stands for any, see Addr.
func Listen(ctx context.Context, address netip.AddrPort, target Target) (*Relay, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address.String())
	if err != nil {
		return nil, err
	}
	return Start(ctx, listener, target), nil
}

// Start starts a relay on a listener, which is the relay's from then on. The end of ctx is
// Close without the wait.
func Start(ctx context.Context, listener net.Listener, target Target) *Relay {
	ctx, end := context.WithCancel(ctx)
	r := &Relay{listener: listener, end: end}
	r.running.Go(func() { r.accept(ctx, target) })
	return r
}

// Addr is where the relay listens.
func (r *Relay) Addr() net.Addr { return r.listener.Addr() }

// Close stops listening, ends all connections and returns when nothing is left of them. It may
// be called more than once.
func (r *Relay) Close() {
	r.Retire(0)
	r.Wait()
}

// Retire stops listening at once; another may listen on the address when it returns. What
// connections there are have the grace to end by themselves, then they are ended.
func (r *Relay) Retire(grace time.Duration) {
	_ = r.listener.Close()
	if grace <= 0 {
		r.end()
		return
	}
	time.AfterFunc(grace, r.end)
}

// Wait returns when the relay has stopped listening and its last connection has ended.
func (r *Relay) Wait() { r.running.Wait() }

func (r *Relay) accept(ctx context.Context, target Target) {
	defer closeWith(ctx, r.listener)()
	for {
		client, err := r.listener.Accept()
		switch {
		case err == nil:
			r.running.Go(func() { carry(ctx, client, target) })
		case errors.Is(err, net.ErrClosed):
			return
		default:
			// Too many open files, say: of no concern to those that run.
			select {
			case <-ctx.Done():
				return
			case <-time.After(acceptRetry):
			}
		}
	}
}

// carry is the life of one connection.
func carry(ctx context.Context, client net.Conn, target Target) {
	defer client.Close()
	address, ok := target()
	if !ok {
		reset(client)
		return
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	server, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		reset(client)
		return
	}
	defer server.Close()
	defer closeWith(ctx, client, server)()
	var back sync.WaitGroup
	back.Go(func() { pass(client, server) })
	pass(server, client)
	back.Wait()
}

// pass copies one direction to its end and passes that on: a half-close as one, an error as a
// reset of both sides, which ends the other direction too.
func pass(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		reset(to)
		reset(from)
		return
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	} else {
		_ = to.Close()
	}
}

func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// closeWith closes everything when ctx ends. The function that it returns calls that off, or
// waits for it if it is under way.
func closeWith(ctx context.Context, closers ...io.Closer) (release func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		for _, c := range closers {
			_ = c.Close()
		}
	})
	return func() {
		if !stop() {
			<-done
		}
	}
}
