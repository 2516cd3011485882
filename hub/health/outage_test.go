package health

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// outage is a fleet whose URL, or proxies, or the hub's own way out, stop working.
type outage struct {
	*bench
	proxies          []fleet.Proxy
	site, way, dials atomic.Bool // whether the site answers, the hub gets out, proxies accept
}

func newOutage(t *testing.T, n int, edits ...func(*fleet.Proxy)) *outage {
	t.Helper()
	o := &outage{}
	o.site.Store(true)
	o.way.Store(true)
	o.dials.Store(true)
	o.bench = newBench(t, func(string, int) (result, time.Duration) {
		switch {
		case !o.dials.Load() || !o.way.Load():
			return refuses, 10 * time.Millisecond
		case !o.site.Load():
			return broken, 10 * time.Millisecond
		default:
			return works, 10 * time.Millisecond
		}
	})
	o.wire.set(func() {
		o.wire.url = func() result {
			return result{ok: o.site.Load() && o.way.Load(), reason: "DialFailed", message: "refused"}
		}
	})
	synctest.Wait()
	for i := range n {
		p := proxyOf("eu", fmt.Sprint("p", i), edits...)
		o.proxies = append(o.proxies, p)
		arrive(o.Fleet, p)
		elapse(30 * time.Second / time.Duration(n))
	}
	elapse(time.Minute)
	o.are(t, fleet.Healthy)
	return o
}

// are fails unless all have this verdict.
func (o *outage) are(t *testing.T, want fleet.Health) {
	t.Helper()
	got := map[fleet.Health]int{}
	for _, p := range o.proxies {
		got[o.health(p)]++
	}
	if got[want] != len(o.proxies) {
		t.Fatalf("verdicts %v, want all %v", got, want)
	}
}

func TestABrokenProbeURLTakesNoProxyOutOfService(t *testing.T) {
	within(t, func(t *testing.T) {
		o := newOutage(t, 20)
		o.site.Store(false)
		elapse(4 * time.Minute)
		o.are(t, fleet.Healthy)
		if !o.Held() || !slices.Equal(o.announced(), []string{ReasonVerdictsHeld}) {
			t.Errorf("held %v, told %v", o.Held(), o.announced())
		}
		o.site.Store(true)
		elapse(recheckInterval + time.Second)
		if o.Held() || !slices.Equal(o.announced(), []string{ReasonVerdictsHeld, ReasonVerdictsReleased}) {
			t.Errorf("held %v, told %v", o.Held(), o.announced())
		}
		elapse(time.Hour)
		o.are(t, fleet.Healthy)
		for key, verdicts := range o.verdicts() {
			if len(verdicts) != 1 {
				t.Errorf("%s: verdicts %v", key, verdicts)
			}
		}
	})
}

func TestVerdictsAreHeldForFiveMinutesAtMost(t *testing.T) {
	within(t, func(t *testing.T) {
		o := newOutage(t, 20)
		o.site.Store(false)
		began := time.Now()
		elapse(maxHold) // the hold begins after that, when half have failed
		o.are(t, fleet.Healthy)
		elapse(time.Minute)
		o.are(t, fleet.Unhealthy)
		for key, verdicts := range o.verdicts() {
			if flipped := verdicts[1].Time; flipped.Sub(began) > maxHold+time.Minute || verdicts[1].Reason != "ConnectRefused" {
				t.Errorf("%s turned after %s: %+v", key, flipped.Sub(began), verdicts[1])
			}
		}
		elapse(time.Hour) // and are not held again before the URL has answered
		if !slices.Equal(o.announced(), []string{ReasonVerdictsHeld, ReasonHoldExpired}) {
			t.Errorf("told %v", o.announced())
		}
	})
}

func TestAHubThatLosesItsNetworkJudgesNobodyForIt(t *testing.T) {
	within(t, func(t *testing.T) {
		o := newOutage(t, 20)
		o.way.Store(false)
		elapse(3 * time.Minute)
		o.are(t, fleet.Healthy)
		o.way.Store(true)
		elapse(time.Minute)
		o.are(t, fleet.Healthy)
	})
}

func TestAHubWithoutAWayOutOfItsOwnNeverHolds(t *testing.T) {
	within(t, func(t *testing.T) {
		o := newOutage(t, 20)
		o.wire.set(func() { o.wire.url = func() result { return result{reason: "Timeout"} } })
		elapse(passLasts + patrolInterval) // by then no direct probe has passed for long
		o.site.Store(false)
		elapse(2 * time.Minute)
		o.are(t, fleet.Unhealthy)
		if len(o.announced()) != 0 {
			t.Errorf("told %v", o.announced())
		}
	})
}

