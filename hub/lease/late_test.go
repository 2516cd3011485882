package lease

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// late is a request that waits, and whose goroutine has yet to wake: on a busy machine much
// can happen before it does.
func (p pool) late(t *testing.T, req Request) *waiter {
	t.Helper()
	req.Wait = MaxWait
	req, err := p.check(req)
	if err != nil {
		t.Fatal(err)
	}
	q, err := newQuery(req.Cluster, req.Selector)
	if err != nil {
		t.Fatal(err)
	}
	_, w, err := p.Store.acquire(ask{client: client, req: req, query: q})
	if w == nil {
		t.Fatalf("it does not wait: %v", err)
	}
	return w
}

// hangsUp has the client of a late request be gone when it wakes.
func (p pool) hangsUp(t *testing.T, w *waiter) {
	t.Helper()
	ctx, hangUp := context.WithCancel(t.Context())
	hangUp()
	if _, err := p.wait(ctx, w, MaxWait); !errors.Is(err, context.Canceled) {
		t.Errorf("answered %v", err)
	}
}

func TestALeaseThatARetryHeardOfIsNotTakenBack(t *testing.T) {
	p := newPool(Options{}, proxy("a", limit(1)))
	held := p.acquire(t, Request{})
	w := p.late(t, Request{Key: "k"})
	p.release(t, client, held.ID)                           // grants
	retry := p.acquire(t, Request{Key: "k", Wait: MaxWait}) // is told
	p.hangsUp(t, w)
	if _, err := p.Get(client, retry.ID); err != nil {
		t.Errorf("the retry was granted it, and now: %v", err)
	}
	p.refused(t, Request{})
}

func TestALeaseIsForgottenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(Options{CooldownWindow: time.Second}, proxy("a", limit(1)), proxy("b", limit(1)))
		held := p.acquire(t, Request{TTL: time.Hour})
		p.acquire(t, Request{TTL: time.Hour})
		w := p.late(t, Request{TTL: time.Second})
		p.release(t, client, held.ID) // grants
		pass(3 * time.Second)         // it is forgotten before anybody wakes
		other := p.acquire(t, Request{TTL: 10 * time.Second})
		p.hangsUp(t, w)
		pass(10 * time.Second)
		if _, err := p.Get(client, other.ID); !errors.Is(err, ErrUnknownLease) && !errors.Is(err, ErrLeaseExpired) {
			t.Errorf("another lease does not end: %v", err)
		}
	})
}

func TestTakingALeaseBackLeavesTheKeyToWhoWaitsWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(Options{}, proxy("a", limit(1)))
		held := p.acquire(t, Request{})
		first := p.late(t, Request{Key: "k", TTL: time.Second})
		p.release(t, client, held.ID) // grants
		pass(time.Second)
		held = p.acquire(t, Request{})
		second := p.late(t, Request{Key: "k", TTL: time.Second})
		p.hangsUp(t, first)
		if third := p.late(t, Request{Key: "k", TTL: time.Second}); third != second {
			t.Error("the key is forgotten")
		}
		p.hangsUp(t, second)
		p.hangsUp(t, second) // the third
		p.release(t, client, held.ID)
		if n := len(p.lines.all) + p.lines.held + p.lines.waiting; n != 0 || p.active(key("a"), "uid-a") != 0 {
			t.Errorf("%d left, %d active", n, p.active(key("a"), "uid-a"))
		}
	})
}

func TestWhoLeadsIsAskedAtEveryGrant(t *testing.T) {
	leads := 1 << 30
	p := newPool(Options{Leading: func() bool { leads--; return leads >= 0 }}, proxy("a", limit(1)), proxy("b", limit(1)))
	one, two := p.acquire(t, Request{}), p.acquire(t, Request{})
	first, second := p.late(t, Request{}), p.late(t, Request{})
	p.mu.Lock()
	now := instant(time.Since(p.began))
	p.end(p.recordOf(one), now, released)
	p.end(p.recordOf(two), now, released)
	leads = 2 // over after the first grant
	p.serve(now)
	p.mu.Unlock()
	if first.record == nil || second.record != nil || !errors.Is(second.err, ErrNotLeading) {
		t.Errorf("first %v, second %v, %v", first.record, second.record, second.err)
	}
	leads = 1 // over once the best has been found
	if l, err := p.Acquire(t.Context(), client, Request{}); !errors.Is(err, ErrNotLeading) {
		t.Errorf("granted %v, %v", l.ID, err)
	}
}

