package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// queue is requests that wait, and the order in which they were granted.
type queue struct {
	pool
	t       *testing.T
	writing sync.Mutex // of what follows; it is read when all goroutines wait
	granted []string
	leases  map[string]Lease
	errs    map[string]error
}

// waiting runs a story about waiting, in a bubble of time.
func waiting(t *testing.T, options Options, story func(t *testing.T, q *queue), proxies ...*fleet.Proxy) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{pool: newPool(options, proxies...), t: t, leases: map[string]Lease{}, errs: map[string]error{}}
		go func() { _ = q.Run(t.Context()) }()
		story(t, q)
	})
}

// come has a request arrive. It is called name.
func (q *queue) come(name string, req Request) (hangUp context.CancelFunc) {
	ctx, hangUp := context.WithCancel(q.t.Context())
	if req.Wait == 0 {
		req.Wait = MaxWait
	}
	go func() {
		l, err := q.Acquire(ctx, client, req)
		q.writing.Lock()
		defer q.writing.Unlock()
		q.leases[name], q.errs[name] = l, err
		if err == nil {
			q.granted = append(q.granted, name)
		}
	}()
	synctest.Wait()
	return hangUp
}

func (q *queue) wantGranted(names ...string) {
	q.t.Helper()
	synctest.Wait()
	if got, want := strings.Join(q.granted, " "), strings.Join(names, " "); got != want {
		q.t.Errorf("granted %q, want %q", got, want)
	}
}

func (q *queue) wantLeft(waiters int) {
	q.t.Helper()
	synctest.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.lines.waiting != waiters || waiters == 0 && len(q.lines.of) != 0 {
		q.t.Errorf("%d wait in %d lines, want %d", q.lines.waiting, len(q.lines.of), waiters)
	}
}

func TestWhoComesFirstIsServedFirst(t *testing.T) {
	waiting(t, Options{}, func(t *testing.T, q *queue) {
		held := q.acquire(t, Request{})
		for i := range 5 {
			q.come(fmt.Sprint(i), Request{})
		}
		for i := range 5 {
			q.release(t, client, held.ID)
			synctest.Wait()
			if len(q.granted) != i+1 {
				t.Fatalf("one release served %d", len(q.granted)-i)
			}
			held = q.leases[fmt.Sprint(i)]
		}
		q.wantGranted("0", "1", "2", "3", "4")
		q.wantLeft(0)
	}, proxy("a", limit(1)))
}

