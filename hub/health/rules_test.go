package health

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// does has one host answer in a way of its own, and the others as before. answer is
// called for each of its probes, and says whether it has something to say.
func (b *bench) does(host string, answer func() (result, bool)) {
	b.wire.set(func() {
		others := b.wire.answer
		b.wire.answer = func(h string, n int) (result, time.Duration) {
			if h == host {
				if r, says := answer(); says {
					return r, 10 * time.Millisecond
				}
			}
			return others(h, n)
		}
	})
}

// always answers the same.
func always(r result) func() (result, bool) { return func() (result, bool) { return r, true } }

// times answers the same so many times.
func times(n int32, r result) func() (result, bool) {
	var left atomic.Int32
	left.Store(n)
	return func() (result, bool) { return r, left.Add(-1) >= 0 }
}

// breaks has the site break, and verdicts be held.
func (o *outage) breaks(t *testing.T) {
	t.Helper()
	o.site.Store(false)
	elapse(31 * time.Second)
	if !o.Held() {
		t.Fatal("verdicts are not held")
	}
}

func TestAProxyWithAURLOfItsOwnIsJudgedWhileOthersAreHeld(t *testing.T) {
	within(t, func(t *testing.T) {
		o := newOutage(t, 20)
		own := proxyOf("eu", "own", func(p *fleet.Proxy) { p.Check.URL = "https://own.test/" })
		o.does("own", times(1, works))
		arrive(o.Fleet, own)
		o.breaks(t)
		if o.health(own) != fleet.Healthy {
			t.Fatalf("health %v before it can have failed three times", o.health(own))
		}
		elapse(time.Minute)
		if !o.Held() || o.health(own) != fleet.Unhealthy {
			t.Errorf("held %v: a proxy that fails at its own URL is %v", o.Held(), o.health(own))
		}
		o.are(t, fleet.Healthy)
	})
}

// What failed while the site did not answer is no fault of the proxies: they do not owe
// it to anybody when it answers again.
func TestOneFailureAfterAnOutageFlipsNobody(t *testing.T) {
	within(t, func(t *testing.T) {
		o := newOutage(t, 20)
		o.breaks(t)
		elapse(2 * time.Minute) // all have failed as often as it takes
		o.site.Store(true)
		for o.Held() {
			elapse(time.Second)
		}
		for i := range 3 { // a few, which does not look like another outage
			o.does(fmt.Sprint("p", i), times(1, broken))
		}
		elapse(5 * time.Minute)
		o.are(t, fleet.Healthy)
		for key, verdicts := range o.verdicts() {
			if len(verdicts) != 1 {
				t.Errorf("%s: verdicts %v", key, verdicts)
			}
		}
		o.does("p0", always(broken)) // it is no licence to fail
		elapse(91 * time.Second)
		if o.health(o.proxies[0]) != fleet.Unhealthy {
			t.Errorf("a proxy that fails for good is %v", o.health(o.proxies[0]))
		}
	})
}

func (b *bench) crowd() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.suspicion.members
}

// Who does not fetch the hub's URL any more says nothing about it, and must not be kept
// in service for it.
func TestAProxyCountsAsOneOfTheHubsURLWhileItIsProbedWithIt(t *testing.T) {
	within(t, func(t *testing.T) {
		o := newOutage(t, 3)
		for i, step := range []struct {
			url  string
			want int
		}{{"https://own.test/", 2}, {"https://another.test/", 2}, {"", 3}, {"https://site.test/", 3}, {"https://own.test/", 2}, {"https://site.test/", 3}} {
			o.proxies[0].Check.URL = step.url
			arrive(o.Fleet, o.proxies[0])
			synctest.Wait()
			if got := o.crowd(); got != step.want {
				t.Errorf("edit %d, %q: %d are probed with the hub's URL, want %d", i, step.url, got, step.want)
			}
		}
		// Who joins the crowd passed: its failure is one of three, that of two is more than half.
		o.breaks(t)
		o.are(t, fleet.Healthy)
	})
}

func TestAHubThatStopsJudgesNobodyForTheProbesThatItCutsOff(t *testing.T) {
	within(t, func(t *testing.T) {
		b := newBench(t, at(works, time.Millisecond))
		synctest.Wait()
		p := proxyOf("eu", "p", func(p *fleet.Proxy) { p.Check.FailureThreshold = 1 })
		arrive(b.Fleet, p)
		elapse(time.Second)
		b.wire.set(func() { b.wire.answer = at(works, 5*time.Second) })
		for b.wire.count("p") < 2 {
			elapse(time.Second)
		}
		b.stop()
		if got := b.rec.all(); b.health(p) != fleet.Healthy || len(got) != 1 || got["p "] != 1 {
			t.Errorf("health %v, probes recorded %v, want the one that passed", b.health(p), got)
		}
	})
}

