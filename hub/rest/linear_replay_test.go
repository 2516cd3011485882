package rest_test

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// history is what happened on one server, in any order.
type history []event

// replay is a history as the checker takes it: with everything numbered, and with events
// for what happened by itself.
type replay struct {
	rules
	events []event
	grants []granting
	byID   map[string]int16
	notes  map[note]*timers
}

// granting is what is known about a grant. Of the calls with one Idempotency-Key that were
// answered with the lease any may have been the one that was granted it; so it was granted
// after the first of them was asked, and before the first was answered.
type granting struct {
	from, to, ttl time.Duration
	site, proxy   int
	ends          int16
}

// note is a report as it is recognised when it comes again.
type note struct {
	grant          int16
	site, cooldown int
	result         string
}

func (h history) replay() *replay {
	r := &replay{byID: map[string]int16{}, notes: map[note]*timers{}}
	r.timers = []timer{{}} // none
	for _, e := range h {
		r.granted(e)
	}
	for i, g := range r.grants {
		r.grants[i].ends = r.lasts(int16(i), g.from, g.to, g.ttl)
	}
	for _, e := range h {
		r.add(e)
	}
	r.ring()
	return r
}

func (r *replay) granted(e event) {
	if e.what != acquires || e.status != http.StatusCreated {
		return
	}
	n, known := r.byID[e.id]
	if !known {
		r.byID[e.id] = int16(len(r.grants))
		r.grants = append(r.grants, granting{e.from, e.to, seconds(e.told.TTL), siteOf(e.ask.Target), e.told.inPool(), 0})
		if len(r.grants) > maxGrants {
			panic("too many leases in a history: make it shorter")
		}
		return
	}
	g := &r.grants[n]
	g.from, g.to = min(g.from, e.from), min(g.to, e.to)
}

// lasts is the timer of a lease that was granted or renewed in that interval.
func (r *replay) lasts(grant int16, from, to, ttl time.Duration) int16 {
	from, to = from+ttl, to+ttl
	return r.timer(timer{from, to, grant, r.timer(timer{from + window, to + window, grant, 0})})
}

func (r *replay) timer(t timer) int16 {
	if len(r.timers) == maxTimers {
		panic("too much ends by itself in a history: make it shorter")
	}
	r.timers = append(r.timers, t)
	return int16(len(r.timers) - 1)
}

// add numbers an event.
func (r *replay) add(e event) {
	e.site, e.grant = siteOf(e.ask.Target), -1
	if n, known := r.byID[e.id]; known {
		e.grant = n
	}
	if e.status == http.StatusOK || e.status == http.StatusCreated {
		e.proxy = e.told.inPool()
	}
	switch {
	case e.grant < 0 || r.grants[e.grant].proxy < 0: // nothing follows from it: no step takes such a grant
	case e.what == acquires:
		e.ends = r.grants[e.grant].ends
	case e.what == renews && e.status == http.StatusOK:
		e.ends = r.lasts(e.grant, e.from, e.to, seconds(e.told.TTL))
	case e.what == releases:
		e.gone = r.timer(timer{e.from + window, e.to + window, e.grant, 0})
	case e.what == reports && e.ask.Result != "ok":
		r.report(&e)
	}
	r.events = append(r.events, e)
}

// report finds out what the report starts a cooldown for, if it does.
func (r *replay) report(e *event) {
	g := r.grants[e.grant]
	if e.site == 0 {
		e.site = g.site
	}
	cooldown := cmp.Or(e.ask.Cooldown, int(window/time.Second))
	rest := seconds(cooldown)
	e.rest = r.timer(timer{e.from + rest, e.to + rest, -1, 0})
	r.rests[g.proxy][e.site].set(e.rest)

	const sameReport = 2 * time.Second
	e.note = r.timer(timer{e.from + sameReport, e.to + sameReport, -1, 0})
	n := note{e.grant, e.site, cooldown, e.ask.Result}
	if r.notes[n] == nil {
		r.notes[n] = &timers{}
	}
	r.notes[n].set(e.note)
	e.same = r.notes[n]
}

// ring adds the timers that may have rung before the history ended. That a record is gone
// shows in calls about it alone: when there are none that late, its timer is left out, since
// every event that is in the middle of others makes the search longer.
func (r *replay) ring() {
	var last time.Duration
	asked := make([]time.Duration, len(r.grants)) // when each lease was asked about last
	for _, e := range r.events {
		last = max(last, e.to)
		if e.grant >= 0 && e.what != releases {
			asked[e.grant] = max(asked[e.grant], e.to)
		}
	}
	for n, t := range r.timers {
		record := t.grant >= 0 && t.gone == 0
		if n > 0 && t.from <= last && (!record || t.from <= asked[t.grant]) {
			r.events = append(r.events, event{what: rings, from: t.from, to: t.to, timer: int16(n), grant: t.grant})
		}
	}
}

// operations are the events as porcupine takes them.
func (r *replay) operations() []porcupine.Operation {
	slices.SortStableFunc(r.events, func(a, b event) int { return cmp.Compare(a.from, b.from) })
	ops := make([]porcupine.Operation, len(r.events))
	var busy []time.Duration // until when, the lines in which the checker draws what clients do
	for i := range r.events {
		e := &r.events[i]
		line := slices.IndexFunc(busy, func(until time.Duration) bool { return until < e.from })
		if line < 0 {
			line = len(busy)
			busy = append(busy, 0)
		}
		busy[line] = e.to
		ops[i] = porcupine.Operation{ClientId: line, Input: e, Call: int64(e.from), Return: int64(e.to)}
	}
	return ops
}

func (r *replay) model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return newWorld() },
		Step: func(state, input, _ any) (bool, any) {
			w := state.(world)
			legal := r.step(&w, input.(*event))
			return legal, w
		},
		Hash:              func(state any) uint64 { return state.(world).hash() },
		DescribeOperation: func(input, _ any) string { return input.(*event).String() },
		DescribeState:     func(state any) string { return r.describe(state.(world)) },
	}
}

func (r *replay) describe(w world) string {
	text := ""
	for i := range pool {
		text += fmt.Sprintf("%s: %d ms, %d of %d", pool[i].Key, w.health[i], w.active[i], pool[i].MaxLeases)
		for s, site := range sites {
			if w.due.meets(&r.rests[i][s]) {
				text += fmt.Sprintf(", rests from %q", site)
			}
		}
		text += "\n"
	}
	for i, g := range w.grants[:len(r.grants)] {
		if g.phase != unknown {
			text += fmt.Sprintf("lease %d of %s is %s\n", i, pool[g.proxy].Key, g.phase)
		}
	}
	return text
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }
