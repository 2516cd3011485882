package lease

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// machine drives a store and the naive one side by side.
type machine struct {
	pool
	naive   naive
	leading atomic.Bool
	calls   []*call
}

// call is a call of Acquire that has not been compared yet.
type call struct {
	want     *naiveCall
	hangUp   context.CancelFunc
	answered chan struct{}
	got      Lease
	err      error
}

var (
	targets  = rapid.SampledFrom([]string{"", "x.example", "y.example"})
	clients  = rapid.SampledFrom([]string{client, "another"})
	clusters = []string{"c1", "c2"}
	names    = []string{"a", "b", "c"}
)

func newMachine(ctx context.Context) *machine {
	m := &machine{}
	m.leading.Store(true)
	m.pool = newPool(Options{CooldownWindow: modelWindow, MaxWaiters: modelWaiters, Leading: m.leading.Load})
	m.naive = naive{fleet: m.fleet, last: map[seat]*fleet.Proxy{}}
	go func() { _ = m.Run(ctx) }()
	return m
}

func drawKey(t *rapid.T) fleet.Key {
	return fleet.Key{Cluster: rapid.SampledFrom(clusters).Draw(t, "cluster"), Namespace: "n", Name: rapid.SampledFrom(names).Draw(t, "name")}
}

func seconds(t *rapid.T, most int) time.Duration {
	return time.Duration(rapid.IntRange(1, most).Draw(t, "seconds")) * time.Second
}

// anyLease draws an id that was granted lately, or one that never was.
func (m *machine) anyLease(t *rapid.T) string {
	ids := []string{"unknown"}
	for _, l := range m.naive.leases[max(0, len(m.naive.leases)-20):] {
		ids = append(ids, l.id)
	}
	return rapid.SampledFrom(ids).Draw(t, "lease")
}

// show puts a Proxy into the fleet: a new one, an edited one, the same with
// another address, or a namesake.
func (m *machine) show(t *rapid.T) {
	p := proxy("", attr("region", rapid.SampledFrom([]string{"eu", "us"}).Draw(t, "region")))
	p.Key = drawKey(t)
	p.UID = rapid.SampledFrom([]string{"u1", "u1", "u1", "u2"}).Draw(t, "uid")
	p.Host = rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2"}).Draw(t, "host")
	p.Instance = p.UID + p.Host
	p.MaxLeases = rapid.IntRange(0, 2).Draw(t, "maxLeases")
	p.Deleting = rapid.IntRange(0, 9).Draw(t, "deleting") == 0
	p.Verdict.Latency = time.Duration(rapid.IntRange(0, 2).Draw(t, "latency")) * time.Millisecond
	m.fleet.Upsert(*p)
}

func (m *machine) probe(t *rapid.T) {
	key := drawKey(t)
	p := m.fleet.Get(key)
	if p == nil {
		return
	}
	v := fleet.Verdict{
		Health:  rapid.SampledFrom([]fleet.Health{fleet.Healthy, fleet.Healthy, fleet.Unhealthy}).Draw(t, "health"),
		Latency: time.Duration(rapid.IntRange(0, 2).Draw(t, "latency")) * time.Millisecond,
	}
	m.fleet.SetVerdict(key, p.Subject(), v)
}

func (m *machine) depart(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "whole spoke") == 0 {
		m.fleet.Retain(rapid.SampledFrom(clusters).Draw(t, "cluster"), nil)
		return
	}
	if p := m.fleet.Get(drawKey(t)); p != nil {
		m.fleet.Delete(p.Key, p.UID)
	}
}

func (m *machine) ask(t *rapid.T) {
	req := Request{Target: targets.Draw(t, "target"), TTL: seconds(t, 20)}
	req.Cluster = rapid.SampledFrom([]string{"", "", "c1"}).Draw(t, "cluster")
	if rapid.Bool().Draw(t, "select") {
		req.Selector = map[string]string{"region": "eu"}
	}
	if rapid.Bool().Draw(t, "waits") {
		req.Wait = seconds(t, 10)
	}
	if req.Key = rapid.SampledFrom([]string{"", "k1", "k2"}).Draw(t, "key"); req.Key != "" {
		req.TTL = 10 * time.Second // or they would hardly ever be the same request
		if req.Wait > 0 {
			req.Wait = 5 * time.Second
		}
	}
	who := clients.Draw(t, "client")
	ctx, hangUp := context.WithCancel(context.Background())
	c := &call{hangUp: hangUp, answered: make(chan struct{})}
	m.calls = append(m.calls, c)
	go func() {
		defer close(c.answered)
		c.got, c.err = m.Acquire(ctx, who, req)
	}()
	synctest.Wait()
	c.want = m.naive.acquire(who, req)
}

