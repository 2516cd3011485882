package lease

import (
	"cmp"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

const modelWindow = 10 * time.Second

// naive is the store as one would explain it: it forgets nothing, keeps no
// index and works everything out from what has happened.
type naive struct {
	fleet     *fleet.Fleet
	leases    []*naiveLease
	cooldowns []naiveCooldown
}

type naiveLease struct {
	id, client, target string
	proxy              *fleet.Proxy
	expires, ended     time.Time // ended: released or expires
	reports            map[Report]time.Time
}

type naiveCooldown struct {
	key              fleet.Key
	endpoint, target string
	until            time.Time
}

func (n *naive) active(p *fleet.Proxy) (count int, firstEnd time.Time) {
	for _, l := range n.leases {
		if l.proxy.Key == p.Key && l.proxy.UID == p.UID && time.Now().Before(l.ended) {
			count++
			if firstEnd.IsZero() || l.expires.Before(firstEnd) {
				firstEnd = l.expires
			}
		}
	}
	return count, firstEnd
}

func (n *naive) coolsUntil(p *fleet.Proxy, target string) (until time.Time) {
	for _, c := range n.cooldowns {
		if c.key == p.Key && c.endpoint == p.Endpoint() && (c.target == "" || c.target == target) && c.until.After(until) {
			until = c.until
		}
	}
	return until
}

// acquire sorts all that could be granted, and counts the others.
func (n *naive) acquire(req Request) (*fleet.Proxy, NoMatchError) {
	var offers []*fleet.Proxy
	var none NoMatchError
	block := func(until time.Time) {
		if in := time.Until(until); none.RetryAfter == 0 || in < none.RetryAfter {
			none.RetryAfter = in
		}
	}
	for _, p := range n.fleet.All() {
		if p.Deleting || (req.Cluster != "" && p.Cluster != req.Cluster) || (req.Selector != nil && p.Attributes["region"] != req.Selector["region"]) {
			continue
		}
		none.Considered++
		count, firstEnd := n.active(p)
		cools := n.coolsUntil(p, req.Target)
		switch {
		case !p.Offerable():
			none.Unhealthy++
		case p.MaxLeases > 0 && count >= p.MaxLeases:
			none.AtCapacity++
			block(slices.MaxFunc([]time.Time{firstEnd, cools}, time.Time.Compare))
		case cools.After(time.Now()):
			none.InCooldown++
			block(cools)
		default:
			offers = append(offers, p)
		}
	}
	if len(offers) == 0 {
		return nil, none
	}
	slices.SortFunc(offers, func(a, b *fleet.Proxy) int {
		countA, _ := n.active(a)
		countB, _ := n.active(b)
		none := func(p *fleet.Proxy) bool { return p.Verdict.Latency == 0 }
		if none(a) != none(b) {
			return cmp.Or(cmp.Compare(countA, countB), map[bool]int{true: 1, false: -1}[none(a)])
		}
		return cmp.Or(cmp.Compare(countA, countB), cmp.Compare(a.Verdict.Latency, b.Verdict.Latency), a.Compare(b.Key))
	})
	return offers[0], none
}

func (n *naive) report(client, id string, r Report) error {
	i := slices.IndexFunc(n.leases, func(l *naiveLease) bool { return l.id == id && l.client == client })
	if i < 0 || !time.Now().Before(n.leases[i].ended.Add(modelWindow)) {
		return ErrUnknownLease
	}
	l := n.leases[i]
	if r.Result == OK {
		return nil
	}
	r.Target, r.Cooldown = cmp.Or(r.Target, l.target), cmp.Or(r.Cooldown, modelWindow)
	if at, again := l.reports[r]; again && time.Since(at) < 2*time.Second {
		return nil
	}
	l.reports[r] = time.Now()
	n.cooldowns = append(n.cooldowns, naiveCooldown{l.proxy.Key, l.proxy.Endpoint(), r.Target, time.Now().Add(r.Cooldown)})
	return nil
}

func (n *naive) release(client, id string) {
	for _, l := range n.leases {
		if l.id == id && l.client == client && time.Now().Before(l.ended) {
			l.ended = time.Now()
		}
	}
}

// machine drives a store and the naive one side by side.
type machine struct {
	pool
	naive naive
}

var (
	targets  = rapid.SampledFrom([]string{"", "x.example", "y.example"})
	clients  = rapid.SampledFrom([]string{client, "another"})
	clusters = []string{"c1", "c2"}
	names    = []string{"a", "b", "c"}
)

func drawKey(t *rapid.T) fleet.Key {
	return fleet.Key{Cluster: rapid.SampledFrom(clusters).Draw(t, "cluster"), Namespace: "n", Name: rapid.SampledFrom(names).Draw(t, "name")}
}

func seconds(t *rapid.T, most int) time.Duration {
	return time.Duration(rapid.IntRange(1, most).Draw(t, "seconds")) * time.Second
}

// anyLease draws an id that was granted once, or one that never was.
func (m *machine) anyLease(t *rapid.T) string {
	ids := []string{"unknown"}
	for _, l := range m.naive.leases {
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

func (m *machine) leave(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "whole spoke") == 0 {
		m.fleet.Retain(rapid.SampledFrom(clusters).Draw(t, "cluster"), nil)
		return
	}
	if p := m.fleet.Get(drawKey(t)); p != nil {
		m.fleet.Delete(p.Key, p.UID)
	}
}

func (m *machine) lease(t *rapid.T) {
	req := Request{Target: targets.Draw(t, "target"), TTL: seconds(t, 20)}
	req.Cluster = rapid.SampledFrom([]string{"", "", "c1"}).Draw(t, "cluster")
	if rapid.Bool().Draw(t, "select") {
		req.Selector = map[string]string{"region": "eu"}
	}
	who := clients.Draw(t, "client")
	want, wantNone := m.naive.acquire(req)
	got, err := m.Acquire(who, req)
	var none *NoMatchError
	switch {
	case want == nil:
		if !errors.As(err, &none) || *none != wantNone {
			t.Fatalf("got %+v, %v; want %+v", got, err, wantNone)
		}
		if none.Considered != none.Unhealthy+none.AtCapacity+none.InCooldown {
			t.Fatalf("counts do not add up: %+v", *none)
		}
	case err != nil || got.Proxy != want:
		t.Fatalf("got %+v, %v; want %v", got, err, want)
	default:
		m.naive.leases = append(m.naive.leases, &naiveLease{
			id: got.ID, client: who, target: req.Target, proxy: want,
			expires: got.ExpiresAt, ended: got.ExpiresAt, reports: map[Report]time.Time{},
		})
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

func (m *machine) release(t *rapid.T) {
	who, id := clients.Draw(t, "client"), m.anyLease(t)
	m.Release(who, id)
	m.naive.release(who, id)
}

// check compares everything that can be read.
func (m *machine) check(t *rapid.T) {
	perCluster := map[string]int{}
	for _, l := range m.naive.leases {
		if time.Now().Before(l.ended) {
			perCluster[l.proxy.Cluster]++
		}
		if want, _ := m.naive.active(l.proxy); m.Active(l.proxy.Key, l.proxy.UID) != want {
			t.Fatalf("%d active on %s, want %d", m.Active(l.proxy.Key, l.proxy.UID), l.proxy.Key, want)
		}
	}
	for _, cluster := range clusters {
		if got := m.ActiveByCluster()[cluster]; got != perCluster[cluster] {
			t.Fatalf("%d active in %s, want %d", got, cluster, perCluster[cluster])
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
}

func (m *machine) leavesNothing(t *rapid.T) {
	for _, cluster := range clusters {
		m.fleet.Retain(cluster, nil)
	}
	pass(time.Minute)
	m.sweep()
	if n := len(m.seats) + len(m.records) + m.turns.len() + len(m.byCluster) + len(m.cooldowns) + m.rests.len(); n != 0 {
		t.Fatalf("%d entries left: %+v", n, m.Store)
	}
}

func TestTheStoreDoesWhatTheNaiveOneDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Wrapped, because rapid asks a *testing.T for its deadline, which a
		// bubble with a clock of its own does not allow.
		rapid.Check(struct{ rapid.TB }{t}, func(t *rapid.T) {
			m := &machine{pool: newPool(Options{CooldownWindow: modelWindow})}
			m.naive.fleet = m.fleet
			for range 4 {
				m.show(t)
			}
			t.Repeat(map[string]func(*rapid.T){
				"":        m.check,
				"lease":   m.lease,
				"lease2":  m.lease,
				"lease3":  m.lease,
				"report":  m.tell,
				"release": m.release,
				"probe":   m.probe,
				"show":    m.show,
				"leave":   m.leave,
				"pass":    func(t *rapid.T) { pass(seconds(t, 5)) },
				"instant": func(*rapid.T) { pass(time.Millisecond) },
			})
			m.leavesNothing(t)
		})
	})
}
