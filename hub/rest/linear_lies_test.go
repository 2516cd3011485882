package rest_test

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// tour is a walk through the end of a history, by one crawler while nobody else does
// anything: so that of each of its answers it is known what must not be in its place.
type tour struct {
	history
	// Places in the history.
	first, second, again, early, full, released, renewed, short, late, banned, resting int
}

// see adds a call and says where it is.
func (w *tour) see(t *testing.T, c *crawler, status int, e event) int {
	t.Helper()
	e = c.do(e)
	if e.status != status {
		t.Fatalf("%v, want %d", &e, status)
	}
	return len(c.events) - 1
}

// walk goes through a round that is over.
func walk(t *testing.T, r *round) *tour {
	c, w := r.crawler(100, 0), &tour{}
	for _, id := range slices.Clone(r.ids) {
		c.do(event{what: releases, id: id})
	}
	<-time.After(2*time.Second + tick) // the longest cooldown of a round
	for proxy, latency := range []health{30, 10, 20, 0} {
		c.flip(proxy, latency)
	}
	id := func(place int) string { return r.events[place].id }
	long := event{what: acquires, ask: ask{TTL: 60, Target: sites[1]}}
	keyed := event{what: acquires, ask: ask{TTL: 50}, key: maxKeys - 1}
	w.first = w.see(t, c, http.StatusCreated, long)
	w.second = w.see(t, c, http.StatusCreated, long)
	w.see(t, c, http.StatusCreated, keyed)
	w.again = w.see(t, c, http.StatusCreated, keyed)
	w.early = w.see(t, c, http.StatusOK, event{what: gets, id: id(w.first)})
	for range 3 {
		w.see(t, c, http.StatusCreated, long)
	}
	w.full = w.see(t, c, http.StatusConflict, long)
	w.released = w.see(t, c, http.StatusNoContent, event{what: releases, id: id(w.first)})
	w.renewed = w.see(t, c, http.StatusNotFound, event{what: renews, id: id(w.first), ask: ask{TTL: 60}})
	w.short = w.see(t, c, http.StatusCreated, event{what: acquires, ask: ask{TTL: 1}})
	<-time.After(time.Second + tick)
	c.do(event{what: gets, id: id(w.short)}) // expired, or forgotten if the test was held up
	w.late = len(r.events) - 1
	w.see(t, c, http.StatusCreated, long)
	w.banned = w.see(t, c, http.StatusNoContent, event{what: reports, id: id(w.second), ask: ask{Result: "banned", Cooldown: 60}})
	w.see(t, c, http.StatusNoContent, event{what: releases, id: id(w.second)})
	w.resting = w.see(t, c, http.StatusConflict, long)
	w.history = r.events
	return w
}

// lies turn an answer of the tour into one that the server must not give, and return the
// place at which that shows. What came after is left out: it may not fit the lie either.
var lies = map[string]func(h history, w *tour) int{
	"another Proxy than the best": func(h history, w *tour) int {
		h[w.first].told = h[w.second].told
		return w.first
	},
	"a grant while all are full": func(h history, w *tour) int {
		h[w.full].grants(h[w.first].told, 3)
		return w.full
	},
	"a refusal while one is free": func(h history, w *tour) int {
		h[w.first].status, h[w.first].id, h[w.first].told = http.StatusConflict, "", h[w.full].told
		return w.first
	},
	"counts that are off by one": func(h history, w *tour) int {
		h[w.full].told.AtCapacity--
		h[w.full].told.InCooldown++
		return w.full
	},
	"activeLeases off by one": func(h history, w *tour) int {
		h[w.early].told.Proxy.Active++
		return w.early
	},
	"one key, two leases": func(h history, w *tour) int {
		h[w.again].grants(h[w.first].told, 2)
		return w.again
	},
	"one id, two leases": func(h history, w *tour) int {
		h[w.second].id = h[w.first].id
		return w.second
	},
	"a lease that expires before its time": func(h history, w *tour) int {
		h[w.early].status = http.StatusGone
		return w.early
	},
	"a lease that is there after its time": func(h history, w *tour) int {
		h[w.late].status, h[w.late].told = http.StatusOK, h[w.short].told
		return w.late
	},
	"a released lease renewed": func(h history, w *tour) int {
		h[w.renewed].status, h[w.renewed].told = http.StatusOK, h[w.first].told
		h[w.renewed].told.Proxy.Active = 2
		return w.renewed
	},
	"a release that is of another lease": func(h history, w *tour) int {
		h[w.released].id = h[w.second].id
		return w.renewed
	},
	"a report without effect": func(h history, w *tour) int {
		h[w.banned].ask.Result = "ok"
		return w.resting
	},
	"a grant of what is resting": func(h history, w *tour) int {
		h[w.resting].grants(h[w.second].told, 2)
		return w.resting
	},
}

// grants makes an event the grant of a lease that there is not.
func (e *event) grants(as told, active int) {
	e.status, e.id, e.told = http.StatusCreated, "FORGED", as
	e.told.Proxy.Active, e.told.TTL = active, e.ask.TTL
}

func TestLinearHistoriesThatLieAreFoundOut(t *testing.T) {
	r := newRound(t)
	r.play(cast{busy: 6, turns: 20, patient: 1}, rand.Uint64())
	w := walk(t, r)
	w.mustHold(t)
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			h := slices.Clone(w.history)
			until := lie(h, w)
			h[:until+1].mustNotHold(t)
		})
	}
}

func (h history) mustNotHold(t *testing.T) {
	t.Helper()
	r := h.replay()
	if got := porcupine.CheckOperationsTimeout(r.model(), r.operations(), checkTimeout); got != porcupine.Illegal {
		t.Errorf("%s, want %s", got, porcupine.Illegal)
	}
}
