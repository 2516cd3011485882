package lease

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

func TestACooldownKeepsTheProxyFromItsTargetAlone(t *testing.T) {
	for _, tc := range []struct {
		name           string
		lease, report  string // targets
		result         Result
		blocks, passes []string
	}{
		{"the report's target", "a.example", "https://B.example/x", Banned, []string{"b.example", "B.EXAMPLE."}, []string{"", "a.example"}},
		{"falls back to the lease's", "a.example", "", RateLimited, []string{"http://a.example:80/"}, []string{"", "b.example"}},
		{"falls back to every target", "", "", Banned, []string{"", "a.example", "b.example"}, nil},
		{"ok starts none", "a.example", "", OK, nil, []string{"", "a.example"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPool(Options{}, proxy("a"))
				l := p.acquire(t, Request{Target: tc.lease})
				p.report(t, l.ID, Report{Result: tc.result, Target: tc.report})
				for _, target := range tc.blocks {
					want := NoMatchError{Considered: 1, InCooldown: 1, RetryAfter: 10 * time.Minute}
					if none := p.refused(t, Request{Target: target}); none != want {
						t.Errorf("%q: %+v", target, none)
					}
				}
				for _, target := range tc.passes {
					p.acquire(t, Request{Target: target})
				}
				pass(10 * time.Minute)
				for _, target := range tc.blocks {
					p.acquire(t, Request{Target: target})
				}
				if p.Cooldowns() != 0 {
					t.Errorf("%d cooldowns left", p.Cooldowns())
				}
			})
		})
	}
}

func TestAProxyRestsUntilItsTargetAndGlobalCooldownsHaveEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(Options{}, proxy("a"))
		global, site := p.acquire(t, Request{}), p.acquire(t, Request{Target: "x.example"})
		p.report(t, global.ID, Report{Result: Banned, Cooldown: 30 * time.Second})
		p.report(t, site.ID, Report{Result: Banned, Cooldown: 20 * time.Second})
		if none := p.refused(t, Request{Target: "x.example"}); none.RetryAfter != 30*time.Second {
			t.Errorf("%+v", none)
		}
		if p.Cooldowns() != 2 {
			t.Errorf("%d cooldowns", p.Cooldowns())
		}
	})
}

func TestTheSameReportTwiceStartsOneCooldown(t *testing.T) {
	for _, tc := range []struct {
		name  string
		after time.Duration
		again Report
		want  time.Duration // until it is free, after the second report
	}{
		{"at once", 0, Report{Result: Banned, Cooldown: time.Minute}, time.Minute},
		{"within two seconds", 2*time.Second - 1, Report{Result: Banned, Cooldown: time.Minute}, time.Minute - 2*time.Second + 1},
		{"spelled otherwise", time.Second, Report{Result: Banned, Cooldown: time.Minute, Target: "X.example."}, time.Minute - time.Second},
		{"later it is another", 2 * time.Second, Report{Result: Banned, Cooldown: time.Minute}, time.Minute},
		{"another result is another", time.Second, Report{Result: RateLimited, Cooldown: time.Minute}, time.Minute},
		{"a shorter one shortens nothing", time.Second, Report{Result: RateLimited, Cooldown: time.Second}, time.Minute - time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPool(Options{}, proxy("a"))
				l := p.acquire(t, Request{Target: "x.example"})
				p.report(t, l.ID, Report{Result: Banned, Cooldown: time.Minute})
				pass(tc.after)
				p.report(t, l.ID, tc.again)
				none := p.refused(t, Request{Target: "x.example"})
				if none.RetryAfter != tc.want || p.Cooldowns() != 1 {
					t.Errorf("free in %v, %d cooldowns; want %v and 1", none.RetryAfter, p.Cooldowns(), tc.want)
				}
			})
		})
	}
}

