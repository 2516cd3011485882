package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

const (
	// headStart is what one address of several gets before the next is tried
	// beside it: the Connection Attempt Delay that RFC 8305 recommends.
	headStart = 250 * time.Millisecond
	// maxAddresses is how many addresses of a name are tried.
	maxAddresses = 4
)

// Resolver looks up the addresses of a name. *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// dialer connects to proxies, and to nothing that cannot be one.
type dialer struct {
	resolver Resolver
	// allowLocal dials addresses that are fleet.Forbidden otherwise.
	allowLocal bool
	// connect dials an address; net.Dialer's DialContext where nil. Tests route
	// public addresses to local listeners with it.
	connect func(ctx context.Context, network, address string) (net.Conn, error)
}

// forbiddenError is an endpoint that may not be dialled.
type forbiddenError struct{ message string }

func (e *forbiddenError) Error() string { return e.message }

// lookupError is a name that leads nowhere.
type lookupError struct {
	host string
	err  error
}

func (e *lookupError) Unwrap() error { return e.err }

// Error is in our own words: the resolver's may hold the addresses of the name server
// that was asked and of the hub, which are none of a Proxy's reader.
func (e *lookupError) Error() string {
	var dns *net.DNSError
	switch found := errors.As(e.err, &dns); {
	case errors.Is(e.err, errNoAddress):
		return "lookup " + e.host + ": the name has no address"
	case found && dns.IsNotFound:
		return "lookup " + e.host + ": no such host"
	case found && dns.IsTimeout:
		return "lookup " + e.host + ": the name server does not answer in time"
	default:
		return "lookup " + e.host + ": the name server gives no usable answer"
	}
}

// errNoAddress is an answer with nothing in it.
var errNoAddress = errors.New("no address")

// dialError is an address that does not accept a connection.
type dialError struct {
	address netip.Addr
	port    int
	err     error
}

func (e *dialError) Unwrap() error { return e.err }

// beyond says that the hub has no address from which to reach one of IPv6: it will
// have none the next time. Of IPv4 the same error says that its ports are used up.
func (e *dialError) beyond() bool {
	return e.address.Is6() && errors.Is(e.err, syscall.EADDRNOTAVAIL)
}

// Error names the address that was dialled, and not the one from which, as net does.
func (e *dialError) Error() string {
	words := "the connection could not be attempted"
	var errno syscall.Errno
	switch {
	case e.beyond():
		words = syscall.EADDRNOTAVAIL.Error() + ": the hub may have no IPv6"
	case errors.As(e.err, &errno):
		words = errno.Error()
	}
	return "dial " + hostPort(e.address, e.port) + ": " + words
}

// hostPort is as text, of which net refuses a port that is none.
func hostPort(a netip.Addr, port int) string {
	return net.JoinHostPort(a.String(), strconv.Itoa(port))
}

// resolve looks a host up, and returns addresses of which none is forbidden. One
// that is forbids the name: whoever leases the proxy looks it up as well, and may
// take that one.
func (d dialer) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	var found []netip.Addr
	name := ""
	if a, err := netip.ParseAddr(host); err == nil {
		found = append(found, a)
	} else {
		name = host + " leads to "
		if found, err = d.resolver.LookupNetIP(ctx, "ip", host); err != nil {
			return nil, cmp.Or(outOfFiles(), error(&lookupError{host, err}))
		}
	}
	addresses := make([]netip.Addr, 0, len(found))
	for _, a := range found {
		if kind := fleet.Forbidden(a); kind != "" && !d.allowLocal {
			return nil, &forbiddenError{fmt.Sprintf("%s%s, %s, which is not dialled: give the proxy an address that others can reach", name, a.Unmap(), kind)}
		}
		addresses = append(addresses, a.Unmap())
	}
	if len(addresses) == 0 {
		return nil, &lookupError{host, errNoAddress}
	}
	addresses = alternate(addresses)
	return addresses[:min(len(addresses), maxAddresses)], nil
}

// outOfFiles is why this process can open no more, if it cannot. A lookup that failed
// for that does not say so: resolvers keep it as text, or take it for no such host.
func outOfFiles() error {
	file, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	return file.Close()
}

// dial connects to one of the addresses that resolve returned, and looks nothing up
// again: a name that leads elsewhere a moment later leads nobody there.
func (d dialer) dial(ctx context.Context, addresses []netip.Addr, port int) (net.Conn, error) {
	connect := d.connect
	if connect == nil {
		connect = new(net.Dialer).DialContext
	}
	return race(ctx, addresses, func(ctx context.Context, a netip.Addr) (net.Conn, error) {
		conn, err := connect(ctx, "tcp", hostPort(a, port))
		if err != nil {
			return nil, &dialError{a, port, err}
		}
		return conn, nil
	})
}

// alternate orders addresses so that both families come early, the first one's
// first, and each in its order.
func alternate(addresses []netip.Addr) []netip.Addr {
	var first, other []netip.Addr
	for _, a := range addresses {
		if a.Is4() == addresses[0].Is4() {
			first = append(first, a)
		} else {
			other = append(other, a)
		}
	}
	var all []netip.Addr
	for i := range max(len(first), len(other)) {
		all = append(all, first[min(i, len(first)):min(i+1, len(first))]...)
		all = append(all, other[min(i, len(other)):min(i+1, len(other))]...)
	}
	return all
}

// race connects to the first address that answers. The next one is tried when the
// one before it has failed, or has not answered for a while. The error is that of
// the first address of which it tells something: where the hub itself is exhausted
// for one address and another refuses, the proxy does not work. dial must end with
// its context.
func race(ctx context.Context, addresses []netip.Addr, dial func(context.Context, netip.Addr) (net.Conn, error)) (net.Conn, error) {
	if len(addresses) == 1 {
		return dial(ctx, addresses[0])
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		conn net.Conn
		err  error
		i    int
	}
	outcomes := make(chan outcome, len(addresses))
	started := 0
	start := func() {
		i := started
		started++
		go func() {
			conn, err := dial(ctx, addresses[i])
			outcomes <- outcome{conn, err, i}
		}()
	}
	start()
	failed := make([]error, len(addresses))
	for ended := 0; ended < started; {
		var later <-chan time.Time // anew for each that was started
		if started < len(addresses) {
			later = time.After(headStart)
		}
		select {
		case <-later:
			start()
		case o := <-outcomes:
			ended++
			if o.err == nil {
				go func(losers int) {
					for range losers {
						if late := <-outcomes; late.err == nil {
							_ = late.conn.Close()
						}
					}
				}(started - ended)
				return o.conn, nil
			}
			failed[o.i] = o.err
			if started < len(addresses) && ctx.Err() == nil {
				start()
			}
		}
	}
	for _, err := range failed {
		if err != nil && !exhausted(err) {
			return nil, err
		}
	}
	return nil, failed[0]
}
