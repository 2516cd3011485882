package health

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/metrics"
	"github.com/proxyfleet/proxy-operator/internal/testkit/figures"
)

const (
	scaleProxies  = 10_000
	scaleSpokes   = 4
	deadInTen     = 3 // of ten Proxies are where packets are swallowed
	scaleInterval = 30 * time.Second
	scaleTimeout  = 10 * time.Second
	// scaleWindow is how long is measured, once every Proxy has had its first verdict.
	scaleWindow = 90 * time.Second
	// firstVerdicts take as long at most. The dead have theirs at the end of their third
	// interval, and of its timeout.
	firstVerdicts = 5 * time.Minute
	// scaleRoom is for more results than there will be, so that what notes them does not
	// grow meanwhile.
	scaleRoom = 2 * scaleProxies * int(scaleWindow/scaleInterval)
)

// measureScale has a large fleet, of which a part is dead, probed as by default.
func measureScale(b *testing.B, s *figures.Sheet) {
	raiseFileLimit(b)
	on, hole := newScene(b), newHole(b)
	note := newAttendance(hole.Number)
	o := on.options(note)
	e := New(o)
	note.engine, e.wire = e, timekeeper{e.wire, note}
	all := judged(o.Fleet, scaleProxies)
	end := runEngine(b, e)
	defer end()
	idle := settledMemory(b)
	for i := range scaleProxies {
		at := on.proxy
		if i%10 < deadInTen {
			at = hole
		}
		p := externalAt("spoke-"+strconv.Itoa(i%scaleSpokes), "p"+strconv.Itoa(i), at)
		p.Check.Interval, p.Check.Timeout = scaleInterval, scaleTimeout
		o.Fleet.Upsert(p)
	}
	began := time.Now()
	figures.Progress("waiting for the first verdict on each of %d Proxies", scaleProxies)
	select {
	case <-all:
	case <-time.After(firstVerdicts):
		b.Fatalf("not every Proxy has a verdict after %s", firstVerdicts)
	}
	figures.Progress("there they are, after %s; measuring for %s", time.Since(began).Round(time.Second), scaleWindow)
	w := watch(b, e, note)
	for _, p := range o.Fleet.All() {
		if wanted := note.expects(p); p.Verdict.Health != wanted {
			b.Fatalf("%s is %+v: what was measured is another fleet than was meant", p.Key, p.Verdict)
		}
	}
	note.report(b, s, w, idle)
}

// window is what was seen while it was measured.
type window struct {
	took, cpu time.Duration
	peak      memory
	inFlight  int // at most
}

// watch measures for a while.
func watch(b *testing.B, e *Engine, note *attendance) window {
	b.Helper()
	note.on.Store(true)
	cpu, began := cpuTime(b), time.Now()
	end := time.NewTimer(scaleWindow)
	defer end.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var w window
	for over := false; !over; {
		w.peak = w.peak.orMore(memoryNow(b))
		e.mu.Lock()
		w.inFlight = max(w.inFlight, e.slots.busy[sound]+e.slots.busy[dubious])
		e.mu.Unlock()
		select {
		case <-tick.C:
		case <-end.C:
			over = true
		}
	}
	note.on.Store(false)
	w.took, w.cpu = time.Since(began), cpuTime(b)-cpu
	return w
}

// attendance is the hub's metrics, and what is to be known beyond them.
type attendance struct {
	*metrics.Metrics
	engine *Engine
	hole   int // the port of the dead

	on atomic.Bool // it is being measured

	// These are written under the engine's lock.
	probes      int
	failed      int            // of those of the healthy
	times       map[string]int // that each was probed, by name
	lags        []time.Duration
	lagsHealthy []time.Duration

	mu     sync.Mutex
	delays []time.Duration // of the healthy, from when a probe was begun until it ran
}

func newAttendance(hole int) *attendance {
	return &attendance{
		Metrics: hubMetrics(), hole: hole, times: make(map[string]int, scaleProxies),
		lags: make([]time.Duration, 0, scaleRoom), lagsHealthy: make([]time.Duration, 0, scaleRoom), delays: make([]time.Duration, 0, scaleRoom),
	}
}

func (a *attendance) expects(p *fleet.Proxy) fleet.Health {
	if p.Port == a.hole {
		return fleet.Unhealthy
	}
	return fleet.Healthy
}

