package health

import (
	"container/heap"
	"container/list"
	"context"
	"crypto/x509"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// Recorder is told of every probe, and of who has joined and left the fleet. It must be
// quick, since some of it is called under the fleet's lock.
type Recorder interface {
	// Started is called when a probe begins, lag later than it was due.
	Started(lag time.Duration)
	// Probe is called when one has ended; failure is its reason, empty if it passed.
	Probe(key fleet.Key, took time.Duration, failure string)
	// Forget is called for a Proxy that has left the fleet.
	Forget(key fleet.Key)
	// Size is how many Proxies there are now.
	Size(n int)
}

// Options configure an Engine.
type Options struct {
	Fleet *fleet.Fleet
	// URL is probed where a Proxy names none. It is probed directly as well, to know
	// whether it is what is broken.
	URL string
	// Roots verify the probed sites; nil for the system's.
	Roots *x509.CertPool
	// Resolver looks up the names of proxies; the system's where nil.
	Resolver Resolver
	// AllowLocal probes proxies on addresses that are fleet.Forbidden otherwise.
	AllowLocal bool
	// MaxInFlight bounds the probes under way; 4096 where zero.
	MaxInFlight int
	Recorder    Recorder
	// Log gets a line, at most one a minute, when the hub cannot probe, and one when
	// verdicts are held or are not any more.
	Log logr.Logger
	// PathBroken is told when no proxy of a spoke accepts a connection, and when that
	// has ended, in order. It may block for a moment. Nil: nobody is.
	PathBroken func(spoke string, broken bool)
	// Connected says whether the fleet shows a spoke as it is now; nil: it shows all. The
	// verdicts of others are not taken over.
	Connected func(spoke string) bool
	// Announce is told in words when verdicts are held, a warning, and when they are not
	// any more. It may block for a moment. Nil: nobody is.
	Announce func(warning bool, reason, message string)
}

// wire carries out probes. Only tests have another than prober.
type wire interface {
	// probe fetches what a is about through a proxy, direct does without one. They end
	// with ctx.
	probe(ctx context.Context, via through, a aim) result
	direct(ctx context.Context, a aim) result
}

// Engine probes the fleet. Create it with New.
type Engine struct {
	Options
	wire wire
	wake chan struct{} // one slot: there may be something to do

	mu        sync.Mutex
	moaned    time.Time // when the log was told last that the hub cannot probe
	size      int       // of the fleet
	states    map[fleet.Key]*state
	due       dueHeap
	awaited   map[fleet.Key]bool // who was probed before it lacked what its clients need
	slots     *slots
	paths     *paths
	suspicion suspicion
	hold      hold
	suspected bool     // as the last step found
	notices   []notice // of holds, to be told
}

// state is what the engine knows of one instance. A replaced instance gets a
// new state, so that its counters start afresh and a late answer finds no one.
type state struct {
	proxy   *fleet.Proxy
	tracker tracker
	at      time.Time     // when the next probe is due
	index   int           // in the heap; -1 while it waits for room or is probed
	waits   *list.Element // for room
	class   class         // of the next probe, or of the one under way
	managed bool
	reach   reach
	misses  int  // dials in a row that failed
	kept    bool // a verdict on it was not told, for now
	member  member
	pardons uint64             // those of the hold that its counters know of
	cancel  context.CancelFunc // of the probe that is under way, nil if none is
	gone    bool
}

// outdates says that p was probed in a way that has changed since.
func (s *state) outdates(p *fleet.Proxy) bool {
	return p != s.proxy && (!p.Check.Equal(s.proxy.Check) || !p.Approach().Equal(s.proxy.Approach()))
}

// New returns an Engine, which probes once Run runs.
func New(o Options) *Engine {
	if o.MaxInFlight == 0 {
		o.MaxInFlight = 4096
	}
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
	}
	return &Engine{
		Options: o, wire: &prober{dialer: dialer{resolver: o.Resolver, allowLocal: o.AllowLocal}, roots: o.Roots},
		wake:   make(chan struct{}, 1),
		states: map[fleet.Key]*state{}, awaited: map[fleet.Key]bool{}, slots: newSlots(o.MaxInFlight), paths: newPaths(),
	}
}

// Held says whether verdicts are held now.
func (e *Engine) Held() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.hold.holds()
}

