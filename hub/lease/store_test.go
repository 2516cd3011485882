package lease

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

func TestALeaseSaysWhatWasGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(Options{}, proxy("a"), proxy("b", attr("region", "eu")))
		l := p.acquire(t, Request{Selector: map[string]string{"region": "eu"}, Target: "https://Example.com/x"})
		if l.Proxy.Name != "b" || l.Client != client || l.Target != "example.com" || l.Active != 1 {
			t.Errorf("lease %+v", l)
		}
		if l.TTL != 5*time.Minute || !l.ExpiresAt.Equal(time.Now().Add(5*time.Minute)) {
			t.Errorf("default ttl: %v until %v", l.TTL, l.ExpiresAt)
		}
		if second := p.acquire(t, Request{Cluster: "c", TTL: time.Second}); second.ID == l.ID || len(second.ID) < 22 || second.TTL != time.Second {
			t.Errorf("second lease %+v", second)
		}
	})
}

func TestRequestsThatCanNeverBeGrantedAreRefused(t *testing.T) {
	p := newPool(Options{MaxTTL: time.Hour}, proxy("a"))
	for field, req := range map[string]Request{
		"selector":   {Selector: map[string]string{"Region": "eu"}},
		"target":     {Target: "a b"},
		"ttlSeconds": {TTL: time.Hour + 1},
	} {
		var invalid *InvalidError
		if _, err := p.Acquire(t.Context(), client, req); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%+v: %v", req, err)
		}
	}
	p.acquire(t, Request{TTL: time.Hour})
	if l := newPool(Options{MaxTTL: time.Minute}, proxy("a")).acquire(t, Request{}); l.TTL != time.Minute {
		t.Errorf("a default above the maximum gave %v", l.TTL)
	}
}

func TestLeasesSpreadOverTheProxies(t *testing.T) {
	p := newPool(Options{}, proxy("a", latency(time.Millisecond)), proxy("b"), proxy("c", limit(1)))
	var got string
	for range 5 {
		got += p.acquire(t, Request{}).Proxy.Name
	}
	if got != "abcab" {
		t.Errorf("order %s", got)
	}
}

func TestAProxyIsNotLeasedFromTheFlipOnAndKeepsItsLeases(t *testing.T) {
	p := newPool(Options{}, proxy("a", limit(2)))
	p.acquire(t, Request{})
	p.fleet.SetVerdict(key("a"), p.fleet.Get(key("a")).Subject(), fleet.Verdict{Health: fleet.Unhealthy})
	if none := p.refused(t, Request{}); none != (NoMatchError{Considered: 1, Unhealthy: 1}) {
		t.Errorf("%+v", none)
	}
	if n := p.active(key("a"), "uid-a"); n != 1 {
		t.Errorf("%d active while unhealthy", n)
	}
	p.fleet.SetVerdict(key("a"), p.fleet.Get(key("a")).Subject(), fleet.Verdict{Health: fleet.Healthy})
	p.fleet.Upsert(*proxy("a", limit(1), attr("region", "eu"))) // an edit
	if none := p.refused(t, Request{}); none.AtCapacity != 1 || none.RetryAfter <= 4*time.Minute {
		t.Errorf("%+v", none)
	}
}

func TestALeaseOutlivesItsProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(Options{}, proxy("a", limit(1)))
		l := p.acquire(t, Request{TTL: time.Minute})
		p.fleet.Retain("c", nil) // the spoke is deregistered
		if none := p.refused(t, Request{}); none != (NoMatchError{}) {
			t.Errorf("a deregistered Proxy is considered: %+v", none)
		}
		if n := p.ActiveByCluster()["c"]; n != 1 {
			t.Errorf("%d active in the cluster", n)
		}
		p.fleet.Upsert(*proxy("a", limit(1))) // and registered again
		if none := p.refused(t, Request{}); none.AtCapacity != 1 {
			t.Errorf("re-registration forgot the lease: %+v", none)
		}
		namesake := proxy("a", limit(1))
		namesake.UID = "another"
		p.fleet.Upsert(*namesake)
		p.fleet.SetVerdict(key("a"), p.fleet.Get(key("a")).Subject(), fleet.Verdict{Health: fleet.Healthy})
		if got := p.acquire(t, Request{}); got.Proxy.UID != "another" || got.Active != 1 {
			t.Errorf("a namesake inherited leases: %+v", got)
		}
		p.release(t, client, l.ID)
		if n := p.active(key("a"), "uid-a"); n != 0 {
			t.Errorf("%d active after release", n)
		}
		if n := p.active(key("a"), "another"); n != 1 {
			t.Errorf("the release hit the namesake: %d", n)
		}
	})
}

