package lease

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// proxy is an offerable one in cluster c, namespace n.
func proxy(name string, change ...func(*fleet.Proxy)) *fleet.Proxy {
	p := &fleet.Proxy{
		Key: fleet.Key{Cluster: "c", Namespace: "n", Name: name}, UID: "uid-" + name,
		Protocol: "http", Host: "10.0.0.1", Port: 3128, Instance: "i-" + name,
		Provisioned: true, Verdict: fleet.Verdict{Health: fleet.Healthy, Latency: 10 * time.Millisecond},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func latency(d time.Duration) func(*fleet.Proxy) {
	return func(p *fleet.Proxy) { p.Verdict.Latency = d }
}
func health(h fleet.Health) func(*fleet.Proxy) { return func(p *fleet.Proxy) { p.Verdict.Health = h } }
func limit(n int) func(*fleet.Proxy)           { return func(p *fleet.Proxy) { p.MaxLeases = n } }
func in(cluster, namespace string) func(*fleet.Proxy) {
	return func(p *fleet.Proxy) { p.Cluster, p.Namespace = cluster, namespace }
}
func attr(k, v string) func(*fleet.Proxy) {
	return func(p *fleet.Proxy) { p.Attributes = map[string]string{k: v} }
}

const client = "default"

// pool is a fleet with a store that follows it, as the app wires them.
type pool struct {
	*Store
	fleet *fleet.Fleet
}

func newPool(options Options, proxies ...*fleet.Proxy) pool {
	p := pool{Store: New(options), fleet: fleet.New(fleet.Options{AllowLocal: true})}
	for _, px := range proxies {
		p.fleet.Upsert(*px)
	}
	p.fleet.Follow(p.Observe)
	return p
}

func (p pool) acquire(t *testing.T, req Request) Lease {
	t.Helper()
	l, err := p.Acquire(t.Context(), client, req)
	if err != nil {
		t.Fatalf("Acquire(%+v): %v", req, err)
	}
	return l
}

func (p pool) refused(t *testing.T, req Request) NoMatchError {
	t.Helper()
	l, err := p.Acquire(t.Context(), client, req)
	var none *NoMatchError
	if !errors.As(err, &none) {
		t.Fatalf("Acquire(%+v) = %+v, %v; want a NoMatchError", req, l, err)
	}
	return *none
}

func (p pool) report(t *testing.T, id string, r Report) {
	t.Helper()
	if err := p.Report(client, id, r); err != nil {
		t.Fatalf("Report(%+v): %v", r, err)
	}
}

func (p pool) release(t *testing.T, client, id string) {
	t.Helper()
	if err := p.Release(client, id); err != nil {
		t.Fatalf("Release(%s): %v", id, err)
	}
}

// active is the number of active leases on a Proxy, in the fleet or not.
func (p pool) active(key fleet.Key, uid string) int {
	now := p.enter()
	defer p.leave(now)
	sl := p.ghosts[seat{key, uid}]
	if here := p.views.all.find(key); here != nil && here.proxy.UID == uid {
		sl = here
	}
	if sl == nil {
		return 0
	}
	return sl.active.len()
}

// leftovers are what the store still holds, the Proxies of the fleet apart.
func (p pool) leftovers() map[string]int {
	now := p.enter()
	defer p.leave(now)
	left := map[string]int{
		"slots": len(p.slots), "ghosts": len(p.ghosts), "in the view of all": p.views.all.size,
		"places in views": p.views.places, "overlays": p.views.overlays.Len(), "blocks of overlays": p.views.overlayBlocks,
		"records": len(p.records), "turns": p.turns.len(), "clusters": len(p.byCluster), "notes": len(p.notes.of) + len(p.notes.queue),
		"addresses": len(p.addresses), "targets": len(p.targets), "cooldowns": len(p.cooldowns), "rests": p.rests.len(),
		"keys": len(p.keys.of) + len(p.keys.spent), "lines": len(p.lines.of), "waiters": p.lines.waiting, "freed": len(p.freed),
	}
	for what, n := range left {
		if n == 0 {
			delete(left, what)
		}
	}
	return left
}

// pass lets the bubble's clock run.
func pass(d time.Duration) { <-time.After(d) }

func key(name string) fleet.Key { return proxy(name).Key }

func namesOf[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func (p pool) recordOf(l Lease) *record {
	i, _ := parseID(l.ID)
	return p.records[i]
}
