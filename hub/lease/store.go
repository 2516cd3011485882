package lease

import (
	"crypto/rand"
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
	o.DefaultTTL = min(o.DefaultTTL, o.MaxTTL)
	return o
}

// Store holds the leases and cooldowns in memory. Create it with New; all
// methods may be called from any goroutine.
type Store struct {
	options Options

	mu      sync.Mutex
	seats   map[seatKey]*seat
	records map[string]*record // by lease id
	// turns holds every record once: at its end while it is active, then at
	// the instant it is forgotten.
	turns     deadlines[*record]
	byCluster map[string]int // active leases
	cooldowns map[cooldownKey]*deadline[cooldownKey]
	rests     deadlines[cooldownKey] // the same cooldowns, by their end
}

// seatKey tells a Proxy from its namesakes before and after it.
type seatKey struct {
	fleet.Key
	uid string
}

// seat is a Proxy and its active leases. It lives while the Proxy is in the
// fleet or has one.
type seat struct {
	key seatKey
	// proxy is nil once the Proxy has left the fleet.
	proxy *fleet.Proxy
	// endpoint is proxy's, joined once.
	endpoint string
	active   deadlines[*record]
}

// record is a lease, and for one cooldown window what is left of it.
type record struct {
	id, client, target string
	seat               *seat
	// endpoint is the one that the client was given: a report is about that
	// address, whatever the Proxy's is by then.
	endpoint string
	turn     *deadline[*record]
	// holds is its place among the seat's active leases, nil once it has ended.
	holds *deadline[*record]
	// reports are the recent ones, for recognising the same one sent again;
	// tidied is when the old ones were dropped last.
	reports map[Report]time.Time
	tidied  time.Time
}

// New returns a store that knows no Proxy. Wire it with fleet.Follow(store.Observe).
func New(options Options) *Store {
	return &Store{
		options:   options.withDefaults(),
		seats:     map[seatKey]*seat{},
		records:   map[string]*record{},
		byCluster: map[string]int{},
		cooldowns: map[cooldownKey]*deadline[cooldownKey]{},
	}
}

// Observe takes one change of the fleet. It is a follower: it takes the
// store's mutex alone and returns quickly.
func (s *Store) Observe(c fleet.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Old != nil && (c.New == nil || c.New.UID != c.Old.UID) {
		if st := s.seats[seatKey{c.Old.Key, c.Old.UID}]; st != nil {
			st.proxy = nil
			s.clear(st)
		}
	}
	if c.New == nil {
		return
	}
	key := seatKey{c.New.Key, c.New.UID}
	st := s.seats[key]
	if st == nil {
		st = &seat{key: key}
		s.seats[key] = st
	}
	st.proxy, st.endpoint = c.New, c.New.Endpoint()
}

// clear drops the seat when nothing needs it any more.
func (s *Store) clear(st *seat) {
	if st.proxy == nil && st.active.len() == 0 {
		delete(s.seats, st.key)
	}
}

// Acquire grants the client a lease on the best Proxy for the request: the one
// with the fewest active leases, then the lowest latency, then the first by
// cluster, namespace and name. The error is an *InvalidError or a *NoMatchError.
func (s *Store) Acquire(client string, req Request) (Lease, error) {
	req, err := s.check(req)
	if err != nil {
		return Lease{}, err
	}
	id := rand.Text() // 26 letters and digits, 130 bits

	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.play(now)
	found := s.search(now, req)
	if found.best.proxy == nil {
		return Lease{}, found.noMatch()
	}
	st := found.best.seat
	r := &record{id: id, client: client, target: req.Target, seat: st, endpoint: st.endpoint}
	end := now.Add(req.TTL)
	r.turn, r.holds = s.turns.add(end, r), st.active.add(end, r)
	s.records[id] = r
	s.byCluster[st.key.Cluster]++
	return Lease{
		ID: id, Client: client, Target: r.target, TTL: req.TTL, ExpiresAt: end.UTC(),
		Proxy: st.proxy, Active: st.active.len(),
	}, nil
}

// check refuses what cannot be granted and returns the request in full.
func (s *Store) check(req Request) (Request, error) {
	if err := checkSelector(req.Selector); err != nil {
		return req, err
	}
	target, err := NormalizeTarget(req.Target)
	if err != nil {
		return req, err
	}
	req.Target = target
	if req.TTL == 0 {
		req.TTL = s.options.DefaultTTL
	}
	if req.TTL < 0 || req.TTL > s.options.MaxTTL {
		return req, &InvalidError{Field: "ttlSeconds", Message: fmt.Sprintf("must be from 1 to %d", int64(s.options.MaxTTL/time.Second))}
	}
	return req, nil
}

func (s *Store) search(now time.Time, req Request) *search {
	found := &search{selector: req.Selector, cluster: req.Cluster, now: now}
	found.coolsUntil = func(c candidate) time.Time {
		return s.coolsUntil(c.proxy.Key, c.seat.endpoint, req.Target)
	}
	for _, st := range s.seats {
		if st.proxy == nil {
			continue
		}
		c := candidate{proxy: st.proxy, active: st.active.len(), seat: st}
		if first := st.active.first(); first != nil {
			c.firstEnd = first.at
		}
		found.look(c)
	}
	return found
}

// Active is the number of active leases on the Proxy with this key and UID.
func (s *Store) Active(key fleet.Key, uid string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.play(time.Now())
	if st := s.seats[seatKey{key, uid}]; st != nil {
		return st.active.len()
	}
	return 0
}

// ActiveByCluster is the number of active leases per cluster that has any,
// those on Proxies that have left the fleet included.
func (s *Store) ActiveByCluster() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.play(time.Now())
	return maps.Clone(s.byCluster)
}

// Cooldowns is the number of cooldowns that have not ended.
func (s *Store) Cooldowns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.play(time.Now())
	return len(s.cooldowns)
}
