package rest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/lease"
	"github.com/proxyfleet/proxy-operator/internal/testkit/figures"
)

const (
	// storeBatch is how many acquires are timed at once, storeBatches how often in a
	// round: the round's figure is their median.
	storeBatch   = 2000
	storeBatches = 10
)

// The targets of the store's figures: nothing rests from the first.
const (
	freshTarget  = "fresh.example.com"
	coolTarget   = "cool.example.com"   // 1% rest from it
	cooledTarget = "cooled.example.com" // 90%
)

// The ways to ask.
const (
	wayFresh      = "acquire"
	wayCool       = "acquire, 1% cooled"
	wayCooled     = "acquire, 90% cooled"
	wayFull       = "exhausted, refused"
	wayFullCooled = "exhausted and 90% cooled, refused"
)

var (
	storeWays  = []string{wayFresh, wayCool, wayCooled, wayFull, wayFullCooled}
	storeSizes = []int{1_000, 10_000, 100_000}
)

func named(way string, n int) string { return fmt.Sprintf("%s, %d Proxies", way, n) }

// asking is one way to ask a store, and what it took in each round.
type asking struct {
	name    string
	pool    benchPool
	req     lease.Request
	refused bool
	alone   []float64 // ns for an acquire
	cycle   []float64 // ns for an acquire and a release
}

// measureStore has stores asked in turn: small and large ones, for targets from which few
// rest and many, with Proxies to grant and with none.
func measureStore(b *testing.B, s *figures.Sheet) {
	ways := map[string]*asking{}
	var order []*asking
	for _, n := range storeSizes {
		for _, a := range waysToAsk(b, n) {
			ways[a.name] = a
			order = append(order, a)
		}
	}
	for round := range benchRounds + 1 {
		measured := make([]turns, len(order))
		for batch := range storeBatches {
			for i := range order {
				if batch%2 == 1 { // those that follow each other do so either way
					i = len(order) - 1 - i
				}
				measured[i].add(b, order[i])
			}
		}
		for i, a := range order {
			if round > 0 { // the first warms up
				a.alone = append(a.alone, figures.Median(measured[i].alone))
				if !a.refused {
					a.cycle = append(a.cycle, figures.Median(measured[i].cycle))
				}
			}
		}
		figures.Progress("store, round %d of %d", round, benchRounds)
	}
	s.Title("The store alone: the medians of %d rounds of %d batches of %d; a quarter matches", benchRounds, storeBatches, storeBatch)
	for _, name := range storeWays {
		for _, n := range storeSizes {
			s.Add(named(name, n), figures.Median(ways[named(name, n)].alone), "ns")
		}
	}
	get := func(name string, n int) []float64 { return ways[named(name, n)].alone }
	s.Ratios("acquire, 100000 Proxies/1000", get(wayFresh, 100_000), get(wayFresh, 1000), figures.AtMost(2.5))
	for _, n := range []int{10_000, 100_000} {
		s.Ratios(fmt.Sprintf("acquire, 90%% cooled/1%%, %d Proxies", n), get(wayCooled, n), get(wayCool, n), figures.AtMost(1.5))
		s.Ratios(fmt.Sprintf("exhausted/acquire, %d Proxies", n), get(wayFull, n), get(wayFresh, n), figures.AtMost(1.5))
		s.Ratios(fmt.Sprintf("exhausted and 90%% cooled/acquire, %d Proxies", n), get(wayFullCooled, n), get(wayFresh, n), figures.AtMost(1.5))
	}
	for _, name := range []string{wayFresh, wayCooled} {
		for _, n := range storeSizes {
			s.Add("and release: "+named(name, n), figures.Median(ways[named(name, n)].cycle), "ns")
		}
	}
	b.ReportMetric(figures.Median(get(wayFresh, 10_000)), "ns/acquire")
}

// waysToAsk are those of a fleet of that size. The South American Proxies take one lease
// each, and have it.
func waysToAsk(b *testing.B, n int) []*asking {
	b.Helper()
	pool := newBenchPool(n, func(p *fleet.Proxy) {
		if inRegion(p, "sa") {
			p.MaxLeases = 1
		}
	})
	eu, sa := map[string]string{"region": "eu"}, map[string]string{"region": "sa"}
	matching := n / len(regions)
	cool(b, pool.Store, eu, matching/100, coolTarget)
	cool(b, pool.Store, eu, matching*90/100, cooledTarget)
	cool(b, pool.Store, sa, matching*90/100, cooledTarget)
	for {
		if _, err := pool.Acquire(b.Context(), benchClient, lease.Request{Selector: sa, TTL: 24 * time.Hour}); err != nil {
			break
		}
	}
	way := func(name string, req lease.Request, refused bool) *asking {
		return &asking{name: named(name, n), pool: pool, req: req, refused: refused}
	}
	return []*asking{
		way(wayFullCooled, lease.Request{Selector: sa, Target: cooledTarget}, true),
		way(wayFull, lease.Request{Selector: sa, Target: freshTarget}, true),
		way(wayFresh, lease.Request{Selector: eu, Target: freshTarget}, false),
		way(wayCool, lease.Request{Selector: eu, Target: coolTarget}, false),
		way(wayCooled, lease.Request{Selector: eu, Target: cooledTarget}, false),
	}
}

// turns are the batches of one round.
type turns struct{ alone, cycle []float64 }

func (t *turns) add(b *testing.B, a *asking) {
	b.Helper()
	t.alone = append(t.alone, a.batch(b))
	if !a.refused {
		t.cycle = append(t.cycle, a.cycles(b))
	}
}

// batch is what an acquire takes, or a refusal. What is granted is released, and forgotten
// by the store, before it returns and outside of the time.
func (a *asking) batch(b *testing.B) float64 {
	b.Helper()
	ids := make([]string, 0, storeBatch)
	began := time.Now()
	for range storeBatch {
		l, err := a.pool.Acquire(context.Background(), benchClient, a.req)
		if (err != nil) != a.refused {
			b.Fatalf("%s: %v", a.name, err)
		}
		ids = append(ids, l.ID)
	}
	took := time.Since(began)
	if !a.refused {
		giveBack(b, a.pool.Store, ids)
		a.settle()
	}
	return nanosEach(took, storeBatch)
}

// cycles is what an acquire and a release take, with as many leases as that under way.
func (a *asking) cycles(b *testing.B) float64 {
	b.Helper()
	const underWay = 64
	ids := take(b, a.pool.Store, a.req, underWay)
	began := time.Now()
	for i := range storeBatch {
		l, err := a.pool.Acquire(context.Background(), benchClient, a.req)
		if err != nil {
			b.Fatalf("%s: %v", a.name, err)
		}
		if err := a.pool.Release(benchClient, ids[i%underWay]); err != nil {
			b.Fatal(err)
		}
		ids[i%underWay] = l.ID
	}
	took := time.Since(began)
	giveBack(b, a.pool.Store, ids)
	a.settle()
	return nanosEach(took, storeBatch)
}

// settle has the store forget what has ended.
func (a *asking) settle() {
	<-time.After(2 * forgotten)
	a.pool.Cooldowns() // which brings it up to now
}

// nanosEach is how long one of so many took.
func nanosEach(took time.Duration, of int) float64 { return float64(took) / float64(of) }
