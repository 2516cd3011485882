package health

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

func daily(p *fleet.Proxy) { p.Check.Interval = 24 * time.Hour }

// takes is how long it is until something is so, to a second; limit if it is not by then.
func takes(limit time.Duration, so func() bool) time.Duration {
	began := time.Now()
	for !so() && time.Since(began) < limit {
		elapse(time.Second)
	}
	return time.Since(began)
}

// All the others would lose their Proxies in an outage of the page for as long as one
// tenant has many that tell nothing of it.
func TestOneSpokeCannotHaveTheOthersProxiesTakenOutOfServiceInAnOutage(t *testing.T) {
	for name, edit := range map[string]func(*fleet.Proxy){
		"its Proxies are probed once a day": daily,
		"its Proxies pass whatever happens": func(*fleet.Proxy) {},
	} {
		t.Run(name, func(t *testing.T) {
			within(t, func(t *testing.T) {
				o := newOutage(t, 20)
				o.wire.set(func() {
					others := o.wire.answer
					o.wire.answer = func(host string, n int) (result, time.Duration) {
						if host[0] == 'x' {
							return works, time.Millisecond
						}
						return others(host, n)
					}
				})
				for i := range 50 {
					arrive(o.Fleet, proxyOf("other", fmt.Sprint("x", i), edit))
				}
				elapse(time.Minute)
				o.breaks(t)
				elapse(maxHold - time.Minute)
				o.are(t, fleet.Healthy)
				if !o.Held() {
					t.Error("verdicts are not held any more")
				}
			})
		})
	}
}

// With the page away for most of the time each failure of a dead proxy looks like the page's.
func TestAProxyThatDiesWhileTheHubsURLComesAndGoesIsNotLeasedForEver(t *testing.T) {
	within(t, func(t *testing.T) {
		o := newOutage(t, 20)
		o.does("p7", always(refuses))
		began := time.Now()
		for o.health(o.proxies[7]) != fleet.Unhealthy {
			if d := time.Since(began); d > 30*time.Minute {
				t.Fatalf("a dead proxy is leased after %s", d)
			}
			o.site.Store(false)
			elapse(50 * time.Second)
			o.site.Store(true)
			elapse(20 * time.Second)
		}
	})
}

// heldDaily is an outage that is held, and a Proxy that is probed once a day, whose
// verdict is kept: its owner has edited it meanwhile.
func heldDaily(t *testing.T) (*outage, fleet.Proxy) {
	t.Helper()
	o := newOutage(t, 20)
	slow := proxyOf("eu", "slow", daily, func(p *fleet.Proxy) { p.Check.FailureThreshold = 1 })
	arrive(o.Fleet, slow)
	elapse(time.Minute)
	o.breaks(t)
	n := o.wire.count(slow.Name)
	slow.Check.Timeout++
	o.Fleet.Upsert(slow)
	elapse(time.Second)
	if o.wire.count(slow.Name) == n || o.health(slow) != fleet.Healthy {
		t.Fatalf("%d probes since the edit, health %v", o.wire.count(slow.Name)-n, o.health(slow))
	}
	return o, slow
}

func TestAProxyThatIsProbedOnceADayIsNotKeptForADayAfterAnOutage(t *testing.T) {
	for name, back := range map[string]bool{"the hold expires": false, "the page is back": true} {
		t.Run(name, func(t *testing.T) {
			within(t, func(t *testing.T) {
				o, slow := heldDaily(t)
				o.does(slow.Name, always(broken)) // whatever the page does
				o.site.Store(back)
				if d := takes(2*maxHold, func() bool { return !o.Held() }); d > maxHold {
					t.Fatalf("held for %s", d)
				}
				if d := takes(time.Hour, func() bool { return o.health(slow) == fleet.Unhealthy }); d > 2*keptInterval {
					t.Errorf("judged %s after that", d)
				}
			})
		})
	}
}

// Its owner waits for the first lease with them, and not for a day.
func TestCredentialsThatAProxyHasNotNeededBeforeAreTriedAtOnce(t *testing.T) {
	within(t, func(t *testing.T) {
		b := newBench(t, at(works, time.Millisecond))
		synctest.Wait()
		for i, late := range []time.Duration{0, time.Second, time.Hour} { // they are known after they are asked for
			p := proxyOf("eu", fmt.Sprint("p", i), daily)
			arrive(b.Fleet, p)
			elapse(time.Minute)
			p.NeedsCredentials = true
			b.Fleet.Upsert(p)
			elapse(late)
			n := b.wire.count(p.Name)
			b.Fleet.SetCredentials(p.Key, p.Instance, right)
			elapse(time.Second)
			if got := b.wire.count(p.Name); got != n+1 {
				t.Errorf("known after %s: %d probes with them within a second", late, got-n)
			}
		}
	})
}