// Only who waits has reason to be probed: nothing else may come along for an hour.
func TestWhoWaitsForRoomIsProbedAsSoonAsThereIsSome(t *testing.T) {
	within(t, func(t *testing.T) {
		b := newBench(t, at(works, time.Second), func(o *Options) { o.MaxInFlight = 1 })
		synctest.Wait()
		const n = 5
		var all []fleet.Proxy
		for i := range n { // due again in this order: nobody is next who has just been probed
			p := proxyOf("eu", fmt.Sprint("p", i), func(p *fleet.Proxy) { p.Check.Interval = time.Duration(i+1) * time.Hour })
			all = append(all, p)
			arrive(b.Fleet, p)
			elapse(time.Millisecond)
		}
		elapse(n * time.Second)
		for i, p := range all {
			if b.health(p) != fleet.Healthy {
				t.Errorf("%s has no verdict after the time of %d probes", p.Name, i+1)
			}
		}
		for i, lag := range b.rec.lags {
			if want := time.Duration(i) * (time.Second - time.Millisecond); lag != want {
				t.Errorf("probe %d began %s after it was due, want %s", i, lag, want)
			}
		}
		if len(b.rec.lags) != n {
			t.Errorf("%d probes, want %d", len(b.rec.lags), n)
		}
	})
}

func TestWhoWaitsForADeletedProxyIsProbedAtOnce(t *testing.T) {
	within(t, func(t *testing.T) {
		b := newBench(t, func(host string, _ int) (result, time.Duration) {
			return works, map[string]time.Duration{"hangs": time.Hour}[host]
		}, func(o *Options) { o.MaxInFlight = 1 })
		synctest.Wait()
		hangs, waits := proxyOf("eu", "hangs", func(p *fleet.Proxy) { p.Check.Timeout = time.Hour }), proxyOf("eu", "waits")
		arrive(b.Fleet, hangs)
		synctest.Wait()
		arrive(b.Fleet, waits)
		elapse(time.Minute)
		if b.wire.count("waits") != 0 {
			t.Fatal("there was room")
		}
		b.Fleet.Delete(hangs.Key, hangs.UID)
		elapse(time.Nanosecond)
		if b.health(waits) != fleet.Healthy {
			t.Error("the room of one that is gone stays empty")
		}
	})
}

func (b *bench) class(p fleet.Proxy) class {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.states[p.Key].class
}

// One that is dubious has to wait behind those that hang: the hub's own trouble is no
// reason to leave it there.
func TestAHubThatCannotProbeDoubtsNobody(t *testing.T) {
	within(t, func(t *testing.T) {
		b := newBench(t, at(works, time.Millisecond))
		synctest.Wait()
		good, bad := proxyOf("eu", "good"), proxyOf("eu", "bad")
		b.does("bad", always(broken))
		arrive(b.Fleet, good)
		arrive(b.Fleet, bad)
		elapse(time.Second)
		b.wire.set(func() { b.wire.answer = at(result{void: true, message: "socket: too many open files"}, 0) })
		before := b.wire.count("good") + b.wire.count("bad")
		elapse(5 * time.Minute)
		if n := b.wire.count("good") + b.wire.count("bad") - before; n < 20 {
			t.Fatalf("%d probes", n)
		}
		if b.class(good) != sound || b.class(bad) != dubious {
			t.Errorf("the one that passed last is of class %d, the one that failed of %d", b.class(good), b.class(bad))
		}
	})
}

func TestProxiesThatAreTakenBackIntoServiceAreNotProbedAllAtOnce(t *testing.T) {
	within(t, func(t *testing.T) {
		const n = 200
		o := newOutage(t, n)
		before := map[string]int{}
		for _, p := range o.proxies {
			verdict := o.Fleet.Get(p.Key).Verdict
			o.Fleet.SetWithdrawn(p.Key, p.Instance, true)
			o.Fleet.Restore(p.Key, p.Instance, verdict)
			before[p.Name] = o.wire.count(p.Name)
		}
		probed := func() (probed int) {
			for _, p := range o.proxies {
				if o.wire.count(p.Name) > before[p.Name] {
					probed++
				}
			}
			return probed
		}
		elapse(time.Second)
		if got := probed(); got > n/5 { // some seven begin each second
			t.Errorf("%d of %d were probed within a second", got, n)
		}
		elapse(29*time.Second + time.Nanosecond)
		if got := probed(); got != n {
			t.Errorf("%d of %d were probed within their interval", got, n)
		}
		o.are(t, fleet.Healthy)
	})
}

