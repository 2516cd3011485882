package rest_test

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/lease"
	"github.com/proxyfleet/proxy-operator/internal/testkit/figures"
)

// benchRounds are counted of everything, after one that is not.
const benchRounds = 5

// BenchmarkLease measures, in one run, the API against a bare handler, the store by itself,
// what the store could be made to do, and its memory. Each part adds to one table, which is
// printed at the end; docs/benchmarks.md says how to read it. Nothing fails for a goal
// that is missed: how fast it is, is for a person to judge who knows what else the machine
// did.
func BenchmarkLease(b *testing.B) {
	figures.Progress("%s, GOMAXPROCS %d, load of the machine before: %s", runtime.Version(), runtime.GOMAXPROCS(0), figures.Load())
	var s figures.Sheet
	for _, part := range []struct {
		name    string
		measure func(*testing.B, *figures.Sheet)
	}{{"API", measureAPI}, {"Store", measureStore}, {"Worst", measureWorst}, {"Memory", measureMemory}} {
		b.Run(part.name, func(b *testing.B) {
			if b.N > 1 {
				return // it has been measured, and takes as long as it takes
			}
			part.measure(b, &s)
			b.ReportMetric(0, "ns/op") // how long all of it took is no figure
		})
	}
	s.Print(os.Stdout)
}

// benchClient is whose leases they are: the API knows one client.
const benchClient = "default"

// The attributes of the Proxies. A selector of one region matches a quarter of a fleet.
var (
	regions = []string{"eu", "us", "ap", "sa"}
	tiers   = []string{"datacenter", "residential"}
)

const (
	networks  = 200
	providers = 5
)

// benchProxy is one of a fleet: healthy, with credentials and four attributes.
func benchProxy(i int, change ...func(*fleet.Proxy)) fleet.Proxy {
	host := fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
	p := fleet.Proxy{
		Key: fleet.Key{Cluster: fmt.Sprint("spoke-", i%4), Namespace: "crawl", Name: fmt.Sprintf("proxy-%06d", i)},
		UID: fmt.Sprintf("0f1e2d3c-4b5a-6978-8796-%012d", i), Protocol: "http", Host: host, Port: 3128,
		Instance: host + ":3128", Provisioned: true,
		NeedsCredentials: true, Credentials: &fleet.Credentials{Username: "crawler", Password: fmt.Sprintf("pass-%06d", i)},
		Attributes: map[string]string{
			"region": regions[i/4%len(regions)], "tier": tiers[i/16%len(tiers)],
			"asn": fmt.Sprint(64500 + i%networks), "provider": fmt.Sprint("provider-", i%providers),
		},
		// Latencies of 20 to 419 ms, in no order that has to do with the names'.
		Verdict: fleet.Verdict{Health: fleet.Healthy, Latency: time.Duration(20+i*7919%400) * time.Millisecond},
	}
	for _, f := range change {
		f(&p)
	}
	return p
}

// inRegion says which it is in; there are as many as are asked for in each.
func inRegion(p *fleet.Proxy, region string) bool { return p.Attributes["region"] == region }

// benchFleet has n Proxies.
func benchFleet(n int, change ...func(*fleet.Proxy)) *fleet.Fleet {
	f := fleet.New(fleet.Options{})
	for i := range n {
		f.Upsert(benchProxy(i, change...))
	}
	return f
}

// benchPool is a fleet with a store that follows it, as the hub wires them.
type benchPool struct {
	*lease.Store
	size int
}

// forgotten is how long a benchmark's store keeps what has ended, so that the next batch
// finds nothing of the last.
const forgotten = time.Millisecond

func newBenchPool(n int, change ...func(*fleet.Proxy)) benchPool {
	p := benchPool{lease.New(lease.Options{CooldownWindow: forgotten}), n}
	benchFleet(n, change...).Follow(p.Observe)
	return p
}

// take acquires as many as that and returns their ids.
func take(tb testing.TB, s *lease.Store, req lease.Request, n int) []string {
	tb.Helper()
	ids := make([]string, n)
	for i := range ids {
		l, err := s.Acquire(tb.Context(), benchClient, req)
		if err != nil {
			tb.Fatalf("acquire %d of %d: %v", i, n, err)
		}
		ids[i] = l.ID
	}
	return ids
}

// giveBack releases all of them.
func giveBack(tb testing.TB, s *lease.Store, ids []string) {
	tb.Helper()
	for _, id := range ids {
		if err := s.Release(benchClient, id); err != nil {
			tb.Fatal(err)
		}
	}
}

// cool has as many of the Proxies that match rest from the targets for a day: those that
// are chosen first, which is the worst there can be for whoever has to pass over them.
func cool(tb testing.TB, s *lease.Store, selector map[string]string, n int, targets ...string) {
	tb.Helper()
	ids := take(tb, s, lease.Request{Selector: selector}, n)
	for _, target := range targets {
		for _, id := range ids {
			report := lease.Report{Result: lease.RateLimited, Target: target, Cooldown: 24 * time.Hour}
			if err := s.Report(benchClient, id, report); err != nil {
				tb.Fatal(err)
			}
		}
	}
	giveBack(tb, s, ids)
}

// No check runs the benchmark, which would measure something else if these were not so.
func TestTheFleetOfTheBenchmarkIsAsItSays(t *testing.T) {
	const n = 1000
	p := newBenchPool(n)
	eu := map[string]string{"region": "eu"}
	matching := 0
	p.List(fleet.Key{}, func(px *fleet.Proxy, _ int) bool {
		if !px.Offerable() || len(px.Attributes) != 4 {
			t.Errorf("%s: %s, %v", px.Key, px.Phase(), px.Attributes)
		}
		if inRegion(px, "eu") {
			matching++
		}
		return true
	})
	if matching < n/4-4 || matching > n/4+4 {
		t.Errorf("%d of %d match", matching, n)
	}
	cool(t, p.Store, eu, matching-1, "example.com", "example.org")
	if got := p.Cooldowns(); got != 2*(matching-1) {
		t.Errorf("%d cooldowns, want %d", got, 2*(matching-1))
	}
	seen := map[string]bool{}
	for range 3 { // all but one rest
		l, err := p.Acquire(t.Context(), benchClient, lease.Request{Selector: eu, Target: "example.com"})
		if err != nil {
			t.Fatal(err)
		}
		seen[l.Proxy.Name] = true
	}
	if len(seen) != 1 {
		t.Errorf("leased %v, where one Proxy does not rest", seen)
	}
}
