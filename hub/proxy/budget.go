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
// A Proxy that was in service counts from the moment it is taken out of it until
// its new instance is healthy, so that a change that breaks instances stops at
// the limit. Those that were out of service anyway have as many places of their
// own: they hold up nobody who serves. One that falls ill while it waits counts as
// one that served, for it may recover.
//
// It is kept in memory. After a restart, a Proxy that is out of service and was
// not new may have been taken, and counts as long as its instance is what is
// wanted or on its way: otherwise each restart in the middle of a bad edit would
// take as many again.
type budget struct {
	limit Limit
	// wake has a Proxy looked at again. It is called under locks, and must not block.
	wake func(fleet.Key)

	mu      sync.Mutex
	members map[fleet.Key]*member
	groups  map[shared]*group
}

// place is what a Proxy that is being replaced takes up.
type place int

const (
	noPlace place = iota
	served        // it was in service
	idle          // it was not
)

type member struct {
	groups []shared
	// serving is the fleet's view, current that of the last pass: the instance is
	// what is wanted.
	serving, current bool
	// barred says that nobody dials it, so that it will not come into service.
	barred bool
	place  place
	// suspect says that the place is only assumed, suspectOf of which wish.
	suspect   bool
	suspectOf string
	// held says that it served when it was told to wait.
	held bool
	line *group // in which it waits; nil: it does not
}

// wants is the place that its replacement would take up.
func (m *member) wants() place {
	if m.serving || m.held {
		return served
	}
	return idle
}

type group struct {
	size   int
	places [idle + 1]int
	line   []fleet.Key // in order of arrival
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
	m, groups := b.members[p.Key], groupsOf(p)
	if m == nil || !slices.Equal(m.groups, groups) {
		m = b.join(p, c.Old == nil, m, groups)
	}
	if m != nil {
		m.serving, m.barred = serving(p), p.Barred.Kind != fleet.NotBarred
		b.settle(m)
	}
}

// join makes the Proxy a member of the groups, in place of what it was before.
// The caller holds mu, as for all below.
func (b *budget) join(p *fleet.Proxy, first bool, before *member, groups []shared) *member {
	m := &member{groups: groups}
	if before != nil {
		m.current, m.place, m.suspect, m.suspectOf, m.held = before.current, before.place, before.suspect, before.suspectOf, before.held
		b.leave(p.Key)
	} else if first && p.StatusPhase != "" && !serving(p) {
		m.place, m.suspect = served, true
	}
	if len(groups) == 0 {
		return nil
	}
	b.members[p.Key] = m
	for _, s := range groups {
		if b.groups[s] == nil {
			b.groups[s] = &group{}
		}
		b.groups[s].size++
		b.groups[s].places[m.place]++
	}
	return m
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

// serving says that a replacement would take something away. That the hub does
// not know the credentials yet is no outage.
func serving(p *fleet.Proxy) bool {
	return p.Provisioned && !p.Withdrawn && p.Verdict.Health == fleet.Healthy
}

// leave forgets the Proxy.
func (b *budget) leave(key fleet.Key) {
	m := b.members[key]
	if m == nil {
		return
	}
	delete(b.members, key)
	for _, s := range m.groups {
		g := b.groups[s]
		g.places[m.place]--
		if g.size--; g.size == 0 {
			delete(b.groups, s)
			continue
		}
		b.wakeSome(g)
	}
}

// settle ends what the Proxy costs once it is back in service. One that was out of
// it anyway, and whose new instance is where nobody dials it, costs nothing more.
func (b *budget) settle(m *member) {
	done := m.serving || m.barred && (m.place == idle || m.suspect)
	if m.place != noPlace && done && (m.current || m.suspect) {
		m.suspect = false
		b.put(m, noPlace)
	}
}

// put gives the Proxy another place, and wakes whom that makes room for.
func (b *budget) put(m *member, to place) {
	from := m.place
	m.place = to
	for _, s := range m.groups {
		g := b.groups[s]
		g.places[from]--
		g.places[to]++
		if to == noPlace {
			b.wakeSome(g)
		}
	}
}

// wakeSome has as many looked at again as there is room for, those who have
// waited longest first.
func (b *budget) wakeSome(g *group) {
	most := b.limit.of(g.size)
	room := [idle + 1]int{served: most - g.places[served], idle: most - g.places[idle]}
	line := g.line
	g.line = nil
	for _, key := range line {
		m := b.members[key]
		if m == nil || m.line != g {
			continue
		}
		if room[m.wants()] <= 0 {
			g.line = append(g.line, key)
			continue
		}
		room[m.wants()]--
		m.line = nil
		b.wake(key)
	}
}

// seen records what a pass has seen: whether the instance is what is wanted, or
// away for one that is. want is the hash of that, empty where it is not known.
func (b *budget) seen(key fleet.Key, want string, current, away bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.members[key]
	if m == nil {
		return
	}
	m.current = current
	switch {
	case current:
		m.held = false
		b.stepOut(key, m)
	case away && m.place == noPlace && m.serving:
		// The status has not heard of it: a hub has died in between.
		m.suspect, m.suspectOf, m.serving = true, want, false
		b.put(m, served)
		return
	case m.suspect && (!away || m.suspectOf != "" && want != "" && m.suspectOf != want):
		// Another edit has come since, or it is still what one is to replace: so it
		// was not taken for that one.
		m.suspect = false
		b.put(m, noPlace)
	}
	if m.suspect && m.suspectOf == "" {
		m.suspectOf = want
	}
	b.settle(m)
}

// stepOut takes the Proxy out of the line.
func (b *budget) stepOut(key fleet.Key, m *member) {
	if g := m.line; g != nil {
		m.line = nil
		g.line = slices.DeleteFunc(g.line, func(k fleet.Key) bool { return k == key })
	}
}

// replace asks whether the Proxy's instance may be replaced now. If so, it
// counts from here on; if not, the answer says why, and the Proxy is woken.
func (b *budget) replace(key fleet.Key) (held string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.members[key]
	if m == nil || m.place != noPlace {
		return ""
	}
	b.stepOut(key, m)
	for _, s := range m.groups {
		g := b.groups[s]
		if g.places[m.wants()] < b.limit.of(g.size) {
			continue
		}
		m.held = m.held || m.serving
		m.line = g
		g.line = append(g.line, key)
		for _, other := range m.groups {
			if other != s {
				b.wakeSome(b.groups[other]) // what it was woken for is another's
			}
		}
		return fmt.Sprintf("the instance runs on, and waits to be replaced: of the Proxies that refer to Secret %s, as many are being replaced as may be out of service at once", s.secret)
	}
	b.put(m, m.wants())
	return ""
}

// giveBack ends a replacement that was refused: the instance serves on.
func (b *budget) giveBack(key fleet.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.members[key]; m != nil {
		m.suspect = false
		b.put(m, noPlace)
	}
}