func TestALeaseEndsAtItsInstantWithoutASweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(Options{}, proxy("a", limit(1)))
		p.acquire(t, Request{TTL: 10 * time.Second})
		pass(10*time.Second - 1)
		if none := p.refused(t, Request{}); none.AtCapacity != 1 || none.RetryAfter != 1 {
			t.Errorf("a nanosecond early: %+v", none)
		}
		pass(1)
		if n := p.active(key("a"), "uid-a"); n != 0 {
			t.Errorf("%d active at the instant", n)
		}
		p.acquire(t, Request{})
	})
}

func TestReleaseIsIdempotentAndOnlyForTheOwner(t *testing.T) {
	p := newPool(Options{}, proxy("a"))
	l, other := p.acquire(t, Request{}), p.acquire(t, Request{})
	p.release(t, "somebody", l.ID)
	p.release(t, client, "unknown")
	p.release(t, client, "")
	if n := p.active(key("a"), "uid-a"); n != 2 {
		t.Errorf("%d active, want 2", n)
	}
	for range 3 {
		p.release(t, client, l.ID)
	}
	if n := p.active(key("a"), "uid-a"); n != 1 {
		t.Errorf("%d active, want 1: releasing twice must not free somebody else's", n)
	}
	p.release(t, client, other.ID)
	if n := len(p.ActiveByCluster()); n != 0 {
		t.Errorf("%d clusters with active leases", n)
	}
}

func TestReportsAreTakenForOneWindowAfterTheEnd(t *testing.T) {
	for _, released := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newPool(Options{CooldownWindow: time.Minute}, proxy("a"))
			l := p.acquire(t, Request{TTL: 10 * time.Second})
			end := 10 * time.Second
			if released {
				end = 3 * time.Second
			}
			pass(end)
			if released {
				p.release(t, client, l.ID)
				pass(time.Second)
				p.release(t, client, l.ID) // does not lengthen the window
				pass(time.Minute - time.Second - 1)
			} else {
				pass(time.Minute - 1)
			}
			p.report(t, l.ID, Report{Result: Banned})
			if err := p.Report("somebody", l.ID, Report{Result: Banned}); !errors.Is(err, ErrUnknownLease) {
				t.Errorf("another client's report: %v", err)
			}
			if p.Cooldowns() != 1 {
				t.Errorf("the late report started %d cooldowns", p.Cooldowns())
			}
			pass(1)
			if err := p.Report(client, l.ID, Report{Result: OK}); !errors.Is(err, ErrUnknownLease) {
				t.Errorf("released=%v: after the window: %v", released, err)
			}
		})
	}
}

func TestMaxLeasesHoldsUnderConcurrency(t *testing.T) {
	const most = 3
	p := newPool(Options{}, proxy("a", limit(most)), proxy("b", limit(most)))
	var held [2]atomic.Int32
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for range 300 {
				l, err := p.Acquire(t.Context(), client, Request{})
				if err != nil {
					continue
				}
				n := &held[l.Proxy.Name[0]-'a']
				if got := n.Add(1); got > most {
					t.Errorf("%d leases on %s", got, l.Proxy.Name)
				}
				n.Add(-1)
				p.release(t, client, l.ID)
			}
		})
	}
	group.Go(func() { // a fleet that changes meanwhile
		for i := range 300 {
			p.fleet.SetVerdict(key("b"), p.fleet.Get(key("b")).Subject(), fleet.Verdict{Health: fleet.Healthy, Latency: time.Duration(i)})
			p.fleet.Delete(key("b"), "uid-b")
			p.fleet.Upsert(*proxy("b", limit(most)))
		}
	})
	group.Wait()
}

func TestNothingIsLeftWhenEverythingHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(Options{}, proxy("a"), proxy("b"))
		go func() { _ = p.Run(t.Context()) }()
		for i := range 50 {
			l := p.acquire(t, Request{TTL: time.Duration(i+1) * time.Second, Target: string(rune('a' + i%26))})
			p.report(t, l.ID, Report{Result: Banned})
			if i%2 == 0 {
				p.release(t, client, l.ID)
			}
			if i%10 == 0 {
				p.fleet.Delete(key("a"), "uid-a")
				p.fleet.Upsert(*proxy("a"))
			}
		}
		p.fleet.Retain("c", nil)
		// Nobody calls the store: this is the sweep's work alone.
		pass(50*time.Second + 10*time.Minute + sweepInterval)
		synctest.Wait()
		if left := p.leftovers(); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
}

func TestALongLeaseThatIsReleasedFreesItsMemoryEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(Options{CooldownWindow: time.Second}, proxy("a"))
		for range 100 {
			p.release(t, client, p.acquire(t, Request{TTL: 24 * time.Hour}).ID)
		}
		pass(time.Second)
		p.sweep()
		if p.turns.len() != 0 || len(p.records) != 0 {
			t.Errorf("%d turns, %d records left", p.turns.len(), len(p.records))
		}
	})
}
