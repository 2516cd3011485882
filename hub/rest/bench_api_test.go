package rest_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/internal/testkit/figures"
)

const (
	benchConnections = 64
	// apiRound is how long is measured at once: short, so that what changes on the machine
	// meanwhile meets those alike that are compared.
	apiRound = 2 * time.Second
	apiWarm  = 300 * time.Millisecond
)

// loadResult is what the load generator has to say; see test/leaseload.
type loadResult struct {
	Seconds          float64
	Acquire, Release struct {
		Requests  float64
		PerSecond float64
		Latency   struct{ P50, P99, P999 float64 } // µs
	}
	Errors            int
	FirstError        string
	AnswerBytes       float64
	ServerCPU, OwnCPU float64 // seconds
}

// loading is one server asked in one way, and what came of it in each round.
type loading struct {
	name    string
	server  *benchServer
	release string // as leaseload has it
	rounds  []loadResult
}

// all is one figure of each round.
func (l *loading) all(of func(loadResult) float64) []float64 {
	values := make([]float64, len(l.rounds))
	for i, round := range l.rounds {
		values[i] = of(round)
	}
	return values
}

// perSecond, and what follows, are per request: where leases are given back one by one, a
// DELETE is one as well.
func (l *loading) perSecond() []float64 {
	return l.all(func(r loadResult) float64 { return l.requests(r) / r.Seconds })
}

func (l *loading) serverCPU() []float64 {
	return l.all(func(r loadResult) float64 { return 1e6 * r.ServerCPU / l.requests(r) })
}

func (l *loading) ownCPU() []float64 {
	return l.all(func(r loadResult) float64 { return 1e6 * r.OwnCPU / l.requests(r) })
}

func (l *loading) requests(r loadResult) float64 {
	if l.release == "each" {
		return r.Acquire.Requests + r.Release.Requests
	}
	return r.Acquire.Requests
}

func (l *loading) p50() []float64 {
	return l.all(func(r loadResult) float64 { return r.Acquire.Latency.P50 / 1000 })
}

func (l *loading) p99() []float64 {
	return l.all(func(r loadResult) float64 { return r.Acquire.Latency.P99 / 1000 })
}

// measureAPI compares the API, on the wire, to a bare handler and to itself with more
// Proxies. They take turns.
func measureAPI(b *testing.B, s *figures.Sheet) {
	g := newGenerator(b)
	many := startServer(b, "the API with 10000 Proxies", served{Proxies: 10_000})
	bareServer := startServer(b, "the bare handler", served{Answer: many.sample(b)})
	bare := &loading{name: "bare", server: bareServer, release: "no"}
	api := &loading{name: "API, 10000 Proxies", server: many, release: "after"}
	every := &loading{name: "API, each request logged", release: "after",
		server: startServer(b, "the API that logs all", served{Proxies: 10_000, EveryLine: true})}
	small := &loading{name: "API, 1000 Proxies", release: "after", server: startServer(b, "the API with 1000", served{Proxies: 1000})}
	large := &loading{name: "API, 100000 Proxies", release: "after", server: startServer(b, "the API with 100000", served{Proxies: 100_000})}
	bareCycle := &loading{name: "bare, acquire and release", server: bareServer, release: "each"}
	cycle := &loading{name: "API, acquire and release", server: many, release: "each"}
	compared := [][]*loading{{api, bare, every}, {small, large}, {bareCycle, cycle}}
	for round := range benchRounds + 1 {
		for _, group := range compared {
			for i := range group {
				if round%2 == 1 { // each begins as often as the other
					i = len(group) - 1 - i
				}
				g.turn(b, group[i], round)
			}
		}
	}
	s.Title("The API, %d connections: the medians of %d rounds of %s; a quarter of the Proxies matches", benchConnections, benchRounds, apiRound)
	for _, l := range []*loading{bare, api, every, small, large} {
		s.Add(l.name+", acquires", figures.Median(l.perSecond()), "1/s")
	}
	s.Ratios("acquires per second, API/bare", api.perSecond(), bare.perSecond(), figures.AtLeast(0.75))
	s.Ratios("acquires per second, each logged/bare", every.perSecond(), bare.perSecond())
	s.Ratios("acquires per second, 100000 Proxies/1000", large.perSecond(), small.perSecond(), figures.AtLeast(0.8))
	for _, l := range []*loading{bare, api} {
		s.Add(l.name+", latency p50", figures.Median(l.p50()), "ms")
		s.Add(l.name+", latency p99", figures.Median(l.p99()), "ms")
	}
	s.Ratios("latency p99, API/bare", api.p99(), bare.p99(), figures.AtMost(1.5))
	for _, l := range []*loading{bare, api, every, small, large} {
		s.Add(l.name+", CPU per acquire", figures.Median(l.serverCPU()), "µs")
	}
	s.Add("load generator, CPU per acquire", figures.Median(api.ownCPU()), "µs")
	s.Ratios("CPU per acquire, bare/API", bare.serverCPU(), api.serverCPU())
	for _, l := range []*loading{bareCycle, cycle} {
		s.Add(l.name+", requests", figures.Median(l.perSecond()), "1/s")
	}
	s.Ratios("acquire and release, API/bare", cycle.perSecond(), bareCycle.perSecond())
	for _, l := range []*loading{bare, api} {
		s.Add(l.name+", an answer", figures.Median(l.all(func(r loadResult) float64 { return r.AnswerBytes })), "bytes")
	}
	b.ReportMetric(figures.Median(api.perSecond()), "acquires/s")
}

