// Package address gives out loopback addresses to what stands in for the machines of a network:
// pods, nodes and load balancers. Linux answers on all of 127.0.0.0/8, so that every one can
// have an address of its own without any set-up.
//
// Who gets one is to get the same again after a restart, and nobody else on this host may have
// it meanwhile, whichever program gave it out. The first is done by deriving addresses from a
// seed, the second by an abstract unix socket of the address's name, which goes with its process.
//
// Traded away: an address is somebody else's only as far as this package gave it out, or
// something listens on a port that is asked for.
package address

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
)

const attempts = 100

// Range is a part of 127.0.0.0/8, by the first and the last second octet.
type Range struct{ first, last byte }

// These leave 127.0.0.0-127.7.255.255 to whoever picks addresses by hand.
var (
	Nodes         = Range{8, 11}
	LoadBalancers = Range{12, 15}
	Pods          = Range{16, 254}
)

// Contains says whether an address is one of the range.
func (r Range) Contains(address netip.Addr) bool {
	if !address.Is4() {
		return false
	}
	octets := address.As4()
	return octets[0] == 127 && r.first <= octets[1] && octets[1] <= r.last
}

// derived is the nth choice for a seed, always the same and spread over the range.
func (r Range) derived(seed string, n int) netip.Addr {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d/%s", n, seed))
	number := binary.BigEndian.Uint64(sum[:])
	// Without the last octets that look like networks.
	last := 1 + number%254
	third := number / 254 % 256
	second := uint64(r.first) + number/254/256%(uint64(r.last-r.first)+1)
	return netip.AddrFrom4([4]byte{127, byte(second), byte(third), byte(last)})
}

// Pool holds addresses. Each belongs to one pool of this host at a time.
type Pool struct {
	from Range
	mu   sync.Mutex
	held map[netip.Addr]net.Listener
}

// NewPool returns a pool that gives out addresses of a range.
func NewPool(from Range) *Pool { return &Pool{from: from, held: map[netip.Addr]net.Listener{}} }

// Acquire holds an address where nobody listens on the ports, until Release: preferred if it is
// one of the range and free, else one that comes from the seed.
func (p *Pool) Acquire(ctx context.Context, preferred netip.Addr, seed string, ports ...uint16) (netip.Addr, error) {
	if p.from.Contains(preferred) && p.Hold(ctx, preferred, ports...) == nil {
		return preferred, nil
	}
	var last error
	for n := range attempts {
		address := p.from.derived(seed, n)
		if last = p.Hold(ctx, address, ports...); last == nil {
			return address, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no free loopback address in %d attempts: %w", attempts, last)
}

// Hold is Acquire of this one address, of whatever range, or an error.
func (p *Pool) Hold(ctx context.Context, address netip.Addr, ports ...uint16) error {
	var config net.ListenConfig
	lock, err := config.Listen(ctx, "unix", "@proxy-operator-test-node/"+address.String())
	if err != nil {
		return fmt.Errorf("lock %s: %w", address, err)
	}
	for _, port := range ports {
		probe, err := config.Listen(ctx, "tcp", netip.AddrPortFrom(address, port).String())
		if err != nil {
			_ = lock.Close()
			return err
		}
		_ = probe.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[address] = lock
	return nil
}

// Release gives an address back. One that is not held is no error.
func (p *Pool) Release(address netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if lock, ok := p.held[address]; ok {
		_ = lock.Close()
		delete(p.held, address)
	}
}