// A direct probe that hangs is no hold, and no reason to wait for one that cannot come.
func TestNobodyIsKeptWhereNoHoldCanFollow(t *testing.T) {
	within(t, func(t *testing.T) {
		o := newOutage(t, 20, func(p *fleet.Proxy) { p.Check.FailureThreshold = 1 })
		o.wire.set(func() { o.wire.hangs = true })
		elapse(passLasts + patrolInterval)
		o.site.Store(false)
		elapse(31 * time.Second)
		o.are(t, fleet.Unhealthy)
	})
}

// A page that the hub can fetch every other time makes holds that are over at once. They
// must not keep a dead proxy in service, nor tell of themselves for ever.
func TestAPageThatComesAndGoesKeepsNoDeadProxy(t *testing.T) {
	within(t, func(t *testing.T) {
		b := newBench(t, func(_ string, n int) (result, time.Duration) {
			if n > 1 {
				return refuses, time.Millisecond
			}
			return works, time.Millisecond
		})
		b.wire.set(func() { b.wire.stutters = true })
		synctest.Wait()
		p := proxyOf("eu", "p")
		arrive(b.Fleet, p)
		elapse(time.Hour)
		if b.health(p) != fleet.Unhealthy {
			t.Errorf("it is in service after %d probes", b.wire.count("p"))
		}
		elapse(5 * time.Hour)
		if n := len(b.announced()); n > 200 {
			t.Errorf("%d announcements in six hours", n)
		}
	})
}

func TestProxiesThatAllFailAreJudgedWhileTheURLAnswers(t *testing.T) {
	within(t, func(t *testing.T) {
		o := newOutage(t, 20)
		o.dials.Store(false)
		elapse(2 * time.Minute) // three intervals, and what it takes to ask
		o.are(t, fleet.Unhealthy)
		if len(o.announced()) != 0 || o.Held() {
			t.Errorf("told %v, held %v", o.announced(), o.Held())
		}
		if n := o.wire.directly(); n > 2+int(2*time.Minute/recheckInterval) {
			t.Errorf("%d direct probes", n)
		}
	})
}

func TestAProxyThatIsItselfAtFaultIsJudgedDuringAHold(t *testing.T) {
	within(t, func(t *testing.T) {
		o := newOutage(t, 20)
		o.site.Store(false)
		elapse(time.Minute)
		if !o.Held() {
			t.Fatal("not held")
		}
		answer := o.wire.answer
		o.wire.set(func() {
			o.wire.answer = func(host string, n int) (result, time.Duration) {
				if host == "p7" {
					return result{own: true, reason: "ProxyAuthRequired", reach: accepted}, 0
				}
				return answer(host, n)
			}
		})
		elapse(2 * time.Minute)
		if o.health(o.proxies[7]) != fleet.Unhealthy || o.health(o.proxies[8]) != fleet.Healthy {
			t.Errorf("verdicts %v and %v", o.health(o.proxies[7]), o.health(o.proxies[8]))
		}
	})
}

func TestAURLOfASpokeUsersOwnIsNeverFetchedDirectly(t *testing.T) {
	within(t, func(t *testing.T) {
		o := newOutage(t, 20, func(p *fleet.Proxy) { p.Check.URL = "https://metadata.test/" })
		o.site.Store(false)
		elapse(3 * time.Minute)
		o.are(t, fleet.Unhealthy)
		if o.wire.directly() != 0 {
			t.Errorf("%d direct probes of whatever", o.wire.directly())
		}
	})
}

func TestTheSpokeIsToldThatItsPathIsBrokenAndTheProxiesTurnUnhealthy(t *testing.T) {
	within(t, func(t *testing.T) {
		o := newOutage(t, 20)
		other := proxyOf("us", "other")
		answer := o.wire.answer
		o.wire.set(func() {
			o.wire.answer = func(host string, n int) (result, time.Duration) {
				if host == "other" {
					return works, 0
				}
				return answer(host, n)
			}
		})
		arrive(o.Fleet, other)
		elapse(time.Second)
		if want := []string{"eu open", "us open"}; !slices.Equal(o.pathsTold(), want) {
			t.Errorf("told %v, want %v", o.pathsTold(), want)
		}
		o.dials.Store(false)
		elapse(pathMisses*30*time.Second + time.Second)
		if want := "eu broken"; last(o.pathsTold()) != want {
			t.Errorf("told %v, want %v at last", o.pathsTold(), want)
		}
		elapse(2 * time.Minute)
		o.are(t, fleet.Unhealthy)
		if o.health(other) != fleet.Healthy {
			t.Error("another spoke's proxy suffers")
		}
		o.dials.Store(true)
		elapse(time.Minute)
		o.are(t, fleet.Healthy)
		if want := []string{"eu open", "us open", "eu broken", "eu open"}; !slices.Equal(o.pathsTold(), want) {
			t.Errorf("told %v, want %v", o.pathsTold(), want)
		}
	})
}

func last(all []string) string { return all[len(all)-1] }
