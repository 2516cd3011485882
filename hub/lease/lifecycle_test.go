package lease

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

func TestALeaseReadsAsItsProxyIsNow(t *testing.T) {
	p := newPool(Options{}, proxy("a", limit(5)))
	l := p.acquire(t, Request{})
	read := func() Lease {
		t.Helper()
		got, err := p.Get(client, l.ID)
		if err != nil || got.ID != l.ID {
			t.Fatalf("%+v, %v", got, err)
		}
		return got
	}
	p.acquire(t, Request{})
	if got := read(); got.Active != 2 || got.Now != p.fleet.Get(key("a")) {
		t.Errorf("%+v", got)
	}
	p.fleet.SetVerdict(key("a"), p.fleet.Get(key("a")).Subject(), fleet.Verdict{Health: fleet.Unhealthy})
	if got := read(); got.Now == nil || got.Now.Offerable() {
		t.Errorf("unhealthy: %+v", got.Now)
	}
	moving := *p.fleet.Get(key("a"))
	moving.Host, moving.Port, moving.Provisioned = "", 0, false
	p.fleet.Upsert(moving)
	if got := read(); got.Proxy.Host != "10.0.0.1" || got.Now.Host != "" {
		t.Errorf("between two instances: %+v, %+v", got.Proxy, got.Now)
	}
	moved := *proxy("a")
	moved.Host, moved.Instance = "10.0.0.2", "another"
	p.fleet.Upsert(moved)
	if got := read(); got.Proxy.Host != "10.0.0.2" {
		t.Errorf("moved: %+v", got.Proxy)
	}
	// The client knows that address now, and means it; renewing alone would not tell.
	moved.Host, moved.Instance = "10.0.0.3", "a third"
	p.fleet.Upsert(moved)
	if got, err := p.Renew(client, l.ID, 0); err != nil || got.Proxy.Host != "10.0.0.3" {
		t.Errorf("renewed: %+v, %v", got.Proxy, err)
	}
	p.report(t, l.ID, Report{Result: Banned, Target: "x.example"})
	if _, rests := p.addresses[location{key("a"), "10.0.0.2", 3128}]; !rests || len(p.addresses) != 1 {
		t.Errorf("rests: %v", p.addresses)
	}
	p.fleet.Retain("c", nil)
	if got := read(); got.Now != nil || got.Proxy.Host != "10.0.0.3" || got.Active != 2 {
		t.Errorf("gone: %+v", got)
	}
}

func TestALeaseThatEndedIsToldFromOneThatNeverWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(Options{CooldownWindow: time.Minute}, proxy("a"))
		want := func(id string, want error) {
			t.Helper()
			if _, err := p.Get(client, id); !errors.Is(err, want) {
				t.Errorf("get: %v, want %v", err, want)
			}
			if _, err := p.Renew(client, id, time.Minute); !errors.Is(err, want) {
				t.Errorf("renew: %v, want %v", err, want)
			}
		}
		expired, returned := p.acquire(t, Request{TTL: time.Second}), p.acquire(t, Request{})
		p.release(t, client, returned.ID)
		want(returned.ID, ErrUnknownLease)
		want("never was", ErrUnknownLease)
		if _, err := p.Get("another", expired.ID); !errors.Is(err, ErrUnknownLease) {
			t.Errorf("another client's: %v", err)
		}
		if _, err := p.Renew("another", expired.ID, time.Hour); !errors.Is(err, ErrUnknownLease) {
			t.Errorf("another client's: %v", err)
		}
		pass(time.Second)
		want(expired.ID, ErrLeaseExpired)
		pass(time.Minute - 1)
		want(expired.ID, ErrLeaseExpired)
		pass(1)
		want(expired.ID, ErrUnknownLease)
	})
}

func TestRenewalsAreCountedFromNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(Options{MaxTTL: time.Hour}, proxy("a", limit(1)))
		l := p.acquire(t, Request{TTL: time.Minute})
		renew := func(ttl, lasts time.Duration) {
			t.Helper()
			for range 2 { // to do it again is no error
				got, err := p.Renew(client, l.ID, ttl)
				if err != nil || got.TTL != lasts || !got.ExpiresAt.Equal(time.Now().Add(lasts)) {
					t.Fatalf("%+v, %v", got, err)
				}
			}
			if none := p.refused(t, Request{}); none.RetryAfter != lasts {
				t.Errorf("to come again in %v, want %v", none.RetryAfter, lasts)
			}
		}
		pass(30 * time.Second)
		renew(time.Hour, time.Hour)
		pass(59 * time.Minute)
		renew(0, time.Hour)
		renew(10*time.Second, 10*time.Second)
		for _, ttl := range []time.Duration{-1, time.Hour + 1} {
			var invalid *InvalidError
			if _, err := p.Renew(client, l.ID, ttl); !errors.As(err, &invalid) || invalid.Field != "ttlSeconds" {
				t.Errorf("%v: %v", ttl, err)
			}
		}
		pass(10 * time.Second)
		p.acquire(t, Request{})
	})
}

func TestTheSameKeyIsTheSameLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(Options{}, proxy("a"), proxy("b", attr("region", "eu")))
		req := Request{Key: "k", Selector: map[string]string{"region": "eu"}, Target: "x.example", TTL: time.Hour}
		first := p.acquire(t, req)
		again := req
		again.Target = "https://X.example./" // is the same target
		if got := p.acquire(t, again); got.ID != first.ID || got.Active != 1 {
			t.Errorf("again: %+v", got)
		}
		for what, change := range map[string]func(*Request){
			"selector": func(r *Request) { r.Selector = nil },
			"cluster":  func(r *Request) { r.Cluster = "c" },
			"target":   func(r *Request) { r.Target = "" },
			"ttl":      func(r *Request) { r.TTL = time.Minute },
			"wait":     func(r *Request) { r.Wait = time.Second },
		} {
			other := req
			change(&other)
			if _, err := p.Acquire(t.Context(), client, other); !errors.Is(err, ErrIdempotencyConflict) {
				t.Errorf("another %s: %v", what, err)
			}
		}
		if l, err := p.Acquire(t.Context(), "another", req); err != nil || l.ID == first.ID {
			t.Errorf("another client: %+v, %v", l, err)
		}
		pass(keyLife - 1)
		if got := p.acquire(t, req); got.ID != first.ID {
			t.Error("forgotten early")
		}
		pass(1)
		if got := p.acquire(t, req); got.ID == first.ID {
			t.Error("remembered for longer than ten minutes")
		}
	})
}

func TestAKeyWhoseLeaseHasEndedIsGrantedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(Options{}, proxy("a", limit(1)))
		req := Request{Key: "k", TTL: 10 * time.Second}
		first := p.acquire(t, req)
		p.release(t, client, first.ID)
		second := p.acquire(t, req)
		pass(10 * time.Second)
		third := p.acquire(t, req)
		if second.ID == first.ID || third.ID == second.ID {
			t.Errorf("%s, %s, %s", first.ID, second.ID, third.ID)
		}
		if _, err := p.Renew(client, third.ID, time.Hour); err != nil {
			t.Fatal(err)
		}
		pass(keyLife - 10*time.Second) // since the first; the third came later
		if got := p.acquire(t, req); got.ID != third.ID {
			t.Error("forgotten with an earlier lease of the same key")
		}
		p.release(t, client, third.ID)
		if _, err := p.Acquire(t.Context(), client, Request{Key: "k"}); !errors.Is(err, ErrIdempotencyConflict) {
			t.Errorf("another request with a key that is still known: %v", err)
		}
	})
}

func TestARefusalIsNotRemembered(t *testing.T) {
	p := newPool(Options{}, proxy("a", limit(1)))
	l := p.acquire(t, Request{})
	p.refused(t, Request{Key: "k"})
	p.release(t, client, l.ID)
	p.acquire(t, Request{Key: "k", TTL: time.Minute}) // another request, too
}

func TestConcurrentDuplicatesShareOneLease(t *testing.T) {
	waiting(t, Options{}, func(t *testing.T, q *queue) {
		l := q.acquire(t, Request{})
		hangUp := q.come("1", Request{Key: "k", Wait: 40 * time.Second})
		pass(20 * time.Second)
		q.come("2", Request{Key: "k", Wait: 40 * time.Second})
		hangUp() // the other goes on, in the place of the first
		q.come("3", Request{})
		pass(30 * time.Second)
		q.come("4", Request{Key: "k", Wait: 40 * time.Second})
		q.release(t, client, l.ID)
		synctest.Wait()
		if q.leases["2"].ID == "" || q.leases["2"].ID != q.leases["4"].ID || q.active(key("a"), "uid-a") != 1 {
			t.Errorf("%+v, %+v", q.leases["2"], q.leases["4"])
		}
		q.wantLeft(1)
	}, proxy("a", limit(1)))
}

func TestAWaitOutlivesWhatItsKeyLedToBefore(t *testing.T) {
	waiting(t, Options{CooldownWindow: time.Second}, func(t *testing.T, q *queue) {
		req := Request{Key: "k", Wait: 20 * time.Second}
		q.release(t, client, q.acquire(t, req).ID)
		q.acquire(t, Request{TTL: time.Hour})
		pass(keyLife - 10*time.Second)
		q.come("w", req)
		pass(10 * time.Second) // the first use is forgotten
		q.wantLeft(1)
		q.come("sharing", req)
		q.wantLeft(1)
		pass(20 * time.Second)
		q.wantLeft(0)
		if n := len(q.keys.of); n != 0 {
			t.Errorf("%d keys left", n)
		}
	}, proxy("a", limit(1)))
}
