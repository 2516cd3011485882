package lease

import (
	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// location says where cooldowns belong. There is no UID in it: a Proxy that is recreated
// or registered anew at the same endpoint is still known to the site.
type location struct {
	fleet.Key
	host string
	port int
}

func locationOf(p *fleet.Proxy) location { return location{p.Key, p.Host, p.Port} }

// maxRests is how many targets an address may rest from. Clients that take every host name
// for a site of its own must not fill the memory: of one more, the one that ends first ends
// now, be it the new one.
const maxRests = 1000

// address is a location with at least one cooldown.
type address struct {
	location
	slot   *slot // that is there now; nil: none
	global *cooldown
	ends   deadlines[ofAddress] // of its cooldowns, the global one apart
}

// target is a site that at least one address rests from.
type target struct {
	name string
	ends deadlines[ofTarget]
	// of has the cooldowns of all targets.
	of map[resting]*cooldown
}

type resting struct {
	address *address
	target  *target
}

// cooldown is the rest of one address from one target.
type cooldown struct {
	address *address
	target  *target // nil: every target
	ends    instant
	// Its places among all that end, the address's and the target's.
	inAll, inAddress, inTarget int32
}

// ofAll, ofAddress and ofTarget tell a cooldown its places.
type (
	ofAll     struct{ *cooldown }
	ofAddress struct{ *cooldown }
	ofTarget  struct{ *cooldown }
)

func (c ofAll) moved(place int)     { c.inAll = int32(place) }
func (c ofAddress) moved(place int) { c.inAddress = int32(place) }
func (c ofTarget) moved(place int)  { c.inTarget = int32(place) }

// cooldown is the slot's for the target alone, or nil.
func (t *target) cooldown(sl *slot) *cooldown {
	if t == nil || sl.address == nil {
		return nil
	}
	return t.of[resting{sl.address, t}]
}

// rest starts a cooldown, or lengthens it.
func (s *Store) rest(at location, name string, until instant) {
	a := s.addresses[at]
	if a == nil {
		a = &address{location: at}
		s.addresses[at] = a
		if sl := s.slotAt(at); sl != nil {
			a.slot, sl.address = sl, a
		}
	}
	var t *target
	if name != "" {
		if t = s.targets[name]; t == nil {
			t = &target{name: name, of: s.cooldowns}
			s.targets[name] = t
		}
	}
	c := a.global
	if t != nil {
		c = s.cooldowns[resting{a, t}]
	}
	switch {
	case c == nil:
		s.startRest(&cooldown{address: a, target: t, ends: until})
	case until > c.ends:
		c.ends = until
		s.rests.move(int(c.inAll), until)
		if t != nil {
			a.ends.move(int(c.inAddress), until)
			t.ends.move(int(c.inTarget), until)
		}
		s.rested(c, true)
	}
}

func (s *Store) startRest(c *cooldown) {
	s.rests.add(c.ends, ofAll{c})
	if c.target == nil {
		c.address.global = c
	} else {
		s.cooldowns[resting{c.address, c.target}] = c
		c.address.ends.add(c.ends, ofAddress{c})
		c.target.ends.add(c.ends, ofTarget{c})
	}
	s.rested(c, true)
	if c.address.ends.len() > maxRests {
		s.endRest(c.address.ends.h[0].what.cooldown)
	}
}

// endRest forgets a cooldown, and all that nothing else needs.
func (s *Store) endRest(c *cooldown) {
	a, t := c.address, c.target
	s.rests.drop(int(c.inAll))
	if t == nil {
		a.global = nil
	} else {
		delete(s.cooldowns, resting{a, t})
		a.ends.drop(int(c.inAddress))
		t.ends.drop(int(c.inTarget))
	}
	s.rested(c, false)
	if sl := a.slot; sl != nil && sl.rank.class() == isFree {
		s.free(sl)
	}
	if t != nil && t.ends.len() == 0 {
		delete(s.targets, t.name)
		s.views.forget(t)
	}
	if a.ends.len() == 0 && a.global == nil {
		delete(s.addresses, a.location)
		if a.slot != nil {
			a.slot.address = nil
		}
	}
}

// rested passes on that a cooldown has begun, lengthened or ended.
func (s *Store) rested(c *cooldown, rests bool) {
	sl := c.address.slot
	switch {
	case sl == nil:
	case c.target == nil:
		s.rerank(sl)
	default:
		for _, p := range sl.places {
			if o := p.block.view.overlays[c.target]; o != nil {
				o.mark(p, rests)
			}
		}
	}
}

// slotAt is the slot of the Proxy that is at the location now, or nil.
func (s *Store) slotAt(at location) *slot {
	sl := s.views.all.find(at.Key)
	if sl == nil || locationOf(sl.proxy) != at {
		return nil
	}
	return sl
}

// relocate sees to it that the slot rests as its Proxy's address does.
func (s *Store) relocate(sl *slot) {
	var a *address
	if sl.proxy.Host != "" && !sl.gone {
		a = s.addresses[locationOf(sl.proxy)]
	}
	if a == sl.address {
		return
	}
	if sl.address != nil {
		sl.address.slot = nil
	}
	if sl.address = a; a != nil {
		a.slot = sl
	}
	// Whom it rests from has to be looked up anew.
	for _, p := range sl.places {
		p.block.view.reshape(p.block, int(p.at))
	}
}
