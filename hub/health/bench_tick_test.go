package health

import (
	"context"
	"fmt"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/testkit/figures"
)

const (
	tickRounds = 5
	tickSteps  = 1_000_000
	// quiet is how long an engine with nothing to do is watched, and ages how long it has
	// nothing to do for.
	quiet = 10 * time.Second
	ages  = 20 * 365 * 24 * time.Hour
)

// calm is a wire on which nothing happens: the hub's URL answers, and no Proxy is due.
type calm struct{}

func (calm) probe(context.Context, through, aim) result { return result{void: true} }
func (calm) direct(context.Context, aim) result         { return result{ok: true} }

// measureTick compares engines that have few Proxies and many, of which none is due.
func measureTick(b *testing.B, s *figures.Sheet) {
	sizes := []int{100, 100_000}
	var engines []*Engine
	for _, n := range sizes {
		engines = append(engines, idleEngine(n))
	}
	var used []time.Duration
	for i, e := range engines {
		used = append(used, quietCost(b, e))
		figures.Progress("%s with %d idle Proxies: %s of CPU", quiet, sizes[i], used[i])
	}
	costs := make([][]float64, len(sizes))
	for round := range tickRounds + 1 {
		for i, e := range engines {
			cost := stepCost(b, e)
			if round > 0 { // the first warms up
				costs[i] = append(costs[i], cost)
			}
		}
	}
	s.Title("At rest: the medians of %d rounds of %d steps", tickRounds, tickSteps)
	for i, n := range sizes {
		s.Add(fmt.Sprintf("a step with %d idle Proxies", n), figures.Median(costs[i]), "ns")
	}
	ratio := figures.Median(costs[1]) / figures.Median(costs[0])
	s.Add("a step, many/few", ratio, "ratio", figures.AtMost(1.5))
	for i, n := range sizes {
		s.Add(fmt.Sprintf("CPU in %s with %d idle Proxies", quiet, n), millis(used[i]), "ms")
	}
	b.ReportMetric(ratio, "tick-ratio")
}

// idleEngine has Proxies of which none is due for ages. It does not run yet.
func idleEngine(n int) *Engine {
	f := fleet.New(fleet.Options{AllowLocal: true})
	for i := range n {
		f.Upsert(fleet.Proxy{
			Key: fleet.Key{Cluster: "eu", Namespace: "crawl", Name: "p" + strconv.Itoa(i)}, UID: strconv.Itoa(i),
			Protocol: "http", Host: "192.0.2.1", Port: 3128, Instance: "one", Provisioned: true,
			Check:   fleet.Check{Interval: ages, Timeout: time.Second, SuccessThreshold: 1, FailureThreshold: 3},
			Verdict: fleet.Verdict{Health: fleet.Healthy}, // or it would be probed within a minute
		})
	}
	e := New(Options{Fleet: f, URL: "https://site.test/", Recorder: hubMetrics()})
	e.wire = calm{}
	return e
}

// quietCost is what an engine uses of the CPU that runs and has nothing to do. It has ended
// when this returns, and knows its Proxies still.
func quietCost(b *testing.B, e *Engine) time.Duration {
	b.Helper()
	end := runEngine(b, e)
	defer end()
	until(b, time.Minute, "the hub's URL has been probed directly", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return !e.hold.passed.IsZero()
	})
	debug.FreeOSMemory() // and no garbage is collected meanwhile
	cpu := cpuTime(b)
	<-time.After(quiet)
	return cpuTime(b) - cpu
}

// stepCost is what a step takes that finds nothing to do, in nanoseconds.
func stepCost(b *testing.B, e *Engine) float64 {
	b.Helper()
	began := time.Now()
	for range tickSteps {
		if todo := e.step(b.Context(), began); len(todo.rounds) > 0 || todo.direct || todo.wait <= 0 {
			b.Fatalf("there was something to do: %+v", todo)
		}
	}
	return float64(time.Since(began)) / tickSteps
}

// No check runs the benchmark, which would measure nothing if these were probed.
func TestTheIdleProxiesOfTheBenchmarkAreIdle(t *testing.T) {
	e := idleEngine(100)
	e.Fleet.Judge(nil)
	e.Fleet.Follow(e.changed)
	if todo := e.step(t.Context(), time.Now().Add(time.Hour)); len(todo.rounds) > 0 || len(e.due) != 100 {
		t.Errorf("%d of %d are probed within an hour", len(todo.rounds), len(e.states))
	}
}
