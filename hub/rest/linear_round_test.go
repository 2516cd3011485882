package rest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/lease"
)

// tick is when half the crawlers of a round do something, each time. A second is a multiple
// of it, so that much ends in the very moment in which it is asked for.
const tick = 50 * time.Millisecond

// round records what happens on a server of its own.
type round struct {
	api   *api
	start time.Time

	mu     sync.Mutex
	events history
	ids    []string // of leases, in the order in which they became known
}

func newRound(t *testing.T) *round {
	a := newAPIOf(t, lease.Options{CooldownWindow: window}, nil, pool[:]...)
	return &round{api: a, start: time.Now()}
}

func (r *round) now() time.Duration { return time.Since(r.start) }

func (r *round) record(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	if e.what == acquires && e.status == http.StatusCreated && !slices.Contains(r.ids, e.id) {
		r.ids = append(r.ids, e.id)
	}
}

// crawler is one client, with a connection of its own.
type crawler struct {
	*round
	who    int
	rand   *rand.Rand
	client http.Client
	last   stopwatch
}

// stopwatch notes when a request was sent and when its answer began to come: to read that
// is not the server's time.
type stopwatch struct {
	http.Transport
	*round
	from, to time.Duration
}

func (s *stopwatch) RoundTrip(r *http.Request) (*http.Response, error) {
	s.from = s.now()
	defer func() { s.to = s.now() }()
	return s.Transport.RoundTrip(r)
}

func (r *round) crawler(who int, seed uint64) *crawler {
	c := &crawler{round: r, who: who, rand: rand.New(rand.NewPCG(seed, uint64(who)))}
	c.last.round = r
	c.client = http.Client{Transport: &c.last, Timeout: 30 * time.Second}
	r.api.t.Cleanup(c.last.CloseIdleConnections)
	return c
}

// do makes a call and records it.
func (c *crawler) do(e event) event {
	if err := c.call(&e); err != nil {
		c.api.t.Errorf("%s of %q: %v", e.what, e.id, err)
	}
	if e.what == acquires {
		e.id = e.told.ID
	}
	if e.status == http.StatusConflict && e.key == 0 {
		// A refusal is not to come before the wait is over. Of those that share a key one
		// may: the others may have ended already what they were granted together.
		if e.from += seconds(e.ask.Wait); e.from > e.to {
			c.api.t.Errorf("refused early: %v", &e)
		}
	}
	c.record(e)
	return e
}

