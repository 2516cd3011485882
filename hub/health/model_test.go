package health

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// dice is a wire that answers at random. One that was called off is as good as ended:
// what is under way are the others.
type dice struct {
	mu    sync.Mutex
	rand  *rand.Rand
	site  bool                       // answers
	under map[context.Context]string // hosts that are probed
	twice []string                   // hosts that were probed while they were probed
	most  int                        // probes under way at once
}

// outcomes are what a probe may end with.
var outcomes = []result{
	works, works, works, refuses, broken,
	{void: true, message: "socket: too many open files"},
	{own: true, reason: "ProxyAuthRequired", message: "407", reach: accepted},
	{own: true, final: true, reason: "EndpointForbidden", message: "a local address"},
	{reason: "DialFailed", message: "no such host", reach: unlocated},
}

func (d *dice) probe(ctx context.Context, via through, _ aim) result {
	d.mu.Lock()
	takes, r := oneOf(d.rand, 0, time.Millisecond, time.Second, 10*time.Second, time.Hour), oneOf(d.rand, outcomes...)
	if r.ok && !d.site {
		r = broken
	}
	under := 1
	for c, host := range d.under {
		if c.Err() != nil {
			continue
		}
		if under++; host == via.host {
			d.twice = append(d.twice, host)
		}
	}
	d.under[ctx] = via.host
	d.most = max(d.most, under)
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.under, ctx)
	}()
	select {
	case <-time.After(takes):
		return r
	case <-ctx.Done():
		return result{reason: "Timeout", message: "no answer came in time", reach: undialled}
	}
}

func (d *dice) direct(ctx context.Context, _ aim) result {
	d.mu.Lock()
	takes, void, site := oneOf(d.rand, 0, time.Second, time.Hour), d.rand.IntN(10) == 0, d.site
	d.mu.Unlock()
	select {
	case <-time.After(takes):
		return result{ok: site && !void, void: void, reason: "DialFailed"}
	case <-ctx.Done():
		return result{reason: "Timeout"}
	}
}

func oneOf[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// model is an engine to which anything happens.
type model struct {
	*Engine
	rand *rand.Rand
	wire *dice
	told map[string]bool // of paths
	made int             // hosts
}

// newModel starts one that stop ends. It runs in a bubble.
func newModel(t *testing.T, seed uint64) (m *model, stop func()) {
	m = &model{rand: rand.New(rand.NewPCG(seed, 1)), told: map[string]bool{}}
	m.wire = &dice{rand: rand.New(rand.NewPCG(seed, 2)), site: true, under: map[context.Context]string{}}
	m.Engine = New(Options{
		Fleet: fleet.New(fleet.Options{AllowLocal: true}), URL: "https://site.test/", Recorder: newRecorder(),
		MaxInFlight: oneOf(m.rand, 1, 2, 3, 5, 8, 20, 100),
		PathBroken:  func(spoke string, broken bool) { m.told[spoke] = broken }, // read when it has stopped
	})
	m.Engine.wire = m.wire
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = m.Run(ctx)
	}()
	synctest.Wait()
	return m, func() { cancel(); <-done }
}

var spokes = []string{"eu", "us", "ap"}

// upsert makes a Proxy, edits one, or replaces its instance.
func (m *model) upsert() {
	p := proxyOf(oneOf(m.rand, spokes...), fmt.Sprint("p", m.rand.IntN(12)))
	p.Managed = m.rand.IntN(3) > 0
	p.PodNetwork = p.Managed && m.rand.IntN(2) == 0
	p.Instance = fmt.Sprint(m.rand.IntN(2))
	p.UID = fmt.Sprint("uid-", m.rand.IntN(2))
	m.made++
	if p.Host = fmt.Sprint("host-", m.made); p.Managed && m.rand.IntN(8) == 0 {
		p.Host = "contended"
	}
	if old := m.Fleet.Get(p.Key); old != nil && m.rand.IntN(2) == 0 {
		p.Managed, p.PodNetwork, p.Instance, p.UID, p.Host = old.Managed, old.PodNetwork, old.Instance, old.UID, old.Host
	}
	p.Provisioned = m.rand.IntN(6) > 0
	p.NeedsCredentials = m.rand.IntN(4) == 0
	p.Check = fleet.Check{
		URL:              oneOf(m.rand, "", m.URL, "https://own.test/"),
		Interval:         oneOf(m.rand, 5*time.Second, 30*time.Second, time.Hour, 24*time.Hour),
		Timeout:          oneOf(m.rand, time.Second, 10*time.Second, 300*time.Second),
		SuccessThreshold: 1 + m.rand.IntN(2), FailureThreshold: 1 + m.rand.IntN(3),
	}
	if m.rand.IntN(4) == 0 {
		healthy(&p)
	}
	m.Fleet.Upsert(p)
}

