package lease

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// Options configure a Store. The zero value works.
type Options struct {
	// DefaultTTL is for requests that name none; default 5m, and never more
	// than MaxTTL.
	DefaultTTL time.Duration
	// MaxTTL bounds what a request may name; default 24h.
	MaxTTL time.Duration
	// CooldownWindow is how long a cooldown lasts that names no length, and
	// how long the record of an ended lease takes reports; default 10m.
	CooldownWindow time.Duration
	// MaxWaiters is how many requests may wait at once; default 1000.
	MaxWaiters int
	// Leading says whether this hub leads. Nothing is granted while it does not. It
	// is asked at every grant, under the store's lock; nil: always.
	Leading func() bool
}

func (o Options) withDefaults() Options {
	if o.DefaultTTL <= 0 {
		o.DefaultTTL = 5 * time.Minute
	}
	if o.MaxTTL <= 0 {
		o.MaxTTL = 24 * time.Hour
	}
	if o.CooldownWindow <= 0 {
		o.CooldownWindow = 10 * time.Minute
	}
	if o.MaxWaiters <= 0 {
		o.MaxWaiters = 1000
	}
	if o.Leading == nil {
		o.Leading = func() bool { return true }
	}
	o.DefaultTTL = min(o.DefaultTTL, o.MaxTTL)
	return o
}

// Store holds the leases and cooldowns in memory. Create it with New; all
// methods may be called from any goroutine.
type Store struct {
	options Options
	began   time.Time

	mu     sync.Mutex
	slots  map[*fleet.Proxy]*slot // of those in the fleet
	ghosts map[seat]*slot         // of those that have left it and have leases
	views  *views

	records map[id]*record
	// turns holds every record once: at its end while it is active, then at
	// the instant it is forgotten.
	turns     deadlines[inAll]
	byCluster map[string]int // active leases
	notes     notes

	addresses map[location]*address
	targets   map[string]*target
	cooldowns map[resting]*cooldown // the global ones apart
	rests     deadlines[ofAll]      // all of them, by their end

	keys  keys
	lines lines
	freed []*slot       // that waiters may fit since they were served last
	armed instant       // when Run wakes next
	kick  chan struct{} // wakes Run, which may be too late
}

// New returns a store that knows no Proxy. Wire it with fleet.Follow(store.Observe).
func New(options Options) *Store {
	return &Store{
		options:   options.withDefaults(),
		began:     time.Now(),
		slots:     map[*fleet.Proxy]*slot{},
		ghosts:    map[seat]*slot{},
		views:     newViews(),
		records:   map[id]*record{},
		byCluster: map[string]int{},
		notes:     notes{of: map[note]struct{}{}},
		addresses: map[location]*address{},
		targets:   map[string]*target{},
		cooldowns: map[resting]*cooldown{},
		keys:      keys{of: map[clientKey]*remembered{}},
		lines:     lines{of: map[lineKey]*line{}},
		kick:      make(chan struct{}, 1),
	}
}

// enter takes the lock and brings the store up to this instant.
func (s *Store) enter() instant {
	s.mu.Lock()
	entered := false
	defer func() {
		if !entered { // it panics, and the lock must not stay
			s.mu.Unlock()
		}
	}()
	now := instant(time.Since(s.began))
	s.play(now)
	s.serve(now)
	entered = true
	return now
}

// leave lets waiters have what has become free, and gives the lock back.
func (s *Store) leave(now instant) {
	defer s.mu.Unlock()
	s.serve(now)
	s.arm()
}

// Leading is nil, or ErrNotLeading.
func (s *Store) Leading() error {
	if !s.options.Leading() {
		return ErrNotLeading
	}
	return nil
}

// play does everything that falls due by now: first leases, then rests. Nothing is granted
// in between, so which of them ended first makes no difference.
func (s *Store) play(now instant) {
	for d, ok := s.turns.due(now); ok; d, ok = s.turns.due(now) {
		if r := d.what.record; r.state == active {
			s.end(r, d.at, expired) // not at now: a late sweep grants no longer window
		} else {
			s.forget(r)
		}
	}
	for d, ok := s.rests.due(now); ok; d, ok = s.rests.due(now) {
		s.endRest(d.what.cooldown)
	}
	s.keys.play(now)
	s.notes.play(now)
}

// Acquire grants the client a lease on the best Proxy for the request: the one
// with the fewest active leases, then the lowest latency, then the first by
// cluster, namespace and name. If there is none, the request waits as long as it asks
// to, in the order of arrival. The error is an *InvalidError, a *NoMatchError,
// ErrIdempotencyConflict, ErrTooManyWaiters, ErrNotLeading, or ctx's cause: then
// nothing was granted.
func (s *Store) Acquire(ctx context.Context, client string, req Request) (Lease, error) {
	req, err := s.check(req)
	if err != nil {
		return Lease{}, err
	}
	if ctx.Err() != nil {
		return Lease{}, context.Cause(ctx) // nobody would know of the lease
	}
	query, err := newQuery(req.Cluster, req.Selector)
	if err != nil {
		return Lease{}, err
	}
	l, w, err := s.acquire(ask{client: client, req: req, query: query})
	if w == nil {
		return l, err
	}
	return s.wait(ctx, w, req.Wait)
}

