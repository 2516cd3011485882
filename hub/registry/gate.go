package registry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/util/validation"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// gate lets one connection of a spoke feed the fleet at a time, and none after
// it is shut. Without it a late event of a replaced connection could bring back
// what the present one has seen go, or a removed spoke's Proxies reappear.
type gate struct {
	// contested is told which other hubs have marked Proxies when that changes.
	contested func(others string)

	mu      sync.Mutex
	current *connection
	closed  bool
	others  string
}

// otherHubs names the hubs that have marked Proxies; empty: none has.
func (g *gate) otherHubs() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.others
}

// pass runs f if conn is the one that feeds.
func (g *gate) pass(conn *connection, f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.current == conn && !g.closed {
		f()
	}
}

// clear runs f, unless the gate is shut, and nothing passes until something is fed again.
func (g *gate) clear(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return // what has the name now is not this spoke's
	}
	g.current, g.others = nil, ""
	f()
}

// unlessShut runs f, unless the gate is shut.
func (g *gate) unlessShut(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		f()
	}
}

// shut runs f, and nothing passes from then on.
func (g *gate) shut(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	f()
}

// feed makes conn the one that feeds the fleet, and returns when the fleet
// shows what conn's informer has listed: additions and changes first, then the
// removal of what is not there any more. No Proxy is missing in between.
func (g *gate) feed(conn *connection, spoke string, o Options) error {
	informer, err := conn.informer(proxyKind.object)
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.current = conn
	g.mu.Unlock()
	f := &feeder{
		gate: g, conn: conn, spoke: spoke, options: o,
		seen: map[fleet.Key]bool{}, foreign: marks{byKey: map[fleet.Key]string{}, byHub: map[string]int{}},
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    f.upsert,
		UpdateFunc: func(_, object any) { f.upsert(object) },
		DeleteFunc: f.remove,
	})
	if err != nil {
		return fmt.Errorf("feed the fleet: %w", err)
	}
	select {
	case <-registration.HasSyncedChecker().Done():
	case <-conn.ctx.Done():
		return cmp.Or(conn.lastTrouble(), conn.ctx.Err())
	}
	g.pass(conn, func() {
		o.Fleet.Retain(spoke, f.seen)
		f.listed = true
		conn.listed.Store(true)
		f.tell()
	})
	return nil
}

// feeder takes what one connection's informer says into the fleet.
type feeder struct {
	gate    *gate
	conn    *connection
	spoke   string
	options Options
	// seen are the keys of this hub's Proxies that are there.
	seen    map[fleet.Key]bool
	foreign marks
	listed  bool // the first list is through
}

func (f *feeder) upsert(object any) {
	p, ok := object.(*v1alpha1.Proxy)
	if !ok {
		return
	}
	f.gate.pass(f.conn, func() {
		seen := fleet.FromObject(f.spoke, p)
		mark := p.Annotations[v1alpha1.AnnotationHub]
		if mark == f.options.HubID {
			mark = ""
		}
		if mark != "" {
			// Another hub's: leasing it too would exceed its maxLeases.
			delete(f.seen, seen.Key)
			f.options.Fleet.Delete(seen.Key, seen.UID)
		} else {
			f.seen[seen.Key] = true
			f.options.Fleet.Upsert(seen)
		}
		if f.foreign.set(seen.Key, mark) {
			f.tell()
		}
	})
}

func (f *feeder) remove(object any) {
	if tombstone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	p, ok := object.(*v1alpha1.Proxy)
	if !ok {
		return
	}
	f.gate.pass(f.conn, func() {
		key := fleet.Key{Cluster: f.spoke, Namespace: p.Namespace, Name: p.Name}
		delete(f.seen, key)
		f.options.Fleet.Delete(key, string(p.UID))
		if f.foreign.set(key, "") {
			f.tell()
		}
	})
}

// tell says who else has marked Proxies, once the first list is through.
func (f *feeder) tell() {
	if f.listed {
		f.gate.others = f.foreign.hubs(f.conn.cred.config.BearerToken)
		f.gate.contested(f.gate.others)
	}
}

// marks are the marks of other hubs on a spoke's Proxies.
type marks struct {
	byKey map[fleet.Key]string
	byHub map[string]int
}

// set records a Proxy's mark, "" for none, and says whether the set of hubs
// has changed.
func (m *marks) set(key fleet.Key, mark string) (changed bool) {
	old := m.byKey[key]
	if old == mark {
		return false
	}
	delete(m.byKey, key)
	if old != "" {
		if m.byHub[old]--; m.byHub[old] == 0 {
			delete(m.byHub, old)
			changed = true
		}
	}
	if mark != "" {
		m.byKey[key] = mark
		m.byHub[mark]++
		changed = changed || m.byHub[mark] == 1
	}
	return changed
}

// hubs names the hubs. What a Proxy says of its hub may be anything, even the
// secret that its server was sent.
func (m *marks) hubs(secret string) string {
	hubs := slices.Sorted(maps.Keys(m.byHub))
	const most = 3
	more := ""
	if len(hubs) > most {
		more = fmt.Sprintf(" and %d more", len(hubs)-most)
		hubs = hubs[:most]
	}
	for i, hub := range hubs {
		if len(validation.IsValidLabelValue(hub)) > 0 || leaks([]byte(hub), secret) {
			hubs[i] = "one with an id that is none"
		}
	}
	return strings.Join(hubs, ", ") + more
}
