package rest_test

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/lease"
	"github.com/proxyfleet/proxy-operator/internal/testkit/figures"
)

const (
	worstTargets = 100
	worstViews   = 100
	worstTimes   = 2000 // that each is done in a round
)

// measureWorst does what costs the store most: targets and selectors in turn, of which each
// needs something of its own, and changes of a Proxy that everybody asks for.
func measureWorst(b *testing.B, s *figures.Sheet) {
	manyTargets, manySelectors := askManyTargets(b), askManySelectors(b)
	judged, sorted := changeOneOf(b)
	all := []struct {
		name string
		do   func() float64 // ns
		took []float64
	}{
		{name: fmt.Sprintf("%d targets with half cooled in turn, 100000 Proxies", worstTargets), do: manyTargets},
		{name: fmt.Sprintf("%d selectors in turn, 10000 Proxies", networks), do: manySelectors},
		{name: fmt.Sprintf("a verdict on a Proxy in %d views", worstViews), do: judged},
		{name: fmt.Sprintf("a Proxy that leaves or joins %d views", worstViews), do: sorted},
	}
	for round := range benchRounds + 1 {
		for i := range all {
			if ns := all[i].do(); round > 0 {
				all[i].took = append(all[i].took, ns/1000)
			}
		}
		figures.Progress("worst, round %d of %d", round, benchRounds)
	}
	s.Title("What costs the store most: the medians of %d rounds", benchRounds)
	for _, f := range all {
		s.Add(f.name, figures.Median(f.took), "µs")
	}
}

// askManyTargets asks for targets in turn, from each of which half of those that match rest.
func askManyTargets(b *testing.B) func() float64 {
	b.Helper()
	pool := newBenchPool(100_000)
	eu := map[string]string{"region": "eu"}
	var targets []string
	var all []lease.Request
	for i := range worstTargets {
		targets = append(targets, fmt.Sprintf("site-%d.example.com", i))
		all = append(all, lease.Request{Selector: eu, Target: targets[i]})
	}
	cool(b, pool.Store, eu, pool.size/len(regions)/2, targets...)
	return func() float64 { return pool.askInTurn(b, all, worstTimes) }
}

// askManySelectors asks for more selectors in turn than the store keeps views of.
func askManySelectors(b *testing.B) func() float64 {
	b.Helper()
	pool := newBenchPool(10_000)
	var all []lease.Request
	for i := range networks {
		all = append(all, lease.Request{Selector: map[string]string{"asn": fmt.Sprint(64500 + i)}, Target: freshTarget})
	}
	return func() float64 { return pool.askInTurn(b, all, networks) }
}

// askInTurn is what an acquire takes. What it gets it gives back outside of the time.
func (p benchPool) askInTurn(b *testing.B, all []lease.Request, times int) float64 {
	b.Helper()
	var ids []string
	began := time.Now()
	for i := range times {
		l, err := p.Acquire(context.Background(), benchClient, all[i%len(all)])
		if err != nil {
			b.Fatal(err)
		}
		ids = append(ids, l.ID)
	}
	took := time.Since(began)
	giveBack(b, p.Store, ids)
	return nanosEach(took, times)
}

// changeOneOf is what a change of one Proxy takes that is in all the views there are: one
// that leaves it in them, and one that takes it out of them or back in.
func changeOneOf(b *testing.B) (judged, sorted func() float64) {
	b.Helper()
	const labels = 10 // of which any two or three make a selector
	pool := newBenchPool(10_000, func(p *fleet.Proxy) {
		for i := range labels {
			// Each has a quarter of the labels, and the one in question all of them.
			if hash := (len(p.Name) + p.Port + i*31 + int(p.Verdict.Latency/time.Millisecond)*17) % 4; hash == 0 {
				p.Attributes[fmt.Sprint("label-", i)] = "on"
			}
		}
	})
	one := benchProxy(10_000)
	for i := range labels {
		one.Attributes[fmt.Sprint("label-", i)] = "on"
	}
	now := &one
	pool.Observe(fleet.Change{New: now})
	for _, selector := range selectorsOf(labels, worstViews) {
		giveBack(b, pool.Store, take(b, pool.Store, lease.Request{Selector: selector}, 1))
	}
	observe := func(change func(*fleet.Proxy)) {
		next := *now
		change(&next)
		pool.Observe(fleet.Change{Old: now, New: &next})
		now = &next
	}
	with, without := one.Attributes, maps.Clone(one.Attributes)
	maps.DeleteFunc(without, func(key, _ string) bool { return strings.HasPrefix(key, "label-") })
	timed := func(change func(i int, p *fleet.Proxy)) func() float64 {
		return func() float64 {
			began := time.Now()
			for i := range worstTimes {
				observe(func(p *fleet.Proxy) { change(i, p) })
			}
			return nanosEach(time.Since(began), worstTimes)
		}
	}
	judged = timed(func(i int, p *fleet.Proxy) { p.Verdict.Latency = time.Duration(1+i%2) * time.Millisecond })
	sorted = timed(func(i int, p *fleet.Proxy) { p.Attributes = []map[string]string{without, with}[i%2] })
	return judged, sorted
}

// selectorsOf are as many as that, of two or three labels each.
func selectorsOf(labels, n int) (all []map[string]string) {
	name := func(i int) string { return fmt.Sprint("label-", i) }
	for i := range labels {
		for j := range i {
			all = append(all, map[string]string{name(i): "on", name(j): "on"})
			for k := range j {
				all = append(all, map[string]string{name(i): "on", name(j): "on", name(k): "on"})
			}
		}
	}
	return all[:n]
}

// measureMemory is what the store keeps of each Proxy, with a lease on each: of leases that
// name none but a target, and of such as are asked for by selectors that share the fleet.
func measureMemory(b *testing.B, s *figures.Sheet) {
	const n = 100_000
	s.Title("Memory of the store, of %d Proxies with a lease each", n)
	none := []map[string]string{nil}
	var each []map[string]string
	for _, region := range regions {
		each = append(each, map[string]string{"region": region})
	}
	s.Add("for each Proxy", heldFor(b, n, none), "bytes", figures.AtMost(400))
	s.Add(fmt.Sprintf("for each Proxy, asked for by %d selectors", len(each)), heldFor(b, n, each), "bytes")
}

// heldFor is what the store holds for each Proxy when each has a lease: what is left of the
// heap when the fleet, which holds the Proxies themselves, is subtracted.
func heldFor(b *testing.B, n int, selectors []map[string]string) float64 {
	b.Helper()
	heap := func() float64 {
		runtime.GC()
		runtime.GC() // what finalizers and pools held is gone after the second
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return float64(stats.HeapAlloc)
	}
	f := benchFleet(n)
	before := heap()
	store := lease.New(lease.Options{})
	f.Follow(store.Observe)
	for i := range n {
		// Over HTTP each request brings a text of its own.
		req := lease.Request{Selector: selectors[i%len(selectors)], Target: strings.Clone(freshTarget)}
		if _, err := store.Acquire(context.Background(), benchClient, req); err != nil {
			b.Fatal(err)
		}
	}
	held := heap() - before
	leased := 0
	for _, active := range store.ActiveByCluster() {
		leased += active
	}
	if leased != n {
		b.Fatalf("%d leases, want one for each of %d Proxies", leased, n)
	}
	runtime.KeepAlive(f)
	return held / float64(n)
}