func (c *crawler) call(e *event) error {
	method, path := http.MethodPost, "/v1/leases"
	switch e.what {
	case gets:
		method, path = http.MethodGet, path+"/"+e.id
	case releases:
		method, path = http.MethodDelete, path+"/"+e.id
	case renews, reports:
		path += "/" + e.id + "/" + string(e.what)
	}
	var body io.Reader
	if method == http.MethodPost {
		text, err := json.Marshal(e.ask)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	r, err := http.NewRequest(method, "http://"+c.api.addr+path, body)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	if e.key != 0 {
		r.Header.Set("Idempotency-Key", fmt.Sprint(e.key))
	}
	resp, err := c.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	e.from, e.to, e.status = c.last.from, c.last.to, resp.StatusCode
	if e.status == http.StatusNoContent {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(&e.told)
}

// flip gives a Proxy another verdict.
func (c *crawler) flip(proxy int, to health) {
	p := c.api.fleet.Get(pool[proxy].Key)
	verdict := fleet.Verdict{Health: fleet.Healthy, Latency: time.Duration(to) * time.Millisecond}
	if to == unhealthy {
		verdict = fleet.Verdict{Health: fleet.Unhealthy}
	}
	from := c.now()
	if !c.api.fleet.SetVerdict(p.Key, p.Subject(), verdict) {
		c.api.t.Errorf("the verdict on %s was not taken", p.Key)
	}
	c.record(event{what: flips, from: from, to: c.now(), proxy: proxy, health: to})
}

// judge is what the health engine does.
func (c *crawler) judge() {
	c.flip(c.rand.IntN(len(pool)), oneOf(c, unhealthy, 0, 10, 20, 20, 30))
}

// act does what a crawler might.
func (c *crawler) act() {
	switch n := c.rand.IntN(100); {
	case n < 36:
		c.do(c.wish())
	case n < 52:
		c.do(event{what: gets, id: c.some()})
	case n < 64:
		c.do(event{what: renews, id: c.some(), ask: ask{TTL: c.rand.IntN(3)}})
	case n < 86:
		c.do(event{what: releases, id: c.spare()})
	default:
		report := ask{Result: oneOf(c, "ok", "rate_limited", "banned"), Target: oneOf(c, sites[:]...), Cooldown: c.rand.IntN(3)}
		e := event{what: reports, id: c.some(), ask: report}
		c.do(e)
		if c.rand.IntN(2) == 0 {
			c.next(1)
			c.do(e)
		}
	}
}

func oneOf[T any](c *crawler, of ...T) T { return of[c.rand.IntN(len(of))] }

// wish is an acquire. What is asked with one Idempotency-Key is always the same.
func (c *crawler) wish() event {
	e := event{what: acquires, key: oneOf(c, 0, 0, 0, 0, 0, 0, 1, 2)}
	switch e.key {
	case 0:
		e.ask = ask{TTL: oneOf(c, 1, 1, 1, 2, 2, 20), Target: oneOf(c, sites[:]...), Cluster: oneOf(c, "", "", "", "eu", "us")}
		e.ask.Tier = oneOf(c, nil, nil, nil, &tier{"fast"}, &tier{"slow"})
	case 1:
		e.ask = ask{TTL: 1}
	case 2:
		e.ask = ask{TTL: 2, Target: sites[1], Cluster: "eu"}
	}
	return e
}

// wait is an acquire that waits, and the release of what it was granted. That must not end
// before the call has woken up: it would be granted another one then, and nobody would
// have heard of the first.
func (c *crawler) wait() {
	e := event{what: acquires, key: oneOf(c, 0, 3, 3), ask: ask{TTL: 20, Wait: 1}}
	if e.key == 0 {
		e.ask.Target, e.ask.Tier = oneOf(c, sites[:]...), oneOf(c, nil, &tier{"fast"})
		e.ask.Cluster = oneOf(c, "", "eu")
	}
	e = c.do(e)
	c.next(1 + c.rand.IntN(16))
	if e.status == http.StatusCreated {
		c.do(event{what: releases, id: e.id})
	}
}

// some is one of the last leases, anybody's, or none.
func (c *crawler) some() string {
	n := c.known() - 1 - c.rand.IntN(oneOf(c, 4, 24))
	if n > 0 && oneOf(c, true, false) {
		n -= n % kept
	}
	return c.lease(n)
}

// kept says that of so many leases one is not released, so that it has the time to expire.
const kept = 4

// spare is one of the last leases that may be released, or none.
func (c *crawler) spare() string {
	n := c.known() - 1 - c.rand.IntN(8)
	if n%kept == 0 {
		n--
	}
	return c.lease(n)
}

func (r *round) known() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ids)
}

func (r *round) lease(n int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n < 0 {
		return "NONE"
	}
	return r.ids[n]
}

// cast is who plays in a round: busy crawlers, each of which does so many things, and
// patient ones, which wait for leases until those are done.
type cast struct{ busy, turns, patient int }

// play has the crawlers do as they like while verdicts turn.
func (r *round) play(of cast, seed uint64) {
	var busy, others sync.WaitGroup
	who := 0
	begin := func(group *sync.WaitGroup, live func(*crawler)) {
		c := r.crawler(who, seed)
		who++
		group.Go(func() { live(c) })
	}
	for range of.busy {
		begin(&busy, func(c *crawler) {
			for range of.turns {
				c.next(1)
				c.act()
			}
		})
	}
	done := make(chan struct{})
	until := func(ticks int, act func(*crawler)) func(*crawler) {
		return func(c *crawler) {
			for {
				c.next(ticks)
				select {
				case <-done:
					return
				default:
					act(c)
				}
			}
		}
	}
	for range of.patient {
		begin(&others, until(1, (*crawler).wait))
	}
	begin(&others, until(3, (*crawler).judge))
	busy.Wait()
	close(done)
	others.Wait()
}

// next waits for the next moment that is a multiple of so many ticks. Crawlers with odd
// numbers are not in step: what is late by less than a tick is theirs to find.
func (c *crawler) next(ticks int) {
	every := time.Duration(ticks) * tick
	now := c.now()
	wait := now.Truncate(every) + every - now
	if c.who%2 == 1 {
		wait = time.Duration(c.rand.Int64N(int64(2 * every)))
	}
	<-time.After(wait)
}
