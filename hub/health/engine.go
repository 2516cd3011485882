package health

import (
	"container/heap"
	"context"
	"crypto/x509"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// Recorder is told of every probe, and of every Proxy that has left the fleet.
type Recorder interface {
	Probe(key fleet.Key, took time.Duration, failure string)
	Forget(key fleet.Key)
}

// Options configure an Engine.
type Options struct {
	Fleet *fleet.Fleet
	// URL is probed where a Proxy names none.
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
	// Log gets a line, at most one a minute, when the hub cannot probe.
	Log logr.Logger
}

// Engine probes the fleet. Create it with New.
type Engine struct {
	Options
	prober prober
	slots  chan struct{}
	wake   chan struct{} // one slot: the head of the heap may have changed

	mu     sync.Mutex
	moaned time.Time // when the log was told last that the hub cannot probe
	states map[fleet.Key]*state
	due    dueHeap
}

// state is what the engine knows of one instance. A replaced instance gets a
// new state, so that its counters start afresh and a late answer finds no one.
type state struct {
	proxy   *fleet.Proxy
	tracker tracker
	at      time.Time // when the next probe is due
	index   int       // in the heap; -1 while a probe is under way
	gone    bool
	// dropped ends with the state, and with it the probe that is under way: nobody
	// is dialled on for whom that has been ruled out.
	dropped context.Context
	drop    context.CancelFunc
}

// outdates says that p was probed in a way that has changed since.
func (s *state) outdates(p *fleet.Proxy) bool { return !p.Approach().Equal(s.proxy.Approach()) }

// New returns an Engine that follows the fleet. It probes once Run runs.
func New(o Options) *Engine {
	if o.MaxInFlight == 0 {
		o.MaxInFlight = 4096
	}
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
	}
	e := &Engine{
		Options: o, prober: prober{dialer: dialer{resolver: o.Resolver, allowLocal: o.AllowLocal}, roots: o.Roots},
		slots: make(chan struct{}, o.MaxInFlight), wake: make(chan struct{}, 1),
		states: map[fleet.Key]*state{},
	}
	o.Fleet.Follow(e.changed)
	return e
}

// changed follows the fleet; it is called under the fleet's lock.
func (e *Engine) changed(c fleet.Change) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := keyOf(c)
	s := e.states[key]
	p := c.New
	probe := p != nil && p.Probeable()
	if s != nil && (!probe || s.proxy.UID != p.UID || s.proxy.Subject() != p.Subject()) {
		e.dropLocked(key, s)
		s = nil
	}
	if c.Old != nil && (p == nil || p.UID != c.Old.UID) {
		e.Recorder.Forget(key)
	}
	switch {
	case !probe:
	case s == nil:
		s = &state{proxy: p, tracker: resume(p.Verdict), at: first(p)}
		s.dropped, s.drop = context.WithCancel(context.Background())
		e.states[key] = s
		heap.Push(&e.due, s)
		e.poke()
	default:
		sooner := !p.Check.Equal(s.proxy.Check) || s.outdates(p)
		s.proxy = p
		if sooner && s.index >= 0 {
			// Changed checks, credentials and the like are tried at once, as their editor expects.
			s.at = time.Now()
			heap.Fix(&e.due, s.index)
			e.poke()
		}
	}
}

// first says when to probe a Proxy first: at once, except that those whose
// verdict is known already, a whole fleet after a restart, are spread.
func first(p *fleet.Proxy) time.Time {
	now := time.Now()
	if p.Verdict.Health == fleet.Unknown {
		return now
	}
	return now.Add(time.Duration(rand.Int64N(int64(max(p.Check.Interval, time.Second)))))
}

func keyOf(c fleet.Change) fleet.Key {
	if c.New != nil {
		return c.New.Key
	}
	return c.Old.Key
}

func (e *Engine) dropLocked(key fleet.Key, s *state) {
	s.gone = true
	s.drop()
	delete(e.states, key)
	if s.index >= 0 {
		heap.Remove(&e.due, s.index)
	}
}

func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Run probes until ctx ends, and returns when no probe is under way any more.
func (e *Engine) Run(ctx context.Context) error {
	var probes sync.WaitGroup
	defer probes.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		s, wait := e.next()
		if s == nil {
			timer.Reset(wait)
			select {
			case <-ctx.Done():
				return nil
			case <-e.wake:
			case <-timer.C:
			}
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case e.slots <- struct{}{}:
		}
		probes.Go(func() {
			defer func() { <-e.slots }()
			e.probe(ctx, s)
		})
	}
}

// idle is how long the engine sleeps when nothing is scheduled; a change wakes it.
const idle = time.Hour

// next takes the most overdue state off the heap, or says how long none is due.
func (e *Engine) next() (*state, time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.due) == 0 {
		return nil, idle
	}
	if wait := time.Until(e.due[0].at); wait > 0 {
		return nil, wait
	}
	return heap.Pop(&e.due).(*state), 0
}

// probe runs one probe and schedules the next: an interval after this one
// began, or up to a tenth sooner, so that a fleet does not march in step and no
// verdict comes later than its threshold promises.
func (e *Engine) probe(ctx context.Context, s *state) {
	e.mu.Lock()
	p := s.proxy
	e.mu.Unlock()
	if s.dropped.Err() != nil {
		return // while it waited for its turn
	}
	began := time.Now()
	target := p.Check.URL
	if target == "" {
		target = e.URL
	}
	probeCtx, cancel := context.WithTimeout(ctx, p.Check.Timeout)
	stop := context.AfterFunc(s.dropped, cancel)
	r := e.prober.probe(probeCtx, throughOf(p), target)
	stop()
	cancel()
	if ctx.Err() != nil {
		return // the hub is stopping: what failed is not the proxy
	}
	e.finish(s, p, r, began)
}

func (e *Engine) finish(s *state, p *fleet.Proxy, r result, began time.Time) {
	now := time.Now()
	e.mu.Lock()
	if s.gone {
		e.mu.Unlock()
		return
	}
	var verdict fleet.Verdict
	told := false
	switch {
	case r.void:
		e.moanLocked(r, now)
	case s.outdates(p): // that says nothing about the proxy
	default:
		e.Recorder.Probe(p.Key, now.Sub(began), failureOf(r))
		verdict, told = s.tracker.record(r, s.proxy.Check, now)
	}
	e.mu.Unlock()
	if told {
		// Not under the engine's lock, since the fleet calls back; and before the
		// next probe is scheduled, so that verdicts arrive in order. The fleet
		// refuses one about an instance that has been replaced meanwhile.
		e.Fleet.SetVerdict(p.Key, p.Subject(), verdict)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.gone {
		return
	}
	interval := float64(s.proxy.Check.Interval)
	s.at = began.Add(time.Duration(interval * (0.9 + 0.1*rand.Float64())))
	if s.outdates(p) {
		s.at = now
	}
	heap.Push(&e.due, s)
	e.poke()
}

func (e *Engine) moanLocked(r result, now time.Time) {
	if now.Sub(e.moaned) < time.Minute {
		return
	}
	e.moaned = now
	e.Log.Info("The hub cannot probe for want of its own resources: verdicts stand still. Raise its limits, or lower --health-max-in-flight.", "cause", r.message)
}

// failureOf is empty for a probe that passed.
func failureOf(r result) string {
	if r.ok {
		return ""
	}
	return r.reason
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