// changed follows the fleet; it is called under the fleet's lock.
func (e *Engine) changed(c fleet.Change) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := keyOf(c)
	s := e.states[key]
	p := c.New
	probe := p != nil && p.Probeable()
	defer e.pokeForPaths()
	replaced := s != nil && (!probe || s.proxy.UID != p.UID || s.proxy.Subject() != p.Subject())
	e.countLocked(key, c)
	switch {
	case replaced && probe:
		e.addLocked(p, false) // before the one before it goes, so that the spoke is not without
		e.dropLocked(s)
	case replaced:
		delete(e.states, key)
		e.dropLocked(s)
		if p != nil && p.Lacks() {
			e.awaited[key] = true
		}
	case !probe:
	case s == nil:
		e.addLocked(p, c.Old == nil)
	default:
		sooner := s.outdates(p)
		if e.shares(p) != s.member.in {
			e.suspicion.leave(&s.member)
			e.shareLocked(s, p)
		}
		s.proxy = p
		if p.Verdict != s.tracker.verdict {
			// It is known to have been delivered here, and nowhere else: a probe may have
			// been overtaken by one who took the instance out of service and back.
			s.tracker.delivered(p.Verdict)
		}
		if sooner {
			e.hastenLocked(s)
		}
	}
}

// hastenLocked has changed checks, credentials and the like tried at once, as their
// editor expects, and the next failure told, since it may be another one.
func (e *Engine) hastenLocked(s *state) {
	s.tracker.edited = true
	switch {
	case s.cancel != nil: // what it finds out would not count
		s.cancel()
	case s.index >= 0:
		s.at = time.Now()
		heap.Fix(&e.due, s.index)
		e.poke()
	}
}

func (e *Engine) countLocked(key fleet.Key, c fleet.Change) {
	if c.Old != nil && (c.New == nil || c.New.UID != c.Old.UID) {
		e.Recorder.Forget(key)
		delete(e.awaited, key)
	}
	switch {
	case c.Old == nil:
		e.size++
	case c.New == nil:
		e.size--
	default:
		return
	}
	e.Recorder.Size(e.size)
}

// unknownSpread is over how long at most the first probes of a batch without verdicts are
// spread.
const unknownSpread = time.Minute

// addLocked begins to probe a Proxy: at once, except that those which were there
// before, a whole fleet after a restart, and those whose verdict is known already,
// are spread over their interval. One that is spoken to otherwise than when it was
// judged is tried at once all the same.
func (e *Engine) addLocked(p *fleet.Proxy, atFirstSight bool) {
	now := time.Now()
	at, anew := now, e.awaited[p.Key]
	delete(e.awaited, p.Key)
	if atFirstSight || p.Verdict.Health != fleet.Unknown && !anew {
		over := max(p.Check.Interval, time.Second)
		if p.Verdict.Health == fleet.Unknown { // and out of service until it is probed
			over = min(over, unknownSpread)
		}
		at = at.Add(time.Duration(rand.Int64N(int64(over))))
	}
	s := &state{proxy: p, tracker: resume(p.Verdict, now), at: at, managed: p.Managed, pardons: e.hold.pardons}
	s.tracker.edited = anew
	if p.Verdict.Health == fleet.Healthy {
		s.class = sound
	}
	e.states[p.Key] = s
	e.paths.add(p.Cluster, s.managed, s.reach)
	e.shareLocked(s, p)
	heap.Push(&e.due, s)
	if s.index == 0 {
		e.poke()
	}
}

// shares says whether p is probed with the hub's own URL.
func (e *Engine) shares(p *fleet.Proxy) bool { return p.Check.URL == "" || p.Check.URL == e.URL }

func (e *Engine) shareLocked(s *state, p *fleet.Proxy) {
	if e.shares(p) {
		e.suspicion.join(&s.member, p.Cluster, s.class == sound)
	}
}

func keyOf(c fleet.Change) fleet.Key {
	if c.New != nil {
		return c.New.Key
	}
	return c.Old.Key
}

// dropLocked forgets a state, and ends the probe that is under way: nobody is dialled
// on for whom that has been ruled out.
func (e *Engine) dropLocked(s *state) {
	s.gone = true
	if s.cancel != nil {
		s.cancel()
	}
	e.slots.leave(s)
	e.paths.remove(s.proxy.Cluster, s.managed, s.reach)
	if e.paths.spokes[s.proxy.Cluster] == nil {
		e.slots.forget(s.proxy.Cluster)
	}
	e.suspicion.leave(&s.member)
	if s.index >= 0 {
		heap.Remove(&e.due, s.index)
	}
}

func (e *Engine) pokeForPaths() {
	if e.paths.fresh {
		e.poke()
	}
}

func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// dueHeap orders states by due time.
type dueHeap []*state

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) {
	s := x.(*state)
	s.index = len(*h)
	*h = append(*h, s)
}

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	old := *h
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	s.index = -1
	return s
}
