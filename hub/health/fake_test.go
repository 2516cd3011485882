package health

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// scripted is a wire that answers as a test says, after as long as it says.
type scripted struct {
	mu       sync.Mutex
	answer   func(host string, n int) (result, time.Duration) // of the n-th probe of a host
	url      func() result                                    // of a direct probe; nil: it passes
	stutters bool                                             // every other one hangs
	hangs    bool                                             // a direct probe does
	counts   map[string]int
	busy     map[string]int
	twice    []string // hosts that were probed while they were probed
	most     int      // probes under way at once
	asked    []time.Time
}

func (s *scripted) probe(ctx context.Context, via through, _ aim) result {
	s.mu.Lock()
	if s.counts == nil {
		s.counts, s.busy = map[string]int{}, map[string]int{}
	}
	s.counts[via.host]++
	if s.busy[via.host]++; s.busy[via.host] > 1 {
		s.twice = append(s.twice, via.host)
	}
	all := 0
	for _, n := range s.busy {
		all += n
	}
	s.most = max(s.most, all)
	r, takes := s.answer(via.host, s.counts[via.host])
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.busy[via.host]--
	}()
	select {
	case <-time.After(takes):
		return r
	case <-ctx.Done():
		return result{reason: "Timeout", message: "the proxy does not accept a connection in time", reach: undialled}
	}
}

func (s *scripted) direct(ctx context.Context, _ aim) result {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, time.Now())
	if s.hangs || s.stutters && len(s.asked)%2 == 1 {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return result{reason: "Timeout"}
	}
	if s.url != nil {
		return s.url()
	}
	return result{ok: true}
}

// set changes how it answers.
func (s *scripted) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// atOnce is how many probes were under way at once at most, directly how many were direct,
// count how many there were of a host.
func (s *scripted) atOnce() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

func (s *scripted) directly() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked)
}

func (s *scripted) count(host string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[host]
}

// works and refuses are results, of a proxy that does and of one that is not there.
var (
	works   = result{ok: true, reason: "ProbeSucceeded", message: "the probe passed", latency: 40 * time.Millisecond, reach: accepted}
	refuses = result{reason: "DialFailed", message: "connection refused", reach: undialled}
	broken  = result{reason: "ConnectRefused", message: "the proxy answered CONNECT with 503 Service Unavailable", reach: accepted}
)

// bench is an engine on a scripted wire, in a bubble of time of its own.
type bench struct {
	*Engine
	wire *scripted
	rec  *recorder
	stop func() // stops the engine, and returns when it has

	seen    sync.Mutex
	told    []string // what was announced
	reached []string // what was told of paths
	verdict map[fleet.Key][]fleet.Verdict
}

// announced is what was told to the admins of the hub, pathsTold to those of spokes.
func (b *bench) announced() []string {
	b.seen.Lock()
	defer b.seen.Unlock()
	return slices.Clone(b.told)
}

func (b *bench) pathsTold() []string {
	b.seen.Lock()
	defer b.seen.Unlock()
	return slices.Clone(b.reached)
}

// verdicts are all that there have been, of each Proxy for which there were any.
func (b *bench) verdicts() map[fleet.Key][]fleet.Verdict {
	b.seen.Lock()
	defer b.seen.Unlock()
	return maps.Clone(b.verdict)
}

// newBench starts an engine that ends with the test, which fails if a host was probed
// twice at once. Where an instance is replaced, its probe may end after the first of the
// next one has begun: that has to have another host. It runs in a bubble.
func newBench(t *testing.T, answer func(host string, n int) (result, time.Duration), edits ...func(*Options)) *bench {
	t.Helper()
	b := &bench{wire: &scripted{answer: answer}, rec: newRecorder(), verdict: map[fleet.Key][]fleet.Verdict{}}
	o := Options{Fleet: fleet.New(fleet.Options{AllowLocal: true}), URL: "https://site.test/", Recorder: b.rec}
	o.Announce = func(_ bool, reason, _ string) {
		b.seen.Lock()
		defer b.seen.Unlock()
		b.told = append(b.told, reason)
	}
	o.PathBroken = func(spoke string, broken bool) {
		b.seen.Lock()
		defer b.seen.Unlock()
		b.reached = append(b.reached, spoke+map[bool]string{true: " broken", false: " open"}[broken])
	}
	for _, edit := range edits {
		edit(&o)
	}
	b.Engine = New(o)
	b.Engine.wire = b.wire
	o.Fleet.Follow(func(c fleet.Change) {
		b.seen.Lock()
		defer b.seen.Unlock()
		if c.Old != nil && c.New != nil && c.Old.Verdict != c.New.Verdict {
			b.verdict[c.New.Key] = append(b.verdict[c.New.Key], c.New.Verdict)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = b.Run(ctx)
	}()
	b.stop = func() { cancel(); <-done }
	t.Cleanup(func() {
		b.stop()
		if len(b.wire.twice) > 0 {
			t.Errorf("probed while they were probed: %v", b.wire.twice)
		}
	})
	return b
}

// proxyOf is a Proxy of a spoke, whose host is its name.
func proxyOf(spoke, name string, edits ...func(*fleet.Proxy)) fleet.Proxy {
	p := fleet.Proxy{
		Key: fleet.Key{Cluster: spoke, Namespace: "crawl", Name: name}, UID: "uid-" + name, Managed: true, Protocol: "http",
		Host: name, Port: 3128, Instance: "one", Provisioned: true,
		Check: fleet.Check{Interval: 30 * time.Second, Timeout: 10 * time.Second, SuccessThreshold: 1, FailureThreshold: 3},
	}
	for _, edit := range edits {
		edit(&p)
	}
	return p
}

func healthy(p *fleet.Proxy) {
	p.Verdict = fleet.Verdict{Health: fleet.Healthy, Latency: 40 * time.Millisecond}
}

// health is the verdict on a Proxy.
func (b *bench) health(p fleet.Proxy) fleet.Health { return b.Fleet.Get(p.Key).Verdict.Health }