// A patrol comes every three minutes: by then everybody would be out of service.
func TestTheHubsURLIsAskedForInTheMomentInWhichItIsSuspected(t *testing.T) {
	within(t, func(t *testing.T) {
		o := newOutage(t, 20)
		var failed []time.Time
		o.wire.set(func() {
			o.wire.answer = func(string, int) (result, time.Duration) {
				failed = append(failed, time.Now().Add(10*time.Millisecond))
				return broken, 10 * time.Millisecond
			}
		})
		elapse(26 * time.Second) // nobody fails twice
		if len(failed) < 11 {
			t.Fatalf("%d have failed", len(failed))
		}
		if !slices.ContainsFunc(o.wire.asked, failed[10].Equal) {
			t.Errorf("more than half had failed at %s, asked at %s", failed[10], o.wire.asked)
		}
	})
}

// Passes by luck, of one request in a longer outage, must not cost the fleet.
func TestADirectPassByLuckDuringAnOutageCostsNobody(t *testing.T) {
	within(t, func(t *testing.T) {
		o := newOutage(t, 20)
		o.breaks(t)
		elapse(time.Minute)
		var lucky atomic.Bool
		o.wire.set(func() {
			url := o.wire.url
			o.wire.url = func() result {
				if lucky.CompareAndSwap(false, true) {
					return result{ok: true}
				}
				return url()
			}
		})
		elapse(3 * time.Minute)
		o.are(t, fleet.Healthy)
		if want := []string{ReasonVerdictsHeld, ReasonVerdictsReleased, ReasonVerdictsHeld}; !o.Held() || !slices.Equal(o.announced(), want) {
			t.Errorf("held %v, told %v, want %v", o.Held(), o.announced(), want)
		}
	})
}

// All that it has failed before may have been the site's fault: that does not count
// towards what it does wrong itself.
func TestOneFaultOfItsOwnDuringAnOutageDoesNotCostAProxyItsPlace(t *testing.T) {
	within(t, func(t *testing.T) {
		wants := result{own: true, reason: "ProxyAuthRequired", reach: accepted}
		o := newOutage(t, 20)
		o.breaks(t)
		elapse(31 * time.Second) // it has failed twice
		p := o.proxies[7]
		o.does("p7", times(1, wants))
		elapse(61 * time.Second) // and has failed otherwise since
		o.are(t, fleet.Healthy)
		o.does("p7", times(2, wants))
		elapse(61 * time.Second)
		o.are(t, fleet.Healthy)
		o.does("p7", always(wants))
		elapse(91 * time.Second)
		if v := o.Fleet.Get(p.Key).Verdict; !o.Held() || v.Health != fleet.Unhealthy || v.Reason != "ProxyAuthRequired" {
			t.Errorf("held %v; after three in a row %+v", o.Held(), v)
		}
		if o.health(o.proxies[8]) != fleet.Healthy {
			t.Error("another one suffers")
		}
	})
}

// What is announced is for all who may read events, the URL for whoever set it.
func TestNothingSecretOfTheHubsURLIsAnnounced(t *testing.T) {
	within(t, func(t *testing.T) {
		var told, logged []string // by one goroutine, read when it has stopped
		b := newBench(t, at(works, time.Millisecond), func(o *Options) {
			o.URL = "https://user-s3cret:s3cret@site.test:8443/path-s3cret?key=s3cret#s3cret"
			o.Announce = func(_ bool, _, message string) { told = append(told, message) }
			o.Log = funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
		})
		synctest.Wait()
		for i := range 3 {
			arrive(b.Fleet, proxyOf("eu", fmt.Sprint("p", i)))
		}
		elapse(time.Minute)
		set := func(r result) {
			b.wire.set(func() { b.wire.answer, b.wire.url = at(r, time.Millisecond), func() result { return r } })
		}
		for _, r := range []result{broken, works, broken} { // held, released, held until it is enough
			set(r)
			elapse(2 * time.Minute)
		}
		elapse(maxHold)
		b.stop()
		if len(told) != 4 || len(logged) != 4 {
			t.Errorf("told %q, logged %q", told, logged)
		}
		for _, text := range slices.Concat(told, logged) {
			if !strings.Contains(text, "(https://site.test:8443)") || strings.Contains(text, "s3cret") {
				t.Errorf("%q names more or less than the site", text)
			}
		}
	})
}
