package health

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// within runs f in a bubble of time.
func within(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// elapse lets time go by, and then all that has become due.
func elapse(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func at(r result, takes time.Duration) func(string, int) (result, time.Duration) {
	return func(string, int) (result, time.Duration) { return r, takes }
}

func TestAStartDoesNotProbeAWholeFleetAtOnceAndSkipsNobody(t *testing.T) {
	within(t, func(t *testing.T) {
		f := fleet.New(fleet.Options{AllowLocal: true})
		const n = 300
		for i := range n { // half of them known, half not: what was there before is spread
			f.Upsert(proxyOf("eu", fmt.Sprint("p", i), func(p *fleet.Proxy) {
				if i%2 == 0 {
					healthy(p)
				}
			}))
		}
		b := newBench(t, at(works, time.Second), func(o *Options) { o.Fleet = f })
		elapse(30*time.Second + time.Nanosecond)
		for i := range n {
			if b.wire.count(fmt.Sprint("p", i)) == 0 {
				t.Fatalf("p%d was not probed within its interval", i)
			}
		}
		if b.wire.atOnce() > n/5 { // some 10 begin each second and take as long
			t.Errorf("%d probes at once of %d that were to be spread", b.wire.atOnce(), n)
		}
	})
}

func TestWhatIsMadeWhileTheHubRunsIsProbedAtOnce(t *testing.T) {
	within(t, func(t *testing.T) {
		b := newBench(t, at(works, time.Millisecond))
		synctest.Wait()
		p := proxyOf("eu", "new")
		arrive(b.Fleet, p)
		elapse(time.Millisecond)
		if b.health(p) != fleet.Healthy {
			t.Error("no verdict after the time of one probe")
		}
	})
}

func TestEveryProxyIsProbedOnceAnIntervalAndNeverLater(t *testing.T) {
	within(t, func(t *testing.T) {
		b := newBench(t, at(works, 100*time.Millisecond))
		synctest.Wait()
		for i := range 50 {
			arrive(b.Fleet, proxyOf("eu", fmt.Sprint("p", i)))
		}
		const intervals = 100
		elapse(intervals * 30 * time.Second)
		for i := range 50 { // up to a tenth sooner each time
			if n := b.wire.count(fmt.Sprint("p", i)); n < intervals || n > intervals*10/9+2 {
				t.Errorf("p%d was probed %d times in %d intervals", i, n, intervals)
			}
		}
		if late := b.rec.latest(); late > 0 {
			t.Errorf("a probe began %s late", late)
		}
	})
}

// Dead proxies take their whole timeout. They must cost those that work nothing, however
// many there are and whatever spoke they are in.
func TestDeadProxiesDelayNobodyThatWorks(t *testing.T) {
	within(t, func(t *testing.T) {
		dies := func(host string, _ int) (result, time.Duration) {
			if host[0] == 'd' {
				return refuses, time.Hour // until its timeout
			}
			return works, 50 * time.Millisecond
		}
		b := newBench(t, dies, func(o *Options) { o.MaxInFlight = 64 })
		synctest.Wait()
		for i := range 1000 {
			arrive(b.Fleet, proxyOf("us", fmt.Sprint("dead", i), func(p *fleet.Proxy) { p.Check.Timeout = 300 * time.Second }))
		}
		elapse(time.Minute)
		var here []fleet.Proxy
		for i := range 20 {
			p := proxyOf([]string{"us", "eu"}[i%2], fmt.Sprint("live", i), healthy)
			here = append(here, p)
			arrive(b.Fleet, p)
		}
		elapse(10 * time.Minute)
		for _, p := range here {
			if n := b.wire.count(p.Name); n < 20 {
				t.Errorf("%s was probed %d times in 20 intervals", p.Name, n)
			}
		}
		if b.wire.atOnce() > 64 {
			t.Errorf("%d probes at once, the limit is 64", b.wire.atOnce())
		}
		fresh := proxyOf("eu", "fresh")
		arrive(b.Fleet, fresh)
		elapse(50 * time.Millisecond)
		if b.health(fresh) != fleet.Healthy {
			t.Error("the first verdict on a Proxy of one spoke waits for the dead of another")
		}
	})
}

func TestAProbeThatOutlastsItsIntervalDelaysTheNextAndIsNoLag(t *testing.T) {
	within(t, func(t *testing.T) {
		b := newBench(t, at(works, 45*time.Second), func(*Options) {})
		synctest.Wait()
		arrive(b.Fleet, proxyOf("eu", "slow", func(p *fleet.Proxy) { p.Check.Timeout = 60 * time.Second }))
		elapse(450 * time.Second)
		if n := b.wire.count("slow"); n != 11 { // the eleventh has just begun
			t.Errorf("%d probes in ten times 45 s", n)
		}
		if late := b.rec.latest(); late > 0 {
			t.Errorf("it counts as %s late", late)
		}
	})
}

func TestAProbeThatHasNoResultFlipsNothing(t *testing.T) {
	within(t, func(t *testing.T) {
		b := newBench(t, at(result{void: true, message: "socket: too many open files"}, time.Millisecond))
		synctest.Wait()
		p := proxyOf("eu", "p", healthy)
		arrive(b.Fleet, p)
		elapse(10 * time.Minute)
		if b.health(p) != fleet.Healthy || len(b.rec.all()) != 0 || b.wire.count("p") < 19 {
			t.Errorf("health %v, recorded %v, probed %d times", b.health(p), b.rec.all(), b.wire.count("p"))
		}
	})
}

func TestNothingIsKeptOfAFleetThatHasGone(t *testing.T) {
	within(t, func(t *testing.T) {
		b := newBench(t, at(refuses, time.Hour), func(o *Options) { o.MaxInFlight = 4 })
		synctest.Wait()
		for i := range 50 {
			arrive(b.Fleet, proxyOf("eu", fmt.Sprint("p", i)))
		}
		elapse(time.Second)
		b.Fleet.Retain("eu", nil)
		synctest.Wait()
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.states)+len(b.due)+len(b.slots.spokes)+len(b.slots.waiting[0])+len(b.slots.waiting[1])+len(b.Engine.paths.spokes)+b.suspicion.members+b.size+len(b.slots.served[0])+len(b.slots.served[1])+len(b.awaited) != 0 {
			t.Errorf("states %d, due %d, slots %+v, paths %v, members %d, size %d", len(b.states), len(b.due), b.slots, b.Engine.paths.spokes, b.suspicion.members, b.size)
		}
		if b.slots.busy != [2]int{} || b.rec.size != 0 || b.rec.forgot != 50 {
			t.Errorf("busy %v, told of a fleet of %d, forgot %d", b.slots.busy, b.rec.size, b.rec.forgot)
		}
	})
}