// generator is the program that asks, a process of its own.
type generator struct{ program, bodies string }

func newGenerator(b *testing.B) generator {
	b.Helper()
	dir := b.TempDir()
	g := generator{filepath.Join(dir, "leaseload"), filepath.Join(dir, "bodies")}
	build := exec.CommandContext(b.Context(), "go", "build", "-o", g.program, "./test/leaseload")
	build.Dir = "../.."
	if output, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build the load generator: %v\n%s", err, output)
	}
	var bodies strings.Builder
	for _, target := range benchTargets {
		bodies.WriteString(benchBody(target) + "\n")
	}
	if err := os.WriteFile(g.bodies, []byte(bodies.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	return g
}

// turn asks one server for one round. The first round warms up.
func (g generator) turn(b *testing.B, l *loading, round int) {
	b.Helper()
	command := exec.CommandContext(b.Context(), g.program, "-address", l.server.address, "-token", benchToken, "-bodies", g.bodies,
		"-connections", strconv.Itoa(benchConnections), "-warm", apiWarm.String(), "-time", apiRound.String(),
		"-release", l.release, "-pid", strconv.Itoa(l.server.pid))
	output, err := command.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		b.Fatalf("%s: %v: %s", l.name, err, exit.Stderr)
	} else if err != nil {
		b.Fatalf("%s: %v", l.name, err)
	}
	var r loadResult
	if err := json.Unmarshal(output, &r); err != nil {
		b.Fatalf("%s: %v in %s", l.name, err, output)
	}
	if r.Errors > 0 || r.Acquire.Requests == 0 {
		b.Fatalf("%s: %g requests and %d errors, the first: %s", l.name, r.Acquire.Requests, r.Errors, r.FirstError)
	}
	note := ""
	if round == 0 {
		note = ", to warm up"
	} else {
		l.rounds = append(l.rounds, r)
	}
	figures.Progress("round %d, %s: %.0f requests/s, p99 %.2f ms, %.1f µs of CPU each, %.1f of the generator's%s", round, l.name, l.requests(r)/r.Seconds,
		r.Acquire.Latency.P99/1000, 1e6*r.ServerCPU/l.requests(r), 1e6*r.OwnCPU/l.requests(r), note)
	if l.server.proxied {
		<-time.After(serverForgets + 200*time.Millisecond) // what has ended is forgotten by now
	}
}