func TestAWaiterIsServedWhateverMakesAProxyFree(t *testing.T) {
	for name, story := range map[string]func(t *testing.T, q *queue){
		"a release": func(t *testing.T, q *queue) {
			l := q.acquire(t, Request{})
			q.come("w", Request{})
			q.release(t, client, l.ID)
		},
		"an expiry": func(t *testing.T, q *queue) {
			q.acquire(t, Request{TTL: 20 * time.Second})
			q.come("w", Request{})
			pass(20 * time.Second)
		},
		"an expiry that a renewal brought forward": func(t *testing.T, q *queue) {
			l := q.acquire(t, Request{TTL: time.Hour})
			q.come("w", Request{})
			if _, err := q.Renew(client, l.ID, time.Second); err != nil {
				t.Error(err)
			}
			pass(time.Second)
		},
		"a cooldown that ends": func(t *testing.T, q *queue) {
			l := q.acquire(t, Request{})
			q.report(t, l.ID, Report{Result: Banned, Target: "x.example", Cooldown: 20 * time.Second})
			q.release(t, client, l.ID)
			q.come("w", Request{Target: "x.example"})
			pass(20 * time.Second)
		},
		"a cooldown from everything that ends": func(t *testing.T, q *queue) {
			l := q.acquire(t, Request{})
			q.report(t, l.ID, Report{Result: Banned, Cooldown: 20 * time.Second})
			q.release(t, client, l.ID)
			q.come("w", Request{Target: "x.example"})
			pass(20 * time.Second)
		},
		"a probe that passes": func(_ *testing.T, q *queue) {
			about := q.fleet.Get(key("a")).Subject()
			q.fleet.SetVerdict(key("a"), about, fleet.Verdict{Health: fleet.Unhealthy})
			q.come("w", Request{})
			q.fleet.SetVerdict(key("a"), about, fleet.Verdict{Health: fleet.Healthy})
		},
		"a higher limit": func(t *testing.T, q *queue) {
			q.acquire(t, Request{})
			q.come("w", Request{})
			q.fleet.Upsert(*proxy("a", limit(2)))
		},
		"a new Proxy": func(t *testing.T, q *queue) {
			q.acquire(t, Request{})
			q.come("w", Request{})
			q.fleet.Upsert(*proxy("b"))
		},
		"an attribute": func(_ *testing.T, q *queue) {
			q.come("w", Request{Selector: map[string]string{"region": "eu"}})
			q.fleet.Upsert(*proxy("a", limit(1), attr("region", "eu")))
		},
		"a new address, where nothing rests": func(t *testing.T, q *queue) {
			l := q.acquire(t, Request{})
			q.report(t, l.ID, Report{Result: Banned, Target: "x.example"})
			q.release(t, client, l.ID)
			q.come("w", Request{Target: "x.example"})
			moved := proxy("a", limit(1))
			moved.Host = "10.0.0.2"
			q.fleet.Upsert(*moved)
			if p := q.fleet.Get(key("a")); !p.Offerable() {
				q.fleet.SetVerdict(key("a"), p.Subject(), fleet.Verdict{Health: fleet.Healthy})
			}
		},
		"a spoke that is registered again": func(_ *testing.T, q *queue) {
			q.fleet.Retain("c", nil)
			q.come("w", Request{})
			q.fleet.Upsert(*proxy("a", limit(1)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			waiting(t, Options{}, func(t *testing.T, q *queue) {
				story(t, q)
				q.wantGranted("w")
				q.wantLeft(0)
			}, proxy("a", limit(1)))
		})
	}
}

func TestOneWhomItDoesNotFitHoldsUpNobody(t *testing.T) {
	waiting(t, Options{}, func(t *testing.T, q *queue) {
		l := q.acquire(t, Request{})
		q.report(t, l.ID, Report{Result: Banned, Target: "x.example"})
		q.come("other attributes", Request{Selector: map[string]string{"region": "us"}})
		q.come("other cluster", Request{Cluster: "elsewhere"})
		q.come("resting", Request{Target: "x.example"})
		q.come("fits", Request{Target: "y.example"})
		q.come("fits too", Request{})
		q.release(t, client, l.ID)
		q.wantGranted("fits")
		q.wantLeft(4)
	}, proxy("a", limit(1)))
}

func TestWhatIsFreedAtOnceIsSharedOutInOrder(t *testing.T) {
	for fits := 1; fits < 5; fits++ {
		var proxies []*fleet.Proxy // the first the fastest
		for i := range 5 {
			p := proxy(fmt.Sprint("p", i), limit(1), latency(time.Duration(i+1)*time.Millisecond))
			if i == fits {
				p.Attributes = map[string]string{"region": "eu"}
			}
			proxies = append(proxies, p)
		}
		waiting(t, Options{}, func(t *testing.T, q *queue) {
			for range proxies {
				q.acquire(t, Request{TTL: 10 * time.Second})
			}
			q.come("w0", Request{})
			q.come("picky", Request{Selector: map[string]string{"region": "eu"}})
			for i := 1; i < 5; i++ {
				q.come(fmt.Sprint("w", i), Request{})
			}
			pass(10 * time.Second)
			q.wantLeft(1)
			// Nobody takes what the picky one waits for who came after it.
			left := []string{"p0", "p1", "p2", "p3", "p4"}
			want := map[string]string{"picky": left[fits]}
			for i, name := range slices.Delete(left, fits, fits+1) {
				want[fmt.Sprint("w", i)] = name
			}
			for name, l := range q.leases {
				if l.Proxy != nil && l.Proxy.Name != want[name] {
					t.Errorf("of p%d: %s has %s, want %s", fits, name, l.Proxy.Name, want[name])
				}
			}
		}, proxies...)
	}
}

func TestAClientThatHangsUpLeavesNothing(t *testing.T) {
	waiting(t, Options{CooldownWindow: time.Second}, func(t *testing.T, q *queue) {
		l := q.acquire(t, Request{})
		hangUp := q.come("gone", Request{Key: "k"})
		q.come("next", Request{})
		hangUp()
		synctest.Wait()
		if err := q.errs["gone"]; !errors.Is(err, context.Canceled) {
			t.Errorf("answered %v", err)
		}
		q.release(t, client, l.ID)
		q.wantGranted("next")
		q.wantLeft(0)
		if n := len(q.keys.of); n != 0 {
			t.Errorf("%d keys left", n)
		}
		gone, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("gone before it began"))
		if _, err := q.Acquire(gone, client, Request{}); err == nil || err.Error() != "gone before it began" {
			t.Errorf("answered %v", err)
		}
	}, proxy("a", limit(1)))
}

