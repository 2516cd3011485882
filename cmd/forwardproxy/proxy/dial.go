package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
)

// dialFunc connects to a target by its host:port.
type dialFunc func(ctx context.Context, network, address string) (*conn, error)

func newDialer(options Options) dialFunc {
	dialer := &net.Dialer{Timeout: options.DialTimeout}
	if options.BindAddress.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(options.BindAddress, 0))
	}
	return func(ctx context.Context, network, address string) (*conn, error) {
		c, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &conn{TCPConn: c.(*net.TCPConn), halfClosed: options.HalfClosedTimeout}, nil
	}
}

func timedOut(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// cause is err without its wrapping, which names the proxy's own addresses.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Err
	}
	return err
}
