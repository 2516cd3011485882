package lease

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

const (
	modelWindow  = 10 * time.Second
	modelWaiters = 4
)

// naive is the store as one would explain it: it keeps no index and works everything out
// from what has happened.
type naive struct {
	fleet     *fleet.Fleet
	last      map[seat]*fleet.Proxy // each Proxy as the fleet showed it last
	leases    []*naiveLease
	cooldowns []naiveCooldown
	waiters   []*naiveWaiter // in the order of their arrival
	keys      []naiveKey
}

type naiveLease struct {
	id, client, target string
	proxy              *fleet.Proxy
	told               *fleet.Proxy // where the client was told that it is
	ttl                time.Duration
	expires            time.Time
	released           time.Time // zero: not
	reports            map[Report]time.Time
}

func (l *naiveLease) end() time.Time {
	if !l.released.IsZero() {
		return l.released
	}
	return l.expires
}

func (l *naiveLease) active() bool { return time.Now().Before(l.end()) }

type naiveCooldown struct {
	key              fleet.Key
	endpoint, target string
	until            time.Time
}

// naiveWaiter is a request that waits, or several that share what it is granted.
type naiveWaiter struct {
	client string
	req    Request
	calls  []*naiveCall // that have not been answered
}

// naiveCall is a call of Acquire, with what it should be answered once it is.
type naiveCall struct {
	deadline time.Time
	answered bool
	lease    *naiveLease // or
	err      error
}

func (c *naiveCall) answer(l *naiveLease, err error) { c.answered, c.lease, c.err = true, l, err }

type naiveKey struct {
	client string
	req    Request
	waiter *naiveWaiter // until it is answered
	lease  *naiveLease
	at     time.Time
}

func (n *naive) active(p *fleet.Proxy) (count int, firstEnd time.Time) {
	for _, l := range n.leases {
		if l.active() && l.proxy.Key == p.Key && l.proxy.UID == p.UID {
			count++
			if firstEnd.IsZero() || l.expires.Before(firstEnd) {
				firstEnd = l.expires
			}
		}
	}
	return count, firstEnd
}

func (n *naive) coolsUntil(p *fleet.Proxy, target string) (until time.Time) {
	for _, c := range n.cooldowns {
		if c.key == p.Key && c.endpoint == p.Endpoint() && (c.target == "" || c.target == target) && c.until.After(until) {
			until = c.until
		}
	}
	return until
}

// choose sorts all that could be granted, and counts the others.
func (n *naive) choose(req Request) (*fleet.Proxy, NoMatchError) {
	var offers []*fleet.Proxy
	var none NoMatchError
	block := func(until time.Time) {
		if in := time.Until(until); none.RetryAfter == 0 || in < none.RetryAfter {
			none.RetryAfter = in
		}
	}
	for _, p := range n.fleet.All() {
		if p.Deleting || (req.Cluster != "" && p.Cluster != req.Cluster) || !Selects(req.Selector, p.Attributes) {
			continue
		}
		none.Considered++
		count, firstEnd := n.active(p)
		cools := n.coolsUntil(p, req.Target)
		switch {
		case !p.Offerable():
			none.Unhealthy++
		case p.MaxLeases > 0 && count >= p.MaxLeases:
			none.AtCapacity++
			block(slices.MaxFunc([]time.Time{firstEnd, cools}, time.Time.Compare))
		case cools.After(time.Now()):
			none.InCooldown++
			block(cools)
		default:
			offers = append(offers, p)
		}
	}
	if len(offers) == 0 {
		return nil, none
	}
	slices.SortFunc(offers, n.compare)
	return offers[0], none
}

func (n *naive) compare(a, b *fleet.Proxy) int {
	countA, _ := n.active(a)
	countB, _ := n.active(b)
	latency := func(p *fleet.Proxy) time.Duration {
		if p.Verdict.Latency == 0 {
			return time.Hour // sorts last
		}
		return p.Verdict.Latency
	}
	return cmp.Or(cmp.Compare(countA, countB), cmp.Compare(latency(a), latency(b)), a.Compare(b.Key))
}

func (n *naive) grant(client string, req Request, p *fleet.Proxy) *naiveLease {
	l := &naiveLease{client: client, target: req.Target, proxy: p, told: p, ttl: req.TTL, expires: time.Now().Add(req.TTL), reports: map[Report]time.Time{}}
	n.leases = append(n.leases, l)
	n.keys = append(n.keys, naiveKey{client: client, req: req, lease: l, at: time.Now()})
	return l
}

// known is what the client's key stands for, or nil.
func (n *naive) known(client, key string) *naiveKey {
	for i := len(n.keys) - 1; i >= 0 && key != ""; i-- {
		k := &n.keys[i]
		if k.client != client || k.req.Key != key {
			continue
		}
		if k.waiter != nil && len(k.waiter.calls) > 0 || k.lease != nil && time.Since(k.at) < keyLife {
			return k
		}
		if k.lease != nil {
			return nil // used up; what came before is older still
		}
	}
	return nil
}