func TestACooldownBelongsToTheAddress(t *testing.T) {
	at := func(uid, instance, host string) fleet.Proxy {
		p := proxy("a")
		p.UID, p.Instance, p.Host = uid, instance, host
		return *p
	}
	synctest.Test(t, func(t *testing.T) {
		p := newPool(Options{})
		show := func(px fleet.Proxy) {
			p.fleet.Upsert(px)
			p.fleet.SetVerdict(px.Key, px.Subject(), fleet.Verdict{Health: fleet.Healthy})
		}
		show(at("1", "i1", "10.0.0.1"))
		l := p.acquire(t, Request{})
		p.report(t, l.ID, Report{Result: Banned, Cooldown: time.Hour})
		for _, again := range []func(){
			func() { p.fleet.Retain("c", nil); show(at("1", "i1", "10.0.0.1")) }, // re-registered
			func() { show(at("1", "i2", "10.0.0.1")) },                           // another instance, same address
			func() { show(at("2", "i2", "10.0.0.1")) },                           // recreated
		} {
			again()
			if none := p.refused(t, Request{}); none.InCooldown != 1 {
				t.Errorf("the cooldown was lost: %+v", none)
			}
		}
		show(at("1", "i3", "10.0.0.2"))
		fresh := p.acquire(t, Request{}) // a new address starts clean
		p.report(t, l.ID, Report{Result: RateLimited, Cooldown: time.Hour})
		p.acquire(t, Request{}) // an old lease's report is about the old address
		p.report(t, fresh.ID, Report{Result: Banned})
		p.refused(t, Request{})
		show(at("1", "i1", "10.0.0.1"))
		p.refused(t, Request{}) // the old address back: still banned
	})
}

func TestReportsThatMakeNoSenseAreRefused(t *testing.T) {
	p := newPool(Options{}, proxy("a"))
	l := p.acquire(t, Request{})
	for _, result := range []Result{"", "OK", "blocked"} {
		if err := p.Report(client, l.ID, Report{Result: result}); !errors.Is(err, ErrInvalidResult) {
			t.Errorf("%q: %v", result, err)
		}
	}
	for field, r := range map[string]Report{
		"target":          {Result: Banned, Target: "a b"},
		"cooldownSeconds": {Result: Banned, Cooldown: MaxCooldown + 1},
	} {
		var invalid *InvalidError
		if err := p.Report(client, l.ID, r); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if err := p.Report(client, "unknown", Report{Result: OK}); !errors.Is(err, ErrUnknownLease) {
		t.Errorf("unknown lease: %v", err)
	}
	if p.Cooldowns() != 0 {
		t.Error("a refused report started a cooldown")
	}
}

func TestManyReportsAreNotRememberedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(Options{}, proxy("a"))
		l := p.acquire(t, Request{TTL: time.Hour})
		for i := range 500 {
			p.report(t, l.ID, Report{Result: Banned, Target: fmt.Sprint("t", i)})
			pass(100 * time.Millisecond)
		}
		if n := len(p.notes.of); n > 40 { // four seconds' worth
			t.Errorf("%d reports remembered", n)
		}
	})
}

func TestAProxyRestsFromABoundedNumberOfTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(Options{}, proxy("a", limit(1)))
		l := p.acquire(t, Request{TTL: time.Hour})
		p.report(t, l.ID, Report{Result: Banned, Target: "soon.example", Cooldown: time.Minute})
		for i := range maxRests {
			p.report(t, l.ID, Report{Result: Banned, Target: fmt.Sprint("t", i), Cooldown: time.Hour})
		}
		p.report(t, l.ID, Report{Result: Banned, Target: "t0", Cooldown: 2 * time.Hour}) // is not one more
		p.report(t, l.ID, Report{Result: Banned, Target: "short.example", Cooldown: time.Second})
		if n := p.Cooldowns(); n != maxRests {
			t.Errorf("%d cooldowns, want %d", n, maxRests)
		}
		p.release(t, client, l.ID)
		for i := range maxRests {
			p.refused(t, Request{Target: fmt.Sprint("t", i)})
		}
		p.release(t, client, p.acquire(t, Request{Target: "short.example"}).ID) // the first to end, though it is new
		p.acquire(t, Request{Target: "soon.example"})
	})
}

func TestABanFromEverythingIsNoTargetOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(Options{}, proxy("a"))
		l := p.acquire(t, Request{TTL: time.Hour})
		p.report(t, l.ID, Report{Result: Banned, Cooldown: time.Minute})
		for i := range maxRests + 10 {
			p.report(t, l.ID, Report{Result: Banned, Target: fmt.Sprint("t", i), Cooldown: time.Hour})
		}
		if none := p.refused(t, Request{Target: "other.example"}); none.RetryAfter != time.Minute {
			t.Errorf("%+v", none)
		}
		pass(time.Minute)
		p.acquire(t, Request{Target: "other.example"})
		pass(time.Hour)
		if n := p.Cooldowns(); n != 0 || len(p.addresses) != 0 {
			t.Errorf("%d cooldowns at %d addresses", n, len(p.addresses))
		}
	})
}