// TestAGrantThatNobodyHearsOfIsTakenBack has the grant and the hang-up meet.
func TestAGrantThatNobodyHearsOfIsTakenBack(t *testing.T) {
	waiting(t, Options{}, func(t *testing.T, q *queue) {
		l := q.acquire(t, Request{})
		hangUp := q.come("gone", Request{Key: "k"})
		q.mu.Lock() // the waiter cannot wake
		hangUp()
		now := instant(time.Since(q.began))
		q.end(q.recordOf(l), now, released)
		q.leave(now) // grants
		synctest.Wait()
		if left := q.active(key("a"), "uid-a"); left != 0 || len(q.records) != 1 || len(q.keys.of) != 0 {
			t.Errorf("%d active, %d records, %d keys", left, len(q.records), len(q.keys.of))
		}
	}, proxy("a", limit(1)))
}

// TestAGrantThatOneOfTwoHearsOfStays is the same with another who shares it.
func TestAGrantThatOneOfTwoHearsOfStays(t *testing.T) {
	waiting(t, Options{}, func(t *testing.T, q *queue) {
		l := q.acquire(t, Request{})
		hangUp := q.come("gone", Request{Key: "k"})
		q.come("stays", Request{Key: "k"})
		q.mu.Lock()
		hangUp()
		now := instant(time.Since(q.began))
		q.end(q.recordOf(l), now, released)
		q.leave(now)
		synctest.Wait()
		if got := q.leases["stays"]; got.ID == "" || q.errs["gone"] == nil || q.active(key("a"), "uid-a") != 1 {
			t.Errorf("%+v; %v", got, q.errs)
		}
		if again := q.acquire(t, Request{Key: "k", Wait: MaxWait}); again.ID != q.leases["stays"].ID {
			t.Error("the key is forgotten")
		}
	}, proxy("a", limit(1)))
}

func TestAWaitEndsWithTheCountsOfItsEnd(t *testing.T) {
	waiting(t, Options{}, func(t *testing.T, q *queue) {
		q.acquire(t, Request{TTL: time.Hour})
		q.come("w", Request{Wait: 30 * time.Second})
		pass(30*time.Second - 1)
		q.wantLeft(1)
		pass(1)
		q.wantLeft(0)
		var none *NoMatchError
		if !errors.As(q.errs["w"], &none) || *none != (NoMatchError{Considered: 1, AtCapacity: 1, RetryAfter: time.Hour - 30*time.Second}) {
			t.Errorf("%+v", q.errs["w"])
		}
	}, proxy("a", limit(1)))
}

func TestMoreThanMayWaitAreToldSo(t *testing.T) {
	waiting(t, Options{MaxWaiters: 2}, func(t *testing.T, q *queue) {
		l := q.acquire(t, Request{})
		hangUp := q.come("1", Request{})
		q.come("2", Request{Key: "k"})
		if _, err := q.Acquire(t.Context(), client, Request{Wait: time.Second}); !errors.Is(err, ErrTooManyWaiters) {
			t.Errorf("a third: %v", err)
		}
		q.refused(t, Request{}) // who does not wait is told the counts
		if _, err := q.Acquire(t.Context(), client, Request{Wait: MaxWait, Key: "k"}); !errors.Is(err, ErrTooManyWaiters) {
			t.Errorf("one that shares: %v", err)
		}
		hangUp()
		synctest.Wait()
		q.come("sharing", Request{Key: "k"})
		q.wantLeft(1)
		q.release(t, client, l.ID)
		synctest.Wait()
		if q.leases["2"].ID == "" || q.leases["2"].ID != q.leases["sharing"].ID {
			t.Errorf("%v, %v", q.leases["2"], q.leases["sharing"])
		}
	}, proxy("a", limit(1)))
}

func TestLongerWaitsThanAllowedAreRefused(t *testing.T) {
	p := newPool(Options{}, proxy("a"))
	for _, wait := range []time.Duration{-1, MaxWait + 1} {
		var invalid *InvalidError
		if _, err := p.Acquire(t.Context(), client, Request{Wait: wait}); !errors.As(err, &invalid) || invalid.Field != "waitSeconds" {
			t.Errorf("%v: %v", wait, err)
		}
	}
}

func TestWaitersAreToldWhenTheHubLeadsNoMore(t *testing.T) {
	var leading atomic.Bool
	leading.Store(true)
	waiting(t, Options{Leading: leading.Load}, func(t *testing.T, q *queue) {
		l := q.acquire(t, Request{})
		q.come("w", Request{Key: "k"})
		leading.Store(false)
		pass(sweepInterval) // nobody calls
		q.wantGranted()
		q.wantLeft(0)
		if err := q.errs["w"]; !errors.Is(err, ErrNotLeading) {
			t.Errorf("%v", err)
		}
		if err := q.Release(client, l.ID); !errors.Is(err, ErrNotLeading) {
			t.Errorf("release: %v", err)
		}
		leading.Store(true)
		if n := q.active(key("a"), "uid-a"); n != 1 {
			t.Errorf("%d active", n)
		}
	}, proxy("a", limit(1)))
}
