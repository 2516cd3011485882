package rest_test

import (
	"cmp"
	"hash/maphash"
	"math"
	"math/bits"
	"net/http"
	"slices"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// pool is what the crawlers of a round lease from, in the order of the keys. There is
// less of it than they want.
var pool = [...]fleet.Proxy{
	px("eu/crawl/a", maxLeases(1), attrs("tier", "fast")),
	px("eu/crawl/b", maxLeases(2), attrs("tier", "slow")),
	px("us/crawl/a", maxLeases(2), attrs("tier", "fast")),
	px("us/crawl/b", maxLeases(1), attrs("tier", "slow")),
}

// sites are the targets. The first is none, which as a cooldown's means all of them.
var sites = [...]string{"", "a.example", "b.example"}

// window is the store's CooldownWindow: short, so that records are forgotten within a round.
const window = time.Second

// The bounds of a history. A world has arrays of these sizes, so that it is copied and
// compared as a value, and no step can change what the checker keeps of another.
const (
	maxGrants = 160
	maxTimers = 896
	maxKeys   = 8
)

// world is the state of a server, as the contract has it. There is no time in it: what
// ends by itself ends when its timer rings, and that is an event like any other. It has
// no gaps in memory, so that the many worlds of a search are soon compared.
type world struct {
	due    timers // those that were set and have neither rung nor been stopped
	grants [maxGrants]grant
	led    [maxKeys]int16 // the lease that each Idempotency-Key led to last, plus one
	health [len(pool)]health
	active [len(pool)]int16
}

// health is a verdict: the latency in milliseconds, zero for none, or unhealthy.
type health int16

const unhealthy health = -1

// grant is a lease or what is left of it.
type grant struct {
	timer int16 // that ends it or, when it has ended, its record
	ttl   int16
	proxy int8
	phase phase
}

type phase int8

const (
	unknown phase = iota // not granted yet, or forgotten
	active
	expired
	released
)

func (p phase) String() string { return [...]string{"unknown", "active", "expired", "released"}[p] }

// timers is a set of them, by their numbers. Zero is none of them.
type timers [maxTimers / 64]uint64

func (s *timers) set(n int16) {
	if n != 0 {
		s[n/64] |= 1 << (n % 64)
	}
}

func (s *timers) clear(n int16) { s[n/64] &^= 1 << (n % 64) }

func (s *timers) has(n int16) bool { return s[n/64]>>(n%64)&1 == 1 }

func (s *timers) meets(other *timers) bool {
	for i := range s {
		if s[i]&other[i] != 0 {
			return true
		}
	}
	return false
}

func (s *timers) len() (n int) {
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

// timer is one of a history. What it ends, it ends unless it was stopped.
type timer struct {
	from, to time.Duration // it rings in between
	grant    int16         // whose lease or record it ends; none: -1
	// gone is the timer that is set by one that ends a lease: the end of its record.
	gone int16
}

// rules are what a history needs beyond the world to be played.
type rules struct {
	timers []timer // by number
	// rests are the timers of the cooldowns of each Proxy and site.
	rests [len(pool)][len(sites)]timers
}

func newWorld() world {
	var w world
	for i := range pool {
		w.health[i] = health(pool[i].Verdict.LatencyMillis())
	}
	return w
}

var seed = maphash.MakeSeed()

func (w world) hash() uint64 { return maphash.Comparable(seed, w) }

// step plays an event and says whether its answer is the one that the world demands.
func (r *rules) step(w *world, e *event) bool {
	switch e.what {
	case acquires:
		return r.acquire(w, e)
	case gets:
		return w.get(e)
	case renews:
		return w.renew(e)
	case releases:
		if w.phase(e.grant) == active {
			w.end(e.grant, released, e.gone)
		}
		return e.status == http.StatusNoContent
	case reports:
		return w.report(e)
	case flips:
		w.health[e.proxy] = e.health
	case rings:
		r.ring(w, e.timer)
	}
	return true
}

func (w *world) phase(g int16) phase {
	if g < 0 {
		return unknown
	}
	return w.grants[g].phase
}

// acquire must grant what is best, and refuse only when there is nothing.
func (r *rules) acquire(w *world, e *event) bool {
	if led := w.led[e.key] - 1; e.key != 0 && w.phase(led) == active {
		return e.status == http.StatusCreated && e.grant == led && w.shows(e)
	}
	best, none := r.choose(w, e)
	if best < 0 {
		return e.status == http.StatusConflict && e.told.noMatch == none
	}
	// A lease is granted once: its id is in use from then on, and forever.
	if e.status != http.StatusCreated || e.proxy != best || w.grants[e.grant] != (grant{}) {
		return false
	}
	w.grants[e.grant] = grant{phase: active, proxy: int8(best), ttl: int16(e.ask.TTL), timer: e.ends}
	w.active[best]++
	w.due.set(e.ends)
	if e.key != 0 {
		w.led[e.key] = e.grant + 1
	}
	return w.shows(e)
}

// choose is the best Proxy for a request, or -1 and why there is none.
func (r *rules) choose(w *world, e *event) (best int, none noMatch) {
	best = -1
	for i := range pool {
		if !e.ask.considers(&pool[i]) {
			continue
		}
		none.Considered++
		switch {
		case w.health[i] == unhealthy:
			none.Unhealthy++
		case int(w.active[i]) >= pool[i].MaxLeases:
			none.AtCapacity++
		case w.due.meets(&r.rests[i][0]), w.due.meets(&r.rests[i][e.site]):
			none.InCooldown++
		case best < 0 || w.prefers(i, best):
			best = i
		}
	}
	return best, none
}

// prefers says whether Proxy a is better than b, which comes first by key.
func (w *world) prefers(a, b int) bool {
	return cmp.Or(cmp.Compare(w.active[a], w.active[b]), cmp.Compare(w.health[a].order(), w.health[b].order())) < 0
}

// order has what has no latency come last.
func (h health) order() int {
	if h == 0 {
		return math.MaxInt
	}
	return int(h)
}

func (w *world) get(e *event) bool {
	want := w.access(e.grant)
	return e.status == want && (want != http.StatusOK || w.shows(e))
}

// renew stops the timer of the lease and sets another one.
func (w *world) renew(e *event) bool {
	want := w.access(e.grant)
	if want != http.StatusOK || e.status != want {
		return e.status == want
	}
	g := &w.grants[e.grant]
	g.ttl = int16(cmp.Or(e.ask.TTL, int(g.ttl)))
	w.due.clear(g.timer)
	g.timer = e.ends
	w.due.set(e.ends)
	return w.shows(e)
}

// access is how GET and renew are answered.
func (w *world) access(g int16) int {
	switch w.phase(g) {
	case active:
		return http.StatusOK
	case expired:
		return http.StatusGone
	default:
		return http.StatusNotFound
	}
}

// shows says whether the lease of an answer reads as it is. One that was waited for is
// read a little after it was granted, when the call wakes up.
func (w *world) shows(e *event) bool {
	g := &w.grants[e.grant]
	p := g.proxy
	return e.told.TTL == int(g.ttl) && e.proxy == int(p) &&
		(e.ask.Wait > 0 || e.told.Proxy.Active == int(w.active[p]) && e.told.health() == w.health[p])
}

// end keeps the record of a lease until its next timer rings.
func (w *world) end(g int16, as phase, gone int16) {
	w.active[w.grants[g].proxy]--
	w.due.clear(w.grants[g].timer)
	w.grants[g].phase, w.grants[g].timer = as, gone
	w.due.set(gone)
}

// report starts a cooldown, unless the same was said within two seconds.
func (w *world) report(e *event) bool {
	if w.phase(e.grant) == unknown {
		return e.status == http.StatusNotFound
	}
	if e.note != 0 && !w.due.meets(e.same) {
		w.due.set(e.rest)
		w.due.set(e.note)
	}
	return e.status == http.StatusNoContent
}

// ring ends what the timer is for. One that is not due was stopped, because its lease was
// renewed or has been released, or belongs to a report that was sent twice.
func (r *rules) ring(w *world, n int16) {
	if !w.due.has(n) {
		return
	}
	w.due.clear(n)
	t := r.timers[n]
	switch {
	case t.grant < 0: // a cooldown or a note: they last while their timers are due
	case w.phase(t.grant) == active:
		w.end(t.grant, expired, t.gone)
	default: // the proxy stays in the grant: the id is not to be used again
		g := &w.grants[t.grant]
		g.phase, g.timer = unknown, 0
	}
}

// considers says whether the request is for a Proxy like this one.
func (a ask) considers(p *fleet.Proxy) bool {
	return (a.Cluster == "" || a.Cluster == p.Cluster) && (a.Tier == nil || a.Tier.Tier == p.Attributes["tier"])
}

func siteOf(target string) int { return slices.Index(sites[:], target) }