// acquire answers at once or has the call wait.
func (n *naive) acquire(client string, req Request) *naiveCall {
	c := &naiveCall{deadline: time.Now().Add(req.Wait)}
	known := n.known(client, req.Key)
	switch {
	case known != nil && !same(known.req, req):
		c.answer(nil, ErrIdempotencyConflict)
		return c
	case known != nil && known.waiter != nil:
		if n.held() == modelWaiters {
			c.answer(nil, ErrTooManyWaiters)
			return c
		}
		known.waiter.calls = append(known.waiter.calls, c)
		return c
	case known != nil && known.lease.active():
		known.lease.told = n.last[seatOf(known.lease.proxy)]
		c.answer(known.lease, nil)
		return c
	}
	p, none := n.choose(req)
	switch {
	case p != nil:
		c.answer(n.grant(client, req, p), nil)
	case req.Wait == 0:
		c.answer(nil, &none)
	case n.held() == modelWaiters:
		c.answer(nil, ErrTooManyWaiters)
	default:
		w := &naiveWaiter{client: client, req: req, calls: []*naiveCall{c}}
		n.waiters = append(n.waiters, w)
		n.keys = append(n.keys, naiveKey{client: client, req: req, waiter: w})
	}
	return c
}

// held is how many calls wait.
func (n *naive) held() (calls int) {
	for _, w := range n.waiters {
		calls += len(w.calls)
	}
	return calls
}

func same(a, b Request) bool {
	return maps.Equal(a.Selector, b.Selector) && a.Cluster == b.Cluster && a.Target == b.Target && a.TTL == b.TTL && a.Wait == b.Wait
}

// settle grants to those who wait what they may have now, the first to come first,
// and refuses those who have waited long enough.
func (n *naive) settle() {
	for _, w := range n.waiters {
		if p, _ := n.choose(w.req); p != nil {
			l := n.grant(w.client, w.req, p)
			for _, c := range w.calls {
				c.answer(l, nil)
			}
		}
	}
	for _, w := range n.waiters { // with what the others have left them
		for _, c := range w.calls {
			if !c.answered && !time.Now().Before(c.deadline) {
				_, none := n.choose(w.req)
				c.answer(nil, &none)
			}
		}
	}
	n.part()
}

// dismiss answers all who wait with an error.
func (n *naive) dismiss(err error) {
	for _, w := range n.waiters {
		for _, c := range w.calls {
			c.answer(nil, err)
		}
	}
	n.part()
}

// part lets go of those who were answered.
func (n *naive) part() {
	for _, w := range n.waiters {
		w.calls = slices.DeleteFunc(w.calls, func(c *naiveCall) bool { return c.answered })
	}
	n.waiters = slices.DeleteFunc(n.waiters, func(w *naiveWaiter) bool { return len(w.calls) == 0 })
}

// next is the first instant after now at which something ends, or until.
func (n *naive) next(until time.Time) time.Time {
	sooner := func(at time.Time) {
		if at.After(time.Now()) && at.Before(until) {
			until = at
		}
	}
	for _, l := range n.leases {
		sooner(l.expires)
	}
	for _, c := range n.cooldowns {
		sooner(c.until)
	}
	for _, w := range n.waiters {
		for _, c := range w.calls {
			sooner(c.deadline)
		}
	}
	return until
}

// find is the client's lease as Get and Renew find it.
func (n *naive) find(client, id string) (*naiveLease, error) {
	l := n.record(client, id)
	switch {
	case l == nil, !l.released.IsZero():
		return nil, ErrUnknownLease
	case !l.active():
		return nil, ErrLeaseExpired
	}
	return l, nil
}

// record is the client's lease, or one that ended less than a window ago, or nil.
func (n *naive) record(client, id string) *naiveLease {
	for _, l := range n.leases {
		if l.id == id && l.client == client && time.Now().Before(l.end().Add(modelWindow)) {
			return l
		}
	}
	return nil
}

func (n *naive) report(client, id string, r Report) error {
	l := n.record(client, id)
	if l == nil {
		return ErrUnknownLease
	}
	if r.Result == OK {
		return nil
	}
	r.Target, r.Cooldown = cmp.Or(r.Target, l.target), cmp.Or(r.Cooldown, modelWindow)
	if at, again := l.reports[r]; again && time.Since(at) < 2*time.Second {
		return nil
	}
	l.reports[r] = time.Now()
	n.cooldowns = append(n.cooldowns, naiveCooldown{l.told.Key, l.told.Endpoint(), r.Target, time.Now().Add(r.Cooldown)})
	return nil
}

// read is what the client is told of its lease.
func (n *naive) read(l *naiveLease) Lease {
	l.proxy = n.last[seatOf(l.proxy)]
	count, _ := n.active(l.proxy)
	read := Lease{
		ID: l.id, Client: l.client, Target: l.target, TTL: l.ttl, ExpiresAt: l.expires.UTC(),
		Proxy: l.proxy, Active: count,
	}
	if now := n.fleet.Get(l.proxy.Key); now != nil && now.UID == l.proxy.UID {
		read.Now = now
	}
	return read
}

// tidy drops what nothing can refer to any more, since looking at everything takes long
// after a while.
func (n *naive) tidy() {
	n.leases = slices.DeleteFunc(n.leases, func(l *naiveLease) bool { return !time.Now().Before(l.end().Add(modelWindow)) })
	n.cooldowns = slices.DeleteFunc(n.cooldowns, func(c naiveCooldown) bool { return !c.until.After(time.Now()) })
	n.keys = slices.DeleteFunc(n.keys, func(k naiveKey) bool {
		return k.req.Key == "" || k.waiter != nil && len(k.waiter.calls) == 0 || k.lease != nil && time.Since(k.at) >= keyLife
	})
}

// see takes note of what the fleet shows.
func (n *naive) see() {
	for _, p := range n.fleet.All() {
		n.last[seatOf(p)] = p
	}
}
