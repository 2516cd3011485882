package rest_test

import (
	"net/http"
	"slices"
	"testing"
	"time"
)

// made is an event of a history that is made by hand, from and to in milliseconds.
func made(from, to int, what action, id string, status int, changes ...func(*event)) event {
	e := event{
		what: what, id: id, status: status,
		from: time.Duration(from) * time.Millisecond, to: time.Duration(to) * time.Millisecond,
	}
	if what == acquires { // by this there is but one Proxy
		e.ask = ask{Cluster: "eu", Tier: &tier{"fast"}, TTL: 1}
	}
	for _, change := range changes {
		change(&e)
	}
	return e
}

// leased is an answer with a lease.
func leased(ttl int) func(*event) {
	return func(e *event) {
		e.told.TTL = ttl
		p := &e.told.Proxy
		p.Cluster, p.Namespace, p.Name = "eu", "crawl", "a"
		p.Healthy, p.Latency, p.Active = true, 41, 1
	}
}

func full(e *event)    { e.told.noMatch = noMatch{Considered: 1, AtCapacity: 1} }
func cooling(e *event) { e.told.noMatch = noMatch{Considered: 1, InCooldown: 1} }
func banned(e *event)  { e.ask.Result, e.ask.Cooldown = "banned", 1 }
func longer(e *event)  { e.ask.TTL = 2 }

// legal has every action, and what happens by itself in the middle of calls.
func legal() history {
	return history{
		made(0, 10, acquires, "A", http.StatusCreated, leased(1)),
		made(5, 15, acquires, "", http.StatusConflict, full),
		made(500, 510, renews, "A", http.StatusOK, longer, leased(2)),
		made(1200, 1210, gets, "A", http.StatusOK, leased(2)),
		// A expires from 2500 to 2510.
		made(2502, 2507, gets, "A", http.StatusOK, leased(2)),
		made(2504, 2506, gets, "A", http.StatusGone),
		made(2505, 2520, acquires, "B", http.StatusCreated, leased(1)),
		made(2600, 2610, reports, "A", http.StatusNoContent, banned),
		made(2700, 2710, reports, "A", http.StatusNoContent, banned), // does not count
		made(2800, 2810, releases, "B", http.StatusNoContent),
		made(2820, 2830, gets, "B", http.StatusNotFound),
		// The record of A is gone from 3500 to 3510, the cooldown over from 3600 to 3610.
		made(3500, 3505, acquires, "", http.StatusConflict, cooling),
		made(3515, 3525, reports, "A", http.StatusNotFound, banned),
		made(3605, 3620, acquires, "C", http.StatusCreated, leased(1)),
	}
}

func TestLinearHistoriesMadeByHandAreToldApart(t *testing.T) {
	h := legal()
	h.mustHold(t)
	for name, e := range map[string]event{
		"expired while it runs":          made(2400, 2499, gets, "A", http.StatusGone),
		"runs when it has expired":       made(2511, 2600, gets, "A", http.StatusOK, leased(2)),
		"a second lease before that":     made(2450, 2499, acquires, "D", http.StatusCreated, leased(1)),
		"full when there was no lease":   made(2815, 2820, acquires, "", http.StatusConflict, full),
		"still resting":                  made(3611, 3615, acquires, "", http.StatusConflict, cooling),
		"granted while it rests":         made(2900, 2910, acquires, "D", http.StatusCreated, leased(1)),
		"forgotten too early":            made(3400, 3499, gets, "A", http.StatusNotFound),
		"a report on what is forgotten":  made(3511, 3520, reports, "A", http.StatusNoContent, banned),
		"renewed after its release":      made(2850, 2900, renews, "B", http.StatusOK, longer, leased(2)),
		"there before it was granted":    made(2400, 2490, gets, "B", http.StatusOK, leased(1)),
		"unhealthy, with a good verdict": made(100, 110, gets, "A", http.StatusOK, leased(1), func(e *event) { e.told.Proxy.Healthy = false }),
	} {
		t.Run(name, func(t *testing.T) {
			slices.Concat(h, history{e}).mustNotHold(t)
		})
	}
}
