package lease

import (
	"slices"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

func TestChoiceIsFewestLeasesThenLatencyThenName(t *testing.T) {
	ms := time.Millisecond
	type offer struct {
		proxy *fleet.Proxy
		held  int
	}
	for _, tc := range []struct {
		name          string
		first, second offer
	}{
		{"fewer leases beat latency and name", offer{proxy("z", latency(900*ms)), 1}, offer{proxy("a", latency(ms)), 2}},
		{"lower latency beats name", offer{proxy("z", latency(20*ms)), 0}, offer{proxy("a", latency(21*ms)), 0}},
		{"what reads the same is the same latency", offer{proxy("a", latency(20*ms+400*time.Microsecond)), 0}, offer{proxy("b", latency(20*ms)), 0}},
		{"no latency sorts last", offer{proxy("z", latency(50*24*time.Hour)), 0}, offer{proxy("a", latency(0)), 0}},
		{"a very small latency is not none", offer{proxy("z", latency(time.Microsecond)), 0}, offer{proxy("a", latency(2*ms)), 0}},
		{"cluster before namespace before name", offer{proxy("z", in("a", "z")), 0}, offer{proxy("a", in("b", "a")), 0}},
		{"namespace before name", offer{proxy("z", in("a", "a")), 0}, offer{proxy("a", in("a", "b")), 0}},
		{"name last", offer{proxy("a"), 0}, offer{proxy("b"), 0}},
		{"a full one does not win", offer{proxy("b"), 5}, offer{proxy("a", limit(1)), 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := rankOf(tc.first.proxy, tc.first.held, 0, 0)
			b := rankOf(tc.second.proxy, tc.second.held, 0, 0)
			if a > b || a == b && tc.first.proxy.Compare(tc.second.proxy.Key) > 0 || a.class() != isFree {
				t.Errorf("%x against %x", a, b)
			}
		})
	}
}

func TestEveryProxyIsCountedAsOneThing(t *testing.T) {
	for _, tc := range []struct {
		name            string
		proxy           *fleet.Proxy
		held            int
		firstEnd, cools instant
		want            class
		until           instant
	}{
		{"free", proxy("a"), 3, 5, 0, isFree, 0},
		{"below its limit", proxy("a", limit(2)), 1, 5, 0, isFree, 0},
		{"at its limit", proxy("a", limit(2)), 2, 5, 0, isFull, 5},
		{"above a lowered limit", proxy("a", limit(1)), 3, 7, 0, isFull, 7},
		{"cooling", proxy("a"), 0, 0, 9, isCooling, 9},
		{"full and cooling is full, and free when both have passed", proxy("a", limit(1)), 1, 5, 9, isFull, 9},
		{"full and cooling, the other way round", proxy("a", limit(1)), 1, 9, 5, isFull, 9},
		{"unhealthy", proxy("a", health(fleet.Unhealthy)), 0, 0, 0, isSick, 0},
		{"without a verdict", proxy("a", health(fleet.Unknown)), 0, 0, 0, isSick, 0},
		{"unhealthy before full and cooling", proxy("a", health(fleet.Unhealthy), limit(1)), 1, 5, 9, isSick, 0},
		{"withdrawn", proxy("a", func(p *fleet.Proxy) { p.Withdrawn = true }), 0, 0, 0, isSick, 0},
		{"not provisioned", proxy("a", func(p *fleet.Proxy) { p.Provisioned = false }), 0, 0, 0, isSick, 0},
		{"without an address", proxy("a", func(p *fleet.Proxy) { p.Host = "" }), 0, 0, 0, isSick, 0},
		{"deleting before all", proxy("a", health(fleet.Unhealthy), func(p *fleet.Proxy) { p.Deleting = true }), 1, 5, 9, isLeaving, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := rankOf(tc.proxy, tc.held, tc.firstEnd, tc.cools)
			until, blocked := r.until()
			if r.class() != tc.want || until != tc.until || blocked != (tc.until > 0) {
				t.Errorf("class %d until %d, %v", r.class(), until, blocked)
			}
		})
	}
}

func TestRanksKeepTheirOrderAtTheirEnds(t *testing.T) {
	const years = instant(70 * 365 * 24 * time.Hour)
	ascending := []rank{
		freeRank(0, 1), freeRank(0, 1<<40), freeRank(0, 0), freeRank(1, 1), freeRank(1<<40, 1<<40), freeRank(1<<40, 0),
		blockedRank(-1, isFull), blockedRank(0, isCooling), blockedRank(1, isFull), blockedRank(1, isCooling), blockedRank(years, isFull), blockedRank(1<<62, isCooling),
		sick, leaving,
	}
	if !slices.IsSorted(ascending) || len(slices.Compact(slices.Clone(ascending))) != len(ascending) {
		t.Errorf("%x", ascending)
	}
	if until, ok := blockedRank(years, isCooling).until(); !ok || until != years {
		t.Errorf("seventy years read as %d", until)
	}
}