func TestWhatIsEditedWhileItsProbeHangsIsTriedAtOnce(t *testing.T) {
	within(t, func(t *testing.T) {
		b := newBench(t, func(_ string, n int) (result, time.Duration) {
			if n == 1 {
				return works, time.Hour
			}
			return works, time.Millisecond
		})
		synctest.Wait()
		p := proxyOf("eu", "p", daily, func(p *fleet.Proxy) { p.Check.Timeout = 300 * time.Second })
		arrive(b.Fleet, p)
		elapse(time.Second)
		p.Check.Timeout = 5 * time.Second // it hangs, as its owner sees
		b.Fleet.Upsert(p)
		elapse(time.Second)
		if b.health(p) != fleet.Healthy {
			t.Errorf("%d probes a second after the edit, health %v", b.wire.count(p.Name), b.health(p))
		}
	})
}

// Whoever may write Proxies of a spoke could keep from its admin that nobody reaches it.
func TestAProxyWhoseNameLeadsNowhereDoesNotHideThatAPathIsBroken(t *testing.T) {
	within(t, func(t *testing.T) {
		nowhere := remote(&names{}, &routes{}).probe(t.Context(), through{host: "lost", port: 3128}, aim{url: "https://site.test/"})
		b := newBench(t, at(refuses, time.Millisecond))
		b.does("lost", always(nowhere))
		synctest.Wait()
		for _, name := range []string{"a", "b", "c", "lost"} {
			arrive(b.Fleet, proxyOf("eu", name))
		}
		elapse(pathMisses*30*time.Second + time.Second)
		if want := []string{"eu broken"}; !slices.Equal(b.pathsTold(), want) {
			t.Errorf("told %v, want %v", b.pathsTold(), want)
		}
	})
}

// Each time the hub writes to the spoke's API server. What is put off is told all the same:
// when the last Proxy has gone nothing else wakes the engine up.
func TestAPathThatFlapsDoesNotFloodItsSpoke(t *testing.T) {
	within(t, func(t *testing.T) {
		b := newBench(t, func(host string, n int) (result, time.Duration) {
			if host == "a" && n%(2*pathMisses) < pathMisses {
				return broken, 0
			}
			return refuses, 0
		})
		synctest.Wait()
		for _, name := range []string{"a", "b"} {
			arrive(b.Fleet, proxyOf("eu", name, func(p *fleet.Proxy) { p.Check.Interval = time.Second }))
		}
		elapse(time.Hour)
		const most = int((time.Hour+pathBurst)/pathRest) + 1
		if n := len(b.pathsTold()); n < most/2 || n > most {
			t.Errorf("told %d times in an hour, want %d at most", n, most)
		}
		takes(time.Hour, func() bool { return last(b.pathsTold()) == "eu broken" })
		b.Fleet.Retain("eu", nil)
		elapse(pathRest)
		if told := b.pathsTold(); told[len(told)-2] != "eu broken" || last(told) != "eu open" {
			t.Errorf("told %v at last", told[len(told)-2:])
		}
	})
}

// The next probe is a day away, and there is no patrol.
func TestASpokeIsToldThatNothingIsBrokenWhenItsLastProxyHasGone(t *testing.T) {
	within(t, func(t *testing.T) {
		b := newBench(t, at(refuses, 0))
		synctest.Wait()
		for _, name := range []string{"a", "b"} {
			arrive(b.Fleet, proxyOf("eu", name, daily, func(p *fleet.Proxy) { p.Check.URL = "https://own.test/" }))
		}
		elapse((pathMisses - 1) * 24 * time.Hour)
		b.Fleet.Retain("eu", nil)
		elapse(pathRest)
		if want := []string{"eu broken", "eu open"}; !slices.Equal(b.pathsTold(), want) {
			t.Errorf("told %v, want %v", b.pathsTold(), want)
		}
	})
}

// What another hub found out last may be mended by now, and something else be broken.
func TestAfterATakeoverAnEditShowsWhatIsBrokenNow(t *testing.T) {
	within(t, func(t *testing.T) {
		f := fleet.New(fleet.Options{AllowLocal: true})
		p := proxyOf("eu", "p", daily, func(p *fleet.Proxy) {
			p.Verdict = fleet.Verdict{Health: fleet.Unhealthy, Reason: "DialFailed", Message: "connection refused"}
		})
		f.Upsert(p)
		b := newBench(t, at(broken, time.Millisecond), func(o *Options) { o.Fleet = f })
		synctest.Wait()
		p.Check.Interval = 10 * time.Second
		f.Upsert(p)
		elapse(2 * time.Minute)
		if v := f.Get(p.Key).Verdict; v.Health != fleet.Unhealthy || v.Reason != broken.reason {
			t.Errorf("after %d probes %+v", b.wire.count(p.Name), v)
		}
	})
}