// hangUp has a client that waits go away.
func (m *machine) hangUp(t *rapid.T) {
	if len(m.calls) == 0 {
		return
	}
	c := rapid.SampledFrom(m.calls).Draw(t, "call")
	c.hangUp()
	c.want.answer(nil, context.Canceled)
	m.naive.part()
}

// compare looks at the calls that have been answered by now, and at those that have
// not.
func (m *machine) compare(t *rapid.T) {
	synctest.Wait()
	m.naive.see()
	m.naive.settle()
	var open []*call
	for _, c := range m.calls {
		select {
		case <-c.answered:
			if !c.want.answered {
				t.Fatalf("answered with %+v, %v; should wait", c.got, c.err)
			}
			c.hangUp()
			m.compareCall(t, c)
		default:
			if c.want.answered {
				t.Fatalf("still waits; should be answered with %+v, %v", c.want.lease, c.want.err)
			}
			open = append(open, c)
		}
	}
	m.calls = open
}

func (m *machine) compareCall(t *rapid.T, c *call) {
	var none *NoMatchError
	if c.want.lease == nil {
		var wantNone *NoMatchError
		refused := errors.As(c.want.err, &wantNone)
		if refused && (!errors.As(c.err, &none) || *none != *wantNone) || !refused && !errors.Is(c.err, c.want.err) {
			t.Fatalf("got %+v, %#v; want %#v", c.got, c.err, c.want.err)
		}
		if none != nil && none.Considered != none.Unhealthy+none.AtCapacity+none.InCooldown {
			t.Fatalf("counts do not add up: %+v", *none)
		}
		return
	}
	if c.err != nil {
		t.Fatalf("got %v; want %+v", c.err, c.want.lease)
	}
	if c.want.lease.id == "" {
		c.want.lease.id = c.got.ID
	}
	// How many leases the Proxy had depends on who was answered first.
	want := m.naive.read(c.want.lease)
	want.Active = c.got.Active
	if !reflect.DeepEqual(c.got, want) {
		t.Fatalf("got %+v; want %+v", c.got, want)
	}
}

func (m *machine) get(t *rapid.T) {
	who, id := clients.Draw(t, "client"), m.anyLease(t)
	got, err := m.Get(who, id)
	if l, err := m.naive.find(who, id); err == nil {
		l.told = m.naive.last[seatOf(l.proxy)]
	}
	m.compareLease(t, who, id, got, err)
}

func (m *machine) renew(t *rapid.T) {
	who, id := clients.Draw(t, "client"), m.anyLease(t)
	var ttl time.Duration
	if rapid.Bool().Draw(t, "own length") {
		ttl = seconds(t, 20)
	}
	if l, err := m.naive.find(who, id); err == nil {
		if ttl > 0 {
			l.ttl = ttl
		}
		l.expires = time.Now().Add(l.ttl)
	}
	got, err := m.Renew(who, id, ttl)
	m.compareLease(t, who, id, got, err)
}

func (m *machine) compareLease(t *rapid.T, who, id string, got Lease, err error) {
	l, wantErr := m.naive.find(who, id)
	if !errors.Is(err, wantErr) {
		t.Fatalf("lease %s: got %v, want %v", id, err, wantErr)
	}
	if l != nil {
		if want := m.naive.read(l); !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	}
}

func (m *machine) tell(t *rapid.T) {
	who, id := clients.Draw(t, "client"), m.anyLease(t)
	r := Report{
		Result: rapid.SampledFrom([]Result{OK, RateLimited, Banned}).Draw(t, "result"),
		Target: targets.Draw(t, "target"),
	}
	if rapid.Bool().Draw(t, "own length") {
		r.Cooldown = seconds(t, 15)
	}
	if got, want := m.Report(who, id, r), m.naive.report(who, id, r); !errors.Is(got, want) {
		t.Fatalf("report on %s: got %v, want %v", id, got, want)
	}
}

func (m *machine) giveBack(t *rapid.T) {
	who, id := clients.Draw(t, "client"), m.anyLease(t)
	if err := m.Release(who, id); err != nil {
		t.Fatal(err)
	}
	if l, err := m.naive.find(who, id); err == nil {
		l.released = time.Now()
	}
}