func TestAPanicGivesTheLockBack(t *testing.T) {
	broken := false
	p := newPool(Options{Leading: func() bool {
		if broken {
			panic("boom")
		}
		return true
	}})
	p.late(t, Request{})
	broken = true
	func() {
		defer func() { _ = recover() }()
		p.Cooldowns()
	}()
	if !p.mu.TryLock() {
		t.Fatal("the store is locked for ever")
	}
	p.mu.Unlock()
}

func TestALateWaiterIsToldWhereItsProxyIs(t *testing.T) {
	p := newPool(Options{}, proxy("a", limit(1)))
	held := p.acquire(t, Request{})
	w := p.late(t, Request{})
	p.release(t, client, held.ID)
	p.fleet.Upsert(*proxy("a", limit(1), func(p *fleet.Proxy) { p.Host = "10.9.9.9" }))
	l, err := p.wait(t.Context(), w, MaxWait)
	if err != nil {
		t.Fatal(err)
	}
	p.report(t, l.ID, Report{Result: Banned, Target: "x.example"})
	if _, rests := p.addresses[location{key("a"), l.Proxy.Host, 3128}]; !rests || l.Proxy.Host != "10.9.9.9" {
		t.Errorf("told %s, rests %v", l.Proxy.Host, p.addresses)
	}
}

// TestWhoSharesAWaitSharesTheNextToo has the first of three be quick to give the lease back.
func TestWhoSharesAWaitSharesTheNextToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(Options{}, proxy("a", limit(2)))
		one, two := p.acquire(t, Request{}), p.acquire(t, Request{})
		req := Request{Key: "k"}
		w := p.late(t, req)
		for range 2 {
			if p.late(t, req) != w {
				t.Fatal("they do not share")
			}
		}
		p.release(t, client, one.ID)
		p.release(t, client, two.ID)
		quick, _ := p.wait(t.Context(), w, MaxWait)
		p.release(t, client, quick.ID)
		second, err := p.wait(t.Context(), w, MaxWait)
		third, err2 := p.wait(t.Context(), w, MaxWait)
		if err != nil || err2 != nil || second.ID != third.ID || p.active(key("a"), "uid-a") != 1 {
			t.Errorf("%v, %v; %v, %v", second.ID, err, third.ID, err2)
		}
	})
}

func TestALateWaiterWaitsOnWhenItsLeaseIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(Options{}, proxy("a", limit(1)))
		go func() { _ = p.Run(t.Context()) }()
		held := p.acquire(t, Request{TTL: time.Hour})
		w := p.late(t, Request{Key: "k"})
		p.late(t, Request{Key: "k"})
		p.release(t, client, held.ID)
		quick, _ := p.wait(t.Context(), w, MaxWait)
		p.release(t, client, quick.ID)
		p.acquire(t, Request{TTL: time.Second}) // somebody else is quicker
		start := time.Now()
		if l, err := p.wait(t.Context(), w, MaxWait); err != nil || time.Since(start) != time.Second {
			t.Errorf("after %v: %v, %v", time.Since(start), l.ID, err)
		}
		if p.lines.held != 0 || p.lines.waiting != 0 {
			t.Errorf("%d held, %d waiting", p.lines.held, p.lines.waiting)
		}
	})
}

func TestAHintStaysWhenAViewShrinksToOneBlock(t *testing.T) {
	p := newPool(Options{})
	name := func(i int) string { return fmt.Sprintf("p%04d", i) }
	for i := range blockSize + 1 {
		p.fleet.Upsert(*proxy(name(i), func(p *fleet.Proxy) { p.Host = fmt.Sprintf("10.1.%d.%d", i/250, i%250) }))
	}
	for range blockSize + 1 {
		p.report(t, p.acquire(t, Request{}).ID, Report{Result: Banned, Target: "x.example"})
	}
	if none := p.refused(t, Request{Target: "x.example"}); none.InCooldown != blockSize+1 || none.RetryAfter <= 0 {
		t.Errorf("%+v", none)
	}
	p.fleet.Delete(key(name(blockSize)), "uid-"+name(blockSize))
	if none := p.refused(t, Request{Target: "x.example"}); none.InCooldown != blockSize || none.RetryAfter <= 0 {
		t.Errorf("one less: %+v", none)
	}
}