// Started is not told whose probe it is.
func (a *attendance) Started(lag time.Duration) {
	a.Metrics.Started(lag)
	if a.on.Load() {
		a.lags = append(a.lags, lag)
	}
}

// Probe finds out how late it was: the engine does not say, but it still has the time at
// which it was due. What it has waited for the engine's lock since it ended counts as lag,
// so that there was none that is not counted.
func (a *attendance) Probe(key fleet.Key, took time.Duration, failure string) {
	a.Metrics.Probe(key, took, failure)
	if !a.on.Load() {
		return
	}
	a.probes++
	state := a.engine.states[key]
	if a.expects(state.proxy) != fleet.Healthy {
		return
	}
	a.times[key.Name]++
	a.lagsHealthy = append(a.lagsHealthy, max(0, time.Since(state.at)-took))
	if failure != "" {
		a.failed++
	}
}

// timekeeper notes how long after it was begun a probe runs: on a busy machine that may be
// later than the engine knows.
type timekeeper struct {
	wire
	note *attendance
}

func (t timekeeper) probe(ctx context.Context, via through, a aim) result {
	if via.port != t.note.hole && t.note.on.Load() {
		end, _ := ctx.Deadline()
		gone := scaleTimeout - time.Until(end)
		t.note.mu.Lock()
		t.note.delays = append(t.note.delays, gone)
		t.note.mu.Unlock()
	}
	return t.wire.probe(ctx, via, a)
}

// report says what became of it.
func (a *attendance) report(b *testing.B, s *figures.Sheet, w window, idle memory) {
	b.Helper()
	a.engine.mu.Lock()
	defer a.engine.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	healthy, skipped := 0, 0
	for _, state := range a.engine.states {
		if a.expects(state.proxy) != fleet.Healthy {
			continue
		}
		healthy++
		if a.times[state.proxy.Name] < int(w.took/scaleInterval) {
			skipped++
		}
	}
	if a.probes == 0 || len(a.lagsHealthy) == 0 || len(a.delays) == 0 {
		b.Fatal("nothing was probed while it was measured")
	}
	s.Title("%d Proxies in %d spokes, each due every %s, %d%% of them where packets are swallowed: %s", scaleProxies, scaleSpokes, scaleInterval, 10*deadInTen, w.took.Round(time.Second))
	s.Add("healthy, probes per second", float64(len(a.lagsHealthy))/w.took.Seconds(), "1/s")
	s.Add("healthy, schedule lag p50", millis(figures.Median(a.lagsHealthy)), "ms")
	late := millis(figures.Quantile(a.lagsHealthy, 0.99))
	s.Add("healthy, schedule lag p99", late, "ms", figures.Under(50))
	s.Add("healthy, schedule lag at most", millis(slices.Max(a.lagsHealthy)), "ms")
	s.Add("healthy, begun but not running yet p99", millis(figures.Quantile(a.delays, 0.99)), "ms")
	s.Add(fmt.Sprintf("healthy, skipped, of %d", healthy), float64(skipped), "Proxies", figures.AtMost(0))
	s.Add("healthy, probes that failed", float64(a.failed), "probes", figures.AtMost(0))
	s.Add("all, probes per second", float64(a.probes)/w.took.Seconds(), "1/s")
	s.Add("all, schedule lag p99", millis(figures.Quantile(a.lags, 0.99)), "ms")
	s.Add("all, under way at once", float64(w.inFlight), "probes")
	cost := micros(w.cpu) / float64(a.probes)
	s.Add("all, CPU per probe", cost, "µs")
	s.Add("all, CPU", 100*w.cpu.Seconds()/w.took.Seconds(), "% of a core")
	s.Add("heap and stacks beyond idle, at most", w.peak.managed-idle.managed, "MB", figures.Under(100))
	s.Add("resident memory beyond idle, at most", w.peak.resident-idle.resident, "MB", figures.Under(100))
	s.Add("resident memory, idle", idle.resident, "MB")
	b.ReportMetric(late, "lag-p99-ms")
	b.ReportMetric(cost, "CPU-µs/probe")
	b.ReportMetric(w.peak.resident-idle.resident, "MB")
}
