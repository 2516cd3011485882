package health

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// A hub takes over a fleet that another has judged: nobody changes its verdict, and
// nothing is written, while the proxies go on as they were.
func TestATakeoverKeepsVerdictsWithoutABurstOfWrites(t *testing.T) {
	within(t, func(t *testing.T) {
		f := fleet.New(fleet.Options{AllowLocal: true})
		const n = 200
		for i := range n {
			f.Upsert(proxyOf("eu", fmt.Sprint("p", i), func(p *fleet.Proxy) {
				p.Verdict = fleet.Verdict{Health: fleet.Healthy, Reason: "ProbeSucceeded", Message: "the probe passed", Latency: 40 * time.Millisecond}
				if i%4 == 0 { // one in four does not work
					p.Verdict = fleet.Verdict{Health: fleet.Unhealthy, Reason: "DialFailed", Message: "connection refused"}
				}
			}))
		}
		b := newBench(t, func(host string, _ int) (result, time.Duration) {
			var i int
			_, _ = fmt.Sscanf(host, "p%d", &i)
			if i%4 == 0 {
				return refuses, time.Millisecond
			}
			slower := works // as seen from where this hub is
			slower.latency = 90 * time.Millisecond
			return slower, time.Millisecond
		}, func(o *Options) { o.Fleet = f })
		elapse(time.Minute)
		if len(b.verdicts()) != 0 {
			t.Errorf("%d verdicts were written in the first minute", len(b.verdicts()))
		}
		elapse(4 * time.Minute)
		for i := range n {
			p := f.Get(fleet.Key{Cluster: "eu", Namespace: "crawl", Name: fmt.Sprint("p", i)})
			want := fleet.Healthy
			if i%4 == 0 {
				want = fleet.Unhealthy
			}
			if wrote := len(b.verdicts()[p.Key]); p.Verdict.Health != want || wrote > 1 || i%4 == 0 && wrote != 0 {
				t.Errorf("p%d: health %v, written %d times", i, p.Verdict.Health, wrote)
			}
		}
	})
}

// While this hub does not lead, the statuses are another's to write: when it takes
// over it goes on from what they say then, not from what they said when it started.
func TestATakeoverGoesOnFromWhatTheStatusesSayThen(t *testing.T) {
	within(t, func(t *testing.T) {
		f := fleet.New(fleet.Options{AllowLocal: true})
		p := proxyOf("eu", "p")
		f.Upsert(p)
		healthy(&p)
		f.Upsert(p)
		b := newBench(t, at(refuses, time.Millisecond), func(o *Options) { o.Fleet = f })
		for b.wire.count("p") < 2 {
			elapse(time.Second)
		}
		if b.health(p) != fleet.Healthy {
			t.Error("what the leader before it found out is forgotten")
		}
		elapse(time.Minute)
		if b.health(p) != fleet.Unhealthy {
			t.Error("and counts against what is seen now")
		}
	})
}

func TestAReplacedInstanceStartsAfresh(t *testing.T) {
	within(t, func(t *testing.T) {
		b := newBench(t, at(refuses, time.Millisecond))
		synctest.Wait()
		p := proxyOf("eu", "p", healthy)
		arrive(b.Fleet, p)
		for b.wire.count("p") < 2 { // and the third failure is to come
			elapse(time.Second)
		}
		p.Instance = "two"
		arrive(b.Fleet, p)
		elapse(time.Minute) // three more of its own, the first at once: 0, 30, 60 s at the latest
		history := b.verdicts()[p.Key]
		if len(history) != 2 || history[0].Health != fleet.Unknown || history[1].Health != fleet.Unhealthy {
			t.Errorf("verdicts %+v, want none for the new instance and then that it fails", history)
		}
		if b.wire.count("p") < 5 {
			t.Errorf("%d probes", b.wire.count("p"))
		}
	})
}

// What a spoke's statuses said before it was lost is not taken over; but its Proxies are
// out of service then, and are not to wait for that until their interval is over.
func TestWhatIsNotTakenOverIsProbedSoon(t *testing.T) {
	within(t, func(t *testing.T) {
		f := fleet.New(fleet.Options{AllowLocal: true})
		p := proxyOf("eu", "p", healthy, func(p *fleet.Proxy) { p.Check.Interval = 24 * time.Hour })
		f.Upsert(p)
		b := newBench(t, at(works, time.Millisecond), func(o *Options) {
			o.Fleet, o.Connected = f, func(string) bool { return false }
		})
		synctest.Wait()
		if f.Get(p.Key).Offerable() {
			t.Error("a verdict of whoever knows when is taken over")
		}
		elapse(unknownSpread + time.Second)
		if b.health(p) != fleet.Healthy {
			t.Errorf("probed %d times, health %v", b.wire.count("p"), b.health(p))
		}
	})
}
