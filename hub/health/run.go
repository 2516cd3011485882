package health

import (
	"container/heap"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// directTimeout is how long a direct probe of the hub's URL may take: as long as one
// through a proxy by default.
const directTimeout = 10 * time.Second

// keptInterval is how soon a Proxy is probed again whose verdict is kept: it must not
// outlast the hold by a day, where that is its interval.
const keptInterval = time.Minute

// Run probes until ctx ends, and returns when no probe is under way any more. It takes
// the judging of the fleet over from whoever wrote the statuses before. It may be
// called once.
func (e *Engine) Run(ctx context.Context) error {
	e.Fleet.Judge(e.Connected)
	e.Fleet.Follow(e.changed)
	var probes sync.WaitGroup
	defer probes.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		todo := e.step(ctx, time.Now())
		for _, r := range todo.rounds {
			probes.Go(func() { e.probe(r) })
		}
		if todo.direct {
			probes.Go(func() { e.askDirectly(ctx) })
		}
		e.tell(todo)
		timer.Reset(todo.wait)
		select {
		case <-ctx.Done():
			return nil
		case <-e.wake:
		case <-timer.C:
		}
	}
}

// todo is what there is to do at one moment.
type todo struct {
	rounds  []round
	direct  bool // the hub's URL is to be probed directly
	paths   map[string]bool
	notices []notice
	wait    time.Duration // until there may be more
}

// round is one probe of a state, as it was when the probe began.
type round struct {
	state  *state
	proxy  *fleet.Proxy
	ctx    context.Context
	cancel context.CancelFunc
	began  time.Time
}

// step begins what is due. It costs the same however many Proxies there are for which
// nothing is.
func (e *Engine) step(ctx context.Context, now time.Time) todo {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.due) > 0 && !e.due[0].at.After(now) {
		e.slots.wait(heap.Pop(&e.due).(*state))
	}
	t := todo{wait: never}
	for s := e.slots.next(); s != nil; s = e.slots.next() {
		t.rounds = append(t.rounds, e.beginLocked(ctx, s, now))
	}
	if len(e.due) > 0 {
		t.wait = e.due[0].at.Sub(now)
	}
	e.endedLocked(e.hold.expire(now), result{})
	e.suspected = e.suspicion.raised(now)
	t.direct = e.hold.asks(e.suspicion.members, e.suspected, now)
	t.wait = min(t.wait, e.hold.wait(e.suspicion.members, e.suspected, now))
	var rest time.Duration
	t.paths, rest = e.paths.take(now)
	t.wait = min(t.wait, rest)
	t.notices, e.notices = e.notices, nil
	return t
}

func (e *Engine) beginLocked(ctx context.Context, s *state, now time.Time) round {
	e.Recorder.Started(now.Sub(s.at))
	r := round{state: s, proxy: s.proxy, began: now}
	r.ctx, r.cancel = context.WithTimeout(ctx, s.proxy.Check.Timeout)
	s.cancel = r.cancel
	return r
}

// probe runs one probe and schedules the next: an interval after this one
// began, or up to a tenth sooner, so that a fleet does not march in step and no
// verdict comes later than its threshold promises.
func (e *Engine) probe(r round) {
	check := r.proxy.Check
	a := aim{url: check.URL, expected: check.ExpectedStatuses, insecure: check.InsecureSkipVerify}
	if a.url == "" { // which is not shown to whoever passes for its site
		a.url, a.insecure = e.URL, false
	}
	found := e.wire.probe(r.ctx, throughOf(r.proxy), a)
	off := errors.Is(r.ctx.Err(), context.Canceled)
	r.cancel()
	now := time.Now()
	if !off { // else the hub is stopping, or the instance has gone: what failed is not the proxy
		if verdict, news := e.record(r, found, now); news {
			// Not under the engine's lock, since the fleet calls back, which is how it is
			// known to be delivered; and before the next probe is scheduled, so that verdicts
			// arrive in order. The fleet refuses one about an instance that was replaced.
			e.Fleet.SetVerdict(r.proxy.Key, r.proxy.Subject(), verdict)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s := r.state
	s.cancel = nil
	e.slots.release(r.proxy.Cluster, s.class)
	if e.slots.anyWait() {
		e.poke()
	}
	if !s.gone {
		if !off && !found.void && !s.outdates(r.proxy) {
			s.class = dubious
			if found.ok {
				s.class = sound
			}
		}
		e.scheduleLocked(r, off, now)
	}
}

func (e *Engine) scheduleLocked(r round, off bool, now time.Time) {
	s := r.state
	interval := float64(s.proxy.Check.Interval)
	s.at = r.began.Add(time.Duration(interval * (0.9 + 0.1*rand.Float64())))
	if s.outdates(r.proxy) {
		s.tracker.edited = true // a verdict from before may have been told meanwhile
	}
	if off || s.outdates(r.proxy) || s.at.Before(now) {
		s.at = now // one that takes longer than its interval delays the next
	}
	if soon := now.Add(keptInterval); s.kept && soon.Before(s.at) {
		s.at = soon
	}
	heap.Push(&e.due, s)
	if s.index == 0 {
		e.poke()
	}
}

// record takes a result into account, and returns what is to be told of it, if anything.
func (e *Engine) record(r round, found result, now time.Time) (fleet.Verdict, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := r.state
	switch {
	case s.gone, s.outdates(r.proxy): // that says nothing about the proxy
		return fleet.Verdict{}, false
	case found.void:
		e.moanLocked(found, now)
		return fleet.Verdict{}, false
	}
	e.Recorder.Probe(r.proxy.Key, now.Sub(r.began), failureOf(found))
	if s.pardons != e.hold.pardons {
		s.pardons = e.hold.pardons
		if s.member.in {
			s.tracker.forgive()
			e.suspicion.forgive(&s.member)
		}
	}
	s.kept = false
	e.noticeLocked(s, found, now)
	verdict, news := s.tracker.record(found, s.proxy.Check, now)
	if news && verdict.Health == fleet.Unhealthy && s.member.in && e.hold.keeps() && !s.tracker.ownFault(found, s.proxy.Check) {
		s.kept = true
		return verdict, false // it stays news
	}
	return verdict, news
}

// noticeLocked looks beyond the one Proxy, to its spoke and to all that are probed with
// the hub's URL.
func (e *Engine) noticeLocked(s *state, found result, now time.Time) {
	reach := found.reach
	if s.misses++; reach != undialled {
		s.misses = 0
	} else if s.misses < pathMisses {
		reach = s.reach // it may have been a moment's
	}
	e.paths.move(s.proxy.Cluster, s.managed, s.reach, reach)
	s.reach = reach
	e.suspicion.record(&s.member, found.ok, s.proxy.Check.Interval, now)
	e.endedLocked(e.hold.expire(now), result{})
	e.pokeForPaths()
	if e.suspicion.raised(now) != e.suspected {
		e.poke()
	}
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