// happens has something happen, and says what.
func (m *model) happens() string {
	all := m.Fleet.All()
	what := m.rand.IntN(14)
	if len(all) == 0 || what < 4 {
		m.upsert()
		return "upsert"
	}
	p := oneOf(m.rand, all...)
	switch what {
	case 4:
		m.Fleet.Delete(p.Key, p.UID)
		return "delete"
	case 5:
		m.Fleet.SetWithdrawn(p.Key, p.Instance, m.rand.IntN(2) == 0)
		return "withdraw"
	case 6:
		m.Fleet.SetWithdrawn(p.Key, p.Instance, true)
		m.Fleet.Restore(p.Key, p.Instance, p.Verdict)
		return "restore"
	case 7:
		m.Fleet.SetRoutable(p.Cluster, m.rand.IntN(2) == 0)
		return "routes"
	case 8:
		m.Fleet.SetCredentials(p.Key, p.Instance, oneOf(m.rand, nil, right, &fleet.Credentials{Username: "other"}))
		return "credentials"
	case 9:
		m.wire.mu.Lock()
		defer m.wire.mu.Unlock()
		m.wire.site = !m.wire.site
		return "site"
	case 10:
		if m.rand.IntN(20) == 0 {
			m.Fleet.Retain(p.Cluster, nil)
			return "retain"
		}
	}
	<-time.After(oneOf(m.rand, 1, time.Millisecond, time.Second, 10*time.Second, 30*time.Second, time.Minute, 5*time.Minute))
	return "time"
}

// check says what is wrong when all that is due has been done.
func (m *model) check() error {
	all, now := m.Fleet.All(), time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, wrong := range []error{m.wrongStates(all, now), m.wrongRoom(), m.wrongCrowds(), m.wrongPaths()} {
		if wrong != nil {
			return wrong
		}
	}
	switch {
	case m.size != len(all):
		return fmt.Errorf("a fleet of %d, want %d", m.size, len(all))
	case m.hold.holds() && m.hold.spent+now.Sub(m.hold.since) > maxHold:
		return fmt.Errorf("held for %s after %s", now.Sub(m.hold.since), m.hold.spent)
	case len(m.notices) > 0 || m.Engine.paths.fresh:
		return fmt.Errorf("news is not told")
	}
	return nil
}

// wrongStates: everybody who is to be probed is in one place, nobody else is, and the
// engine goes on from what the fleet says.
func (m *model) wrongStates(all []*fleet.Proxy, now time.Time) error {
	probeable := 0
	for _, p := range all {
		s := m.states[p.Key]
		if p.Probeable() != (s != nil) {
			return fmt.Errorf("%s: to be probed: %v, state: %v", p.Key, p.Probeable(), s)
		}
		if s == nil {
			continue
		}
		probeable++
		places := one(s.index >= 0) + one(s.waits != nil) + one(s.cancel != nil)
		switch {
		case places != 1, s.index >= 0 && m.due[s.index] != s:
			return fmt.Errorf("%s is due at %d, waits %v, is probed %v", p.Key, s.index, s.waits != nil, s.cancel != nil)
		case s.index >= 0 && s.at.Before(now):
			return fmt.Errorf("%s is due since %s", p.Key, now.Sub(s.at))
		case s.proxy != p:
			return fmt.Errorf("%s is probed as it was", p.Key)
		case s.tracker.verdict != p.Verdict:
			return fmt.Errorf("%s: the fleet says %v, the engine goes on from %v", p.Key, p.Verdict, s.tracker.verdict)
		case s.member.in != m.shares(p):
			return fmt.Errorf("%s counts as one of the hub's URL: %v", p.Key, s.member.in)
		}
	}
	if len(m.states) != probeable {
		return fmt.Errorf("%d states, want %d", len(m.states), probeable)
	}
	return nil
}

// wrongRoom: who waits finds no room.
func (m *model) wrongRoom() error {
	busy, waiting := [2]int{}, 0
	for _, s := range m.states {
		busy[s.class] += one(s.cancel != nil)
		waiting += one(s.waits != nil)
	}
	if m.slots.busy != busy || busy[0]+busy[1] > m.MaxInFlight {
		return fmt.Errorf("room for %d, taken: %v, under way: %v", m.MaxInFlight, m.slots.busy, busy)
	}
	for c, lines := range m.slots.waiting {
		for spoke, l := range lines {
			waiting -= l.Len()
			if left := m.slots.left(class(c)); left > 0 && m.slots.of(spoke, class(c)) < greed*left {
				return fmt.Errorf("%d of %s wait, of whom %d are under way, with room for %d", l.Len(), spoke, m.slots.of(spoke, class(c)), left)
			}
		}
	}
	if waiting != 0 {
		return fmt.Errorf("%d more wait than stand in a line", waiting)
	}
	return nil
}

