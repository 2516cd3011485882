package lease

import (
	"cmp"
	"maps"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// slot is a Proxy and its active leases. It lives while the Proxy is in the fleet or
// has one.
type slot struct {
	// proxy is the Proxy as the fleet shows it, or showed it last.
	proxy *fleet.Proxy
	// usable is the last one that said where and how to reach it.
	usable  *fleet.Proxy
	rank    rank
	active  deadlines[inSlot]
	address *address // nil while nothing rests there
	places  []*place // one in each view that it is in
	marks   marks    // proxy's
	// gone says that the Proxy has left the fleet.
	gone bool
	// freed says that it is among Store.freed.
	freed bool
}

// compare orders slots by preference, the preferred first.
func (sl *slot) compare(o *slot) int {
	return cmp.Or(cmp.Compare(sl.rank, o.rank), sl.proxy.Compare(o.proxy.Key))
}

// seat tells a Proxy from its namesakes before and after it.
type seat struct {
	fleet.Key
	uid string
}

func seatOf(p *fleet.Proxy) seat { return seat{p.Key, p.UID} }

// record is a lease, and for one cooldown window what is left of it.
type record struct {
	id             id
	client, target string
	slot           *slot
	// host and port are those that the client was told when it was granted the lease or
	// read it: a report is about that address, wherever the Proxy is by then. Whoever
	// renews a lease beside its crawl does not look at the answer.
	host string
	ends instant
	// expiresAt is when it ends by the wall clock, in Unix nanoseconds: fixed when the
	// lease is granted or renewed, so that it reads the same each time.
	expiresAt  int64
	ttl        time.Duration
	turn, hold int32 // places among all that end and among the slot's
	port       uint16
	state      state
	heard      bool // somebody was told of it
}

type state uint8

const (
	active state = iota
	expired
	released
)

// inSlot and inAll tell a record its two places.
type (
	inSlot struct{ *record }
	inAll  struct{ *record }
)

func (r inSlot) moved(place int) { r.hold = int32(place) }
func (r inAll) moved(place int)  { r.turn = int32(place) }

// Observe takes one change of the fleet. It is a follower: it takes the store's mutex
// alone and returns quickly. It counts on what the fleet promises, that Change.Old is
// the very value that was New before.
func (s *Store) Observe(c fleet.Change) {
	now := s.enter()
	defer s.leave(now)
	var sl *slot
	if c.Old != nil {
		sl = s.slots[c.Old]
		delete(s.slots, c.Old)
		if c.New == nil || c.New.UID != c.Old.UID {
			s.depart(sl)
			sl = nil
		}
	}
	switch {
	case c.New == nil:
	case sl == nil:
		s.arrive(c.New)
	default:
		s.change(sl, c.New)
	}
}

// arrive takes in a Proxy, with the leases that it had before it left.
func (s *Store) arrive(p *fleet.Proxy) {
	sl := s.ghosts[seatOf(p)]
	if sl == nil {
		sl = &slot{usable: p}
	} else {
		delete(s.ghosts, seatOf(p))
	}
	s.slots[p] = sl
	sl.gone = false
	sl.show(p)
	sl.rank = leaving // until it is known
	s.views.add(sl)
	s.relocate(sl)
	s.rerank(sl)
}

// depart lets a Proxy go; its leases run on.
func (s *Store) depart(sl *slot) {
	s.views.remove(sl)
	sl.gone = true
	s.relocate(sl)
	if sl.active.len() > 0 {
		s.ghosts[seatOf(sl.proxy)] = sl
	}
}

// change shows a Proxy anew.
func (s *Store) change(sl *slot, p *fleet.Proxy) {
	old := sl.proxy
	s.slots[p] = sl
	sl.show(p)
	sorted := maps.Equal(old.Attributes, p.Attributes) // the cluster is part of the key
	if !sorted {
		s.views.sort(sl)
	}
	address := sl.address
	s.relocate(sl)
	s.rerank(sl)
	if (!sorted || address != sl.address) && sl.rank.class() == isFree {
		s.free(sl) // for others than before
	}
}

func (sl *slot) show(p *fleet.Proxy) {
	if sl.proxy == nil || !maps.Equal(sl.proxy.Attributes, p.Attributes) {
		sl.marks = marksOf(p)
	}
	sl.proxy = p
	if p.Host != "" && !p.AccessUnknown && !p.Lacks() {
		sl.usable = p
	}
}

// rerank finds out the rank of a slot and tells its views.
func (s *Store) rerank(sl *slot) {
	if sl.gone {
		return
	}
	var cools instant
	if sl.address != nil && sl.address.global != nil {
		cools = sl.address.global.ends
	}
	firstEnd, _ := sl.active.first()
	to := rankOf(sl.proxy, sl.active.len(), firstEnd, cools)
	from := sl.rank
	if to == from {
		return
	}
	sl.rank = to
	for _, p := range sl.places {
		p.block.view.set(p, to)
	}
	if to.class() == isFree && from.class() != isFree {
		s.free(sl)
	}
}

// hold gives the slot's Proxy to a new lease.
func (s *Store) hold(sl *slot, r *record, now instant, wall time.Time) {
	r.slot = sl
	r.ends = now + instant(r.ttl)
	r.expiresAt = wall.Add(r.ttl).UnixNano()
	r.told()
	s.turns.add(r.ends, inAll{r})
	sl.active.add(r.ends, inSlot{r})
	s.records[r.id] = r
	s.byCluster[sl.proxy.Cluster]++
	s.rerank(sl)
}

// told notes where the client has been told that its Proxy is.
func (r *record) told() { r.host, r.port = r.slot.usable.Host, uint16(r.slot.usable.Port) }

// end gives the slot back at that instant and keeps the record for reports.
func (s *Store) end(r *record, at instant, as state) {
	sl := r.slot
	sl.active.drop(int(r.hold))
	r.state = as
	s.turns.move(int(r.turn), at+instant(s.options.CooldownWindow))
	cluster := sl.proxy.Cluster
	if s.byCluster[cluster]--; s.byCluster[cluster] == 0 {
		delete(s.byCluster, cluster)
	}
	if sl.gone && sl.active.len() == 0 {
		delete(s.ghosts, seatOf(sl.proxy))
	}
	s.rerank(sl)
}

// forget drops what is left of a lease.
func (s *Store) forget(r *record) {
	s.turns.drop(int(r.turn))
	delete(s.records, r.id)
}
