package address

import (
	"net"
	"net/netip"
	"testing"
)

var ranges = []Range{Nodes, LoadBalancers, Pods}

// Two nodes of one host must never give two pods one address, even while neither listens.
func TestAddressBelongsToOnePool(t *testing.T) {
	one, other := NewPool(Pods), NewPool(Pods)
	address, err := one.Acquire(t.Context(), netip.Addr{}, t.Name())
	if err != nil {
		t.Fatal(err)
	}
	if !Pods.Contains(address) {
		t.Errorf("%s is out of range", address)
	}
	for _, pool := range []*Pool{one, other} {
		got, err := pool.Acquire(t.Context(), address, t.Name())
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Release(got)
		if got == address {
			t.Errorf("%s was given out twice", address)
		}
	}
	one.Release(address)
	if got, err := other.Acquire(t.Context(), address, "of another seed"); err != nil || got != address {
		t.Errorf("the released address %s is not to be had again: %s, %v", address, got, err)
	}
	other.Release(address)
}

// Nobody must get an address where somebody else answers on its port.
func TestAddressWithATakenPortIsPassedOver(t *testing.T) {
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.99.99.99:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	taken := listener.Addr().(*net.TCPAddr).AddrPort()
	pool := NewPool(Pods)
	got, err := pool.Acquire(t.Context(), taken.Addr(), t.Name(), taken.Port())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Release(got)
	if got == taken.Addr() {
		t.Error("the address was given out")
	}
	if err := pool.Hold(t.Context(), taken.Addr(), taken.Port()); err == nil {
		t.Error("the address was held")
	}
}

// What comes back after a restart wants its address back, and no kind may meet another's.
func TestDerivedAddresses(t *testing.T) {
	for i, r := range ranges {
		seen := map[netip.Addr]bool{}
		for n := range 1000 {
			address := r.derived("seed", n)
			if again := r.derived("seed", n); again != address {
				t.Fatalf("first %s, then %s", address, again)
			}
			for j, other := range ranges {
				if other.Contains(address) != (i == j) {
					t.Fatalf("%s, derived for range %v: range %v says %t", address, r, other, i != j)
				}
			}
			if last := address.As4()[3]; last == 0 || last == 255 {
				t.Fatalf("%s looks like a network", address)
			}
			seen[address] = true
		}
		if len(seen) < 990 {
			t.Errorf("%v: a thousand attempts give only %d addresses", r, len(seen))
		}
	}
}

// An address that this package has not chosen is nobody's to give out again.
func TestForeignAddressesAreOfNoRange(t *testing.T) {
	for _, foreign := range []string{"10.0.0.1", "127.0.0.1", "127.7.255.255", "127.255.0.1", "::1", "::ffff:127.20.0.1"} {
		for _, r := range ranges {
			if r.Contains(netip.MustParseAddr(foreign)) {
				t.Errorf("%s counts as one of %v", foreign, r)
			}
		}
	}
	if Pods.Contains(netip.Addr{}) {
		t.Error("no address counts as one")
	}
}