// ask is a request as the store works with it.
type ask struct {
	client string
	req    Request
	query  query
}

// acquire answers at once, or with a waiter that will be.
func (s *Store) acquire(a ask) (Lease, *waiter, error) {
	now := s.enter()
	defer s.leave(now)
	return s.answer(a, a.req.Wait > 0, now)
}

// answer is acquire under the lock, for one that may wait or not.
func (s *Store) answer(a ask, waits bool, now instant) (Lease, *waiter, error) {
	if err := s.Leading(); err != nil {
		return Lease{}, nil, err
	}
	known, err := s.keys.find(a)
	switch {
	case err != nil:
		return Lease{}, nil, err
	case known != nil && known.waiter != nil && waits:
		if err := s.room(); err != nil {
			return Lease{}, nil, err
		}
		known.waiter.sharers++
		return Lease{}, known.waiter, nil
	case known != nil && known.record != nil && known.record.state == active:
		known.record.told()
		return s.read(known.record), nil, nil
	}
	sl, none := s.search(a, now)
	if sl == nil && !waits {
		return Lease{}, nil, none
	}
	if sl != nil {
		l, err := s.grantNow(a, sl, now)
		return l, nil, err
	}
	if err := s.room(); err != nil {
		return Lease{}, nil, err
	}
	w := s.lines.join(a)
	s.keys.await(a, w)
	return Lease{}, w, nil
}

// room takes a place among those that may wait.
func (s *Store) room() error {
	if s.lines.held >= s.options.MaxWaiters {
		return ErrTooManyWaiters
	}
	s.lines.held++
	return nil
}

// grantNow grants and reads. It asks once more who leads: the search may have taken a while.
func (s *Store) grantNow(a ask, sl *slot, now instant) (Lease, error) {
	if err := s.Leading(); err != nil {
		return Lease{}, err
	}
	return s.read(s.grant(a, sl, now)), nil
}

// search is the choice: the best Proxy, or why there is none.
func (s *Store) search(a ask, now instant) (*slot, *NoMatchError) {
	t := s.targets[a.req.Target]
	v := s.views.get(a.query)
	if v == nil {
		return s.views.scan(a.query, t, now)
	}
	var p *place
	var retry instant
	var ends bool
	if t == nil || v.size == 0 {
		var best rank
		p, best = v.choose()
		retry, ends = best.until()
	} else {
		p, retry, ends = s.views.overlay(v, t).choose()
	}
	if p != nil {
		return p.slot, nil
	}
	return nil, noMatch(&v.counts, retry, ends, now)
}

// noMatch is what is told of so many Proxies of which none can be granted.
func noMatch(counts *[classes]int, retry instant, ends bool, now instant) *NoMatchError {
	none := &NoMatchError{
		Unhealthy:  counts[isSick],
		AtCapacity: counts[isFull],
		InCooldown: counts[isCooling] + counts[isFree], // free but for the target
	}
	none.Considered = none.Unhealthy + none.AtCapacity + none.InCooldown
	if ends {
		none.RetryAfter = time.Duration(retry - now)
	}
	return none
}

// grant makes the lease.
func (s *Store) grant(a ask, sl *slot, now instant) *record {
	r := &record{
		id:     newID(),
		client: a.client, target: a.req.Target, ttl: a.req.TTL,
	}
	s.hold(sl, r, now, time.Now())
	s.keys.remember(a, r, now)
	return r
}

// read is the lease as it is now. Then somebody has heard of it.
func (s *Store) read(r *record) Lease {
	r.heard = true
	l := Lease{
		ID: r.id.String(), Client: r.client, Target: r.target, TTL: r.ttl,
		ExpiresAt: time.Unix(0, r.expiresAt).UTC(),
		Proxy:     r.slot.usable, Active: r.slot.active.len(),
	}
	if !r.slot.gone {
		l.Now = r.slot.proxy
	}
	return l
}

// check refuses what cannot be granted and returns the request in full.
func (s *Store) check(req Request) (Request, error) {
	target, err := NormalizeTarget(req.Target)
	if err != nil {
		return req, err
	}
	req.Target = target
	if req.TTL, err = s.checkTTL(cmp.Or(req.TTL, s.options.DefaultTTL)); err != nil {
		return req, err
	}
	if req.Wait < 0 || req.Wait > MaxWait {
		return req, &InvalidError{Field: "waitSeconds", Message: fmt.Sprintf("must be from 0 to %d", int64(MaxWait/time.Second))}
	}
	return req, nil
}

func (s *Store) checkTTL(ttl time.Duration) (time.Duration, error) {
	if ttl < 0 || ttl > s.options.MaxTTL {
		return ttl, &InvalidError{Field: "ttlSeconds", Message: fmt.Sprintf("must be from 1 to %d", int64(s.options.MaxTTL/time.Second))}
	}
	return ttl, nil
}

// ActiveByCluster is the number of active leases per cluster that has any,
// those on Proxies that have left the fleet included.
func (s *Store) ActiveByCluster() map[string]int {
	now := s.enter()
	defer s.leave(now)
	return maps.Clone(s.byCluster)
}

// Cooldowns is the number of cooldowns that have not ended.
func (s *Store) Cooldowns() int {
	now := s.enter()
	defer s.leave(now)
	return s.rests.len()
}