// wrongCrowds: those of the hub's URL are counted.
func (m *model) wrongCrowds() error {
	members, raisers, want := 0, 0, map[string]balance{}
	for _, s := range m.states {
		if s.member.in {
			members++
			b := want[s.proxy.Cluster]
			want[s.proxy.Cluster] = balance{b.passing + one(s.member.passing), b.turned + one(s.member.turn != 0)}
		}
	}
	for spoke, b := range want {
		raisers += one(b.turned > b.passing)
		if got := m.suspicion.spokes[spoke]; b != (balance{}) && (got == nil || *got != b) {
			return fmt.Errorf("%s: counted %v, want %v", spoke, got, b)
		}
	}
	if m.suspicion.members != members || m.suspicion.raisers != raisers {
		return fmt.Errorf("members %d, want %d; raisers %d, want %d", m.suspicion.members, members, m.suspicion.raisers, raisers)
	}
	return nil
}

// wrongPaths: everybody is counted by how they fared.
func (m *model) wrongPaths() error {
	want := map[string]path{}
	for _, s := range m.states {
		p := want[s.proxy.Cluster]
		p.of(s.managed)[s.reach]++
		want[s.proxy.Cluster] = p
	}
	for spoke, p := range want {
		if got := m.Engine.paths.spokes[spoke]; got == nil || got.managed != p.managed || got.external != p.external {
			return fmt.Errorf("paths of %s: %v, want %v", spoke, got, p)
		}
	}
	if len(m.Engine.paths.spokes) != len(want) {
		return fmt.Errorf("paths of %d spokes, want %d", len(m.Engine.paths.spokes), len(want))
	}
	return nil
}

// left counts all that the engine has of a fleet.
func (m *model) left() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.suspicion.raised(time.Now())
	n := len(m.states) + len(m.due) + len(m.awaited) + m.size + one(m.hold.holds()) + one(m.hold.asking)
	n += m.slots.busy[0] + m.slots.busy[1] + len(m.slots.spokes) + len(m.slots.waiting[0]) + len(m.slots.waiting[1]) + len(m.slots.served[0]) + len(m.slots.served[1])
	return n + len(m.Engine.paths.spokes) + len(m.Engine.paths.news) + m.suspicion.members + m.suspicion.raisers + len(m.suspicion.spokes) + len(m.suspicion.turns)
}

// end has the fleet go, and says what is wrong after that.
func (m *model) end(t *testing.T, stop func()) {
	for _, spoke := range spokes {
		m.Fleet.Retain(spoke, nil)
	}
	elapse(time.Hour)
	if n := m.left(); n != 0 {
		t.Errorf("%d are left: %+v, %+v, %+v, %+v", n, m.slots, m.Engine.paths, m.suspicion, m.hold)
	}
	stop()
	for spoke, broken := range m.told {
		if broken {
			t.Errorf("%s was told last that the path to nobody is broken", spoke)
		}
	}
	if len(m.wire.under) > 0 {
		t.Errorf("still probed: %v", slices.Collect(maps.Values(m.wire.under)))
	}
	if len(m.wire.twice) > 0 || m.wire.most > m.MaxInFlight {
		t.Errorf("probed while they were probed: %v; at once %d, the limit is %d", m.wire.twice, m.wire.most, m.MaxInFlight)
	}
}

// One Proxy that is forgotten in some order of edits, outages and lack of room is leased
// dead, or is idle alive, until the hub is started anew.
func TestNobodyIsForgottenWhateverHappensToAFleet(t *testing.T) {
	const fleets, happenings = 40, 300
	for seed := range uint64(fleets) {
		within(t, func(t *testing.T) {
			m, stop := newModel(t, seed)
			for _, spoke := range spokes {
				m.Fleet.SetRoutable(spoke, true)
			}
			for i := range happenings {
				what := m.happens()
				if m.rand.IntN(3) == 0 {
					continue // several, before the engine has its turn
				}
				synctest.Wait()
				if err := m.check(); err != nil {
					stop()
					t.Fatalf("seed %d, after %s, the %d.: %v", seed, what, i, err)
				}
			}
			if m.end(t, stop); t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		})
		if t.Failed() {
			return
		}
	}
}