// pass lets time go by, from one thing that ends to the next.
func (m *machine) pass(t *rapid.T, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		pass(time.Until(m.naive.next(end)))
		m.compare(t)
	}
}

// lose takes leadership away for a moment.
func (m *machine) lose(t *rapid.T) {
	m.leading.Store(false)
	m.Cooldowns() // whatever is called
	m.naive.dismiss(ErrNotLeading)
	_, acquired := m.Acquire(context.Background(), client, Request{})
	_, got := m.Get(client, "x")
	_, renewed := m.Renew(client, "x", 0)
	for _, err := range []error{acquired, got, renewed, m.Report(client, "x", Report{Result: OK}), m.Release(client, "x")} {
		if !errors.Is(err, ErrNotLeading) {
			t.Fatalf("without leadership: %v", err)
		}
	}
	m.compare(t)
	m.leading.Store(true)
}

// check compares everything else that can be read.
func (m *machine) check(t *rapid.T) {
	perCluster := map[string]int{}
	for _, l := range m.naive.leases {
		if l.active() {
			perCluster[l.proxy.Cluster]++
			if want, _ := m.naive.active(l.proxy); m.active(l.proxy.Key, l.proxy.UID) != want {
				t.Fatalf("%d active on %s, want %d", m.active(l.proxy.Key, l.proxy.UID), l.proxy.Key, want)
			}
		}
	}
	if got := m.ActiveByCluster(); len(got) != len(perCluster) {
		t.Fatalf("active: %v, want %v", got, perCluster)
	}
	for cluster, n := range m.ActiveByCluster() {
		if n != perCluster[cluster] {
			t.Fatalf("%d active in %s, want %d", n, cluster, perCluster[cluster])
		}
	}
	running := map[naiveCooldown]bool{}
	for _, c := range m.naive.cooldowns {
		if c.until.After(time.Now()) {
			c.until = time.Time{}
			running[c] = true
		}
	}
	if got := m.Cooldowns(); got != len(running) {
		t.Fatalf("%d cooldowns, want %d", got, len(running))
	}
	all := slices.SortedFunc(slices.Values(m.fleet.All()), func(a, b *fleet.Proxy) int { return a.Compare(b.Key) })
	m.List(fleet.Key{}, func(p *fleet.Proxy, active int) bool {
		if want, _ := m.naive.active(p); len(all) == 0 || p != all[0] || active != want {
			t.Fatalf("listed %s with %d, want %d", p.Key, active, want)
		}
		all = all[1:]
		return true
	})
	if len(all) != 0 {
		t.Fatalf("not listed: %v", all)
	}
}

// leavesNothing empties the fleet and lets everything end.
func (m *machine) leavesNothing(t *rapid.T) {
	for _, cluster := range clusters {
		m.fleet.Retain(cluster, nil)
	}
	m.pass(t, keyLife+time.Minute)
	if len(m.calls) > 0 {
		t.Fatalf("%d calls were never answered", len(m.calls))
	}
	left := m.leftovers()
	delete(left, "clusters")
	if len(left) != 0 {
		t.Fatalf("left: %v", left)
	}
}

// modelSteps is how much happens to each of the hundred stores that rapid tries.
const modelSteps = 2000

func TestTheStoreDoesWhatTheNaiveOneDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Wrapped, because rapid asks a *testing.T for its deadline, which a
		// bubble with a clock of its own does not allow.
		rapid.Check(struct{ rapid.TB }{t}, func(t *rapid.T) {
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			m := newMachine(ctx)
			actions := map[string]func(*rapid.T){
				"ask": m.ask, "ask2": m.ask, "ask3": m.ask, "ask4": m.ask,
				"report": m.tell, "report2": m.tell, "release": m.giveBack, "release2": m.giveBack,
				"get": m.get, "renew": m.renew, "hangUp": m.hangUp, "lose": m.lose,
				"probe": m.probe, "show": m.show, "depart": m.depart,
				"pass":    func(t *rapid.T) { m.pass(t, seconds(t, 5)) },
				"instant": func(t *rapid.T) { m.pass(t, time.Millisecond) },
			}
			names := rapid.SampledFrom(namesOf(actions))
			for range 4 {
				m.show(t)
			}
			for step := range modelSteps {
				if step%100 == 0 {
					m.naive.tidy()
				}
				m.compare(t)
				m.check(t)
				actions[names.Draw(t, "action")](t)
			}
			m.compare(t)
			m.leavesNothing(t)
		})
	})
}
