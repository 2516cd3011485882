package lease

import (
	"cmp"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// Get is the client's lease as it is now. The error is ErrUnknownLease, ErrLeaseExpired
// or ErrNotLeading.
func (s *Store) Get(client, id string) (Lease, error) {
	now := s.enter()
	defer s.leave(now)
	r, err := s.running(client, id)
	if err != nil {
		return Lease{}, err
	}
	r.told()
	return s.read(r), nil
}

// Renew has the client's lease end so long after now, zero for as long as it lasted the
// last time. To do it again is no error. The errors are those of Get and an
// *InvalidError.
func (s *Store) Renew(client, id string, ttl time.Duration) (Lease, error) {
	ttl, err := s.checkTTL(ttl)
	if err != nil {
		return Lease{}, err
	}
	now := s.enter()
	defer s.leave(now)
	r, err := s.running(client, id)
	if err != nil {
		return Lease{}, err
	}
	r.ttl = cmp.Or(ttl, r.ttl)
	r.ends = now + instant(r.ttl)
	r.expiresAt = time.Now().Add(r.ttl).UnixNano()
	s.turns.move(int(r.turn), r.ends)
	r.slot.active.move(int(r.hold), r.ends)
	s.rerank(r.slot)
	return s.read(r), nil
}

// Release ends the client's lease. An id that is unknown, ended or another client's
// does nothing. Reports on it are taken for one more cooldown window. The error is
// ErrNotLeading.
func (s *Store) Release(client, id string) error {
	now := s.enter()
	defer s.leave(now)
	if err := s.Leading(); err != nil {
		return err
	}
	if r, err := s.find(client, id); err == nil && r.state == active {
		s.end(r, now, released)
	}
	return nil
}

// find returns the record of the client's lease, ended or not.
func (s *Store) find(client, id string) (*record, error) {
	if err := s.Leading(); err != nil {
		return nil, err
	}
	known, ok := parseID(id)
	if r := s.records[known]; ok && r != nil && r.client == client {
		return r, nil
	}
	return nil, ErrUnknownLease
}

// running returns the record of the client's active lease.
func (s *Store) running(client, id string) (*record, error) {
	r, err := s.find(client, id)
	switch {
	case err != nil:
		return nil, err
	case r.state == expired:
		return nil, ErrLeaseExpired
	case r.state == released:
		return nil, ErrUnknownLease
	default:
		return r, nil
	}
}

// List calls visit for the Proxies whose keys come after that one, in the order of
// their keys and with the number of their active leases, until visit returns false. No
// lock is held while visit runs: what comes and goes meanwhile may be seen or not, and
// what was there all the while is seen once.
func (s *Store) List(after fleet.Key, visit func(p *fleet.Proxy, active int) (more bool)) {
	type listed struct {
		proxy  *fleet.Proxy
		active int
	}
	some := make([]listed, 0, blockSize)
	for {
		some = some[:0]
		now := s.enter()
		all := s.views.all
		in, at := all.seek(after)
		for ; in < len(all.blocks) && len(some) == 0; in, at = in+1, 0 {
			for _, p := range all.blocks[in].places[at:] {
				if p.slot.proxy.Key != after {
					some = append(some, listed{p.slot.proxy, p.slot.active.len()})
				}
			}
		}
		s.leave(now)
		if len(some) == 0 {
			return
		}
		for _, l := range some {
			if !visit(l.proxy, l.active) {
				return
			}
		}
		after = some[len(some)-1].proxy.Key
	}
}
