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

// TestManyWhoWaitForManyAreServedWithoutViews has more selectors wait than there can be
// views of, over a fleet that recovers at once.
func TestManyWhoWaitForManyAreServedWithoutViews(t *testing.T) {
	p := newPool(Options{}, proxy("a", limit(1), health(fleet.Unhealthy)))
	attributes := map[string]string{}
	for i := range 3 * maxViews {
		attributes[fmt.Sprint("k", i)] = "v"
	}
	p.fleet.Upsert(*proxy("all", health(fleet.Unhealthy), func(p *fleet.Proxy) { p.Attributes = attributes }))
	var all []*waiter
	for i := range 3 * maxViews {
		all = append(all, p.late(t, Request{Selector: map[string]string{fmt.Sprint("k", i): "v"}}))
	}
	searches := p.views.searches
	p.fleet.SetVerdict(key("all"), p.fleet.Get(key("all")).Subject(), fleet.Verdict{Health: fleet.Healthy})
	for i, w := range all {
		if w.record == nil {
			t.Fatalf("%d of %d were served", i, len(all))
		}
	}
	if n := p.views.searches - searches; n != 0 {
		t.Errorf("%d searches under the fleet's lock", n)
	}
}

func TestAFewSelectorsTooManyAreNotAllMadeAnewEachTime(t *testing.T) {
	p := newPool(Options{})
	for i := range 3000 {
		attributes := map[string]string{}
		for k := range 40 {
			attributes[fmt.Sprint("k", k)] = "v"
		}
		p.fleet.Upsert(*proxy(fmt.Sprintf("p%04d", i), func(p *fleet.Proxy) { p.Attributes = attributes }))
	}
	ask := func(k int) *view {
		p.acquire(t, Request{Selector: map[string]string{fmt.Sprint("k", k): "v"}})
		q, _ := newQuery("", map[string]string{fmt.Sprint("k", k): "v"})
		return p.views.of[q.text]
	}
	const many = 30 // of which some twenty have room
	var before, kept int
	views := map[int]*view{}
	for k := range many {
		views[k] = ask(k)
	}
	for k := range many {
		if views[k] != nil {
			before++
		}
	}
	for range 3 {
		for k := range many {
			if v := ask(k); v != nil && v == views[k] {
				kept++
			}
		}
	}
	if before < 10 || before == many || kept != 3*before {
		t.Errorf("%d views, of which %d were found in three rounds", before, kept)
	}
	for range 3 { // one that is asked all the time gets its view in the end
		ask(many)
	}
	if ask(many) == nil {
		t.Error("a selector that is asked again and again has no view")
	}
}
