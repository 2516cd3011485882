package proxy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// Limit is how many of the Proxies that one change replaces may be out of
// service at once: a share of them or a number. The zero value is a tenth.
type Limit struct{ percent, number int }

// ParseLimit reads "10%" or "3".
func ParseLimit(text string) (Limit, error) {
	digits, share := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(digits)
	switch {
	case err != nil || n < 1:
		return Limit{}, fmt.Errorf("%q is neither a number of at least 1 nor a percentage from 1%% to 100%%", text)
	case share && n <= 100:
		return Limit{percent: n}, nil
	case share:
		return Limit{}, fmt.Errorf("%q is more than 100%%", text)
	default:
		return Limit{number: n}, nil
	}
}

// of is the limit for so many Proxies: at least one, or nothing would ever be
// replaced.
func (l Limit) of(n int) int {
	switch {
	case l.number > 0:
		return l.number
	case l.percent > 0:
		return max(1, n*l.percent/100)
	default:
		return max(1, n/10)
	}
}

// shared is a Secret that Proxies refer to: what one edit replaces.
type shared struct{ cluster, namespace, secret string }

// budget lets the Proxies that refer to one Secret be replaced a few at a time.
// A Proxy that was taken out of service counts until its new instance is
// healthy, so that a change that breaks instances stops at the limit. One that
// was out of service anyway costs nothing, and counts for nothing.
//
// It is kept in memory. After a restart, a Proxy that is between instances or
// has no verdict yet counts, since it may have been taken.
type budget struct {
	limit Limit
	// wake has a Proxy looked at again. It is called under locks, and must not block.
	wake func(fleet.Key)

	mu      sync.Mutex
	members map[fleet.Key]*member
	groups  map[shared]*group
}

type member struct {
	groups []shared
	// offerable is the fleet's view, current that of the last pass: the
	// instance is what is wanted.
	offerable, current bool
	taken              bool
	waiting            bool
}

type group struct {
	size, taken int
	waiting     []fleet.Key // in order of arrival; some may not wait any more
}

func newBudget(limit Limit) *budget {
	return &budget{limit: limit, wake: func(fleet.Key) {}, members: map[fleet.Key]*member{}, groups: map[shared]*group{}}
}

// observe follows the fleet.
func (b *budget) observe(c fleet.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := c.New
	if p == nil {
		b.leave(c.Old.Key)
		return
	}
	groups := groupsOf(p)
	m := b.members[p.Key]
	if m != nil && !slices.Equal(m.groups, groups) {
		b.leave(p.Key)
		m = nil
	}
	if len(groups) == 0 {
		return
	}
	if m == nil {
		m = &member{groups: groups, taken: c.Old == nil && between(p)}
		b.members[p.Key] = m
		for _, g := range groups {
			if b.groups[g] == nil {
				b.groups[g] = &group{}
			}
			b.groups[g].size++
			if m.taken {
				b.groups[g].taken++
			}
		}
	}
	m.offerable = p.Offerable()
	b.settle(m)
}

// groupsOf are the Secrets that the Managed Proxy's instance is made of. One
// that is going is nobody's to replace.
func groupsOf(p *fleet.Proxy) []shared {
	if !p.Managed || p.Deleting {
		return nil
	}
	var groups []shared
	for _, secret := range p.Secrets {
		groups = append(groups, shared{p.Cluster, p.Namespace, secret})
	}
	return groups
}

// between says that the Proxy may be in the middle of a replacement.
func between(p *fleet.Proxy) bool {
	switch p.Phase() {
	case "Replacing", "Provisioning", "Probing":
		return true
	default:
		return false
	}
}

// leave forgets the Proxy. The caller holds mu, as for all below.
func (b *budget) leave(key fleet.Key) {
	m := b.members[key]
	if m == nil {
		return
	}
	delete(b.members, key)
	for _, s := range m.groups {
		g := b.groups[s]
		if m.taken {
			g.taken--
		}
		if g.size--; g.size == 0 {
			delete(b.groups, s)
			continue
		}
		b.wakeSome(g)
	}
}

// settle ends what the Proxy costs once it is back in service.
func (b *budget) settle(m *member) {
	if m.taken && m.offerable && m.current {
		b.take(m, false)
	}
}

func (b *budget) take(m *member, taken bool) {
	if m.taken == taken {
		return
	}
	m.taken = taken
	for _, s := range m.groups {
		g := b.groups[s]
		if taken {
			g.taken++
		} else {
			g.taken--
			b.wakeSome(g)
		}
	}
}

// wakeSome has as many looked at again as there is room for.
func (b *budget) wakeSome(g *group) {
	room := b.limit.of(g.size) - g.taken
	for ; room > 0 && len(g.waiting) > 0; room-- {
		key := g.waiting[0]
		g.waiting = g.waiting[1:]
		if m := b.members[key]; m != nil && m.waiting {
			m.waiting = false
			b.wake(key)
		} else {
			room++ // gone, or taken meanwhile
		}
	}
}

// seen records what a pass has seen: whether the instance is what is wanted.
func (b *budget) seen(key fleet.Key, current bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.members[key]; m != nil {
		m.current = current
		if current {
			m.waiting = false
		}
		b.settle(m)
	}
}

// replace asks whether the Proxy's instance may be replaced now. If so, it
// counts from here on; if not, the answer says why, and the Proxy is woken.
func (b *budget) replace(key fleet.Key) (held string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.members[key]
	if m == nil || m.taken || !m.offerable {
		return ""
	}
	for _, s := range m.groups {
		g := b.groups[s]
		if most := b.limit.of(g.size); g.taken >= most {
			if !m.waiting {
				m.waiting = true
				g.waiting = append(g.waiting, key)
			}
			return fmt.Sprintf("the instance runs on, and waits to be replaced: of the Proxies that refer to Secret %s, as many are being replaced as may be out of service at once (%d)",
				s.secret, most)
		}
	}
	m.waiting = false
	b.take(m, true)
	return ""
}
