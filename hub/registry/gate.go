package registry

import (
	"context"
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
	// contested is told which other hubs have marked Proxies, "" for none.
	contested func(others string)

	mu      sync.Mutex
	current *connection
	closed  bool
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
	g.current = nil
	f()
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
func (g *gate) feed(ctx context.Context, conn *connection, spoke string, o Options) error {
	f := o.Fleet
	informer, err := conn.informer(&v1alpha1.Proxy{})
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.current = conn
	g.mu.Unlock()
	listed := map[fleet.Key]bool{}
	foreign := marks{byKey: map[fleet.Key]string{}, byHub: map[string]int{}}
	upsert := func(obj any) {
		p, ok := obj.(*v1alpha1.Proxy)
		if !ok {
			return
		}
		g.pass(conn, func() {
			seen := fleet.FromObject(spoke, p)
			mark := p.Annotations[v1alpha1.AnnotationHub]
			if mark == o.HubID {
				mark = ""
			}
			if mark != "" {
				// Another hub's: leasing it too would exceed its maxLeases.
				f.Delete(seen.Key, seen.UID)
			} else {
				f.Upsert(seen)
				if listed != nil {
					listed[seen.Key] = true
				}
			}
			if foreign.set(seen.Key, mark) && listed == nil {
				g.contested(foreign.hubs())
			}
		})
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    upsert,
		UpdateFunc: func(_, obj any) { upsert(obj) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if p, ok := obj.(*v1alpha1.Proxy); ok {
				g.pass(conn, func() {
					key := fleet.Key{Cluster: spoke, Namespace: p.Namespace, Name: p.Name}
					f.Delete(key, string(p.UID))
					if foreign.set(key, "") && listed == nil {
						g.contested(foreign.hubs())
					}
				})
			}
		},
	})
	if err != nil {
		return fmt.Errorf("feed the fleet: %w", err)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return ctx.Err()
	}
	g.pass(conn, func() {
		f.Retain(spoke, listed)
		listed = nil
		g.contested(foreign.hubs())
	})
	return nil
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

// hubs names the hubs. What a Proxy says of its hub may be anything.
func (m *marks) hubs() string {
	hubs := slices.Sorted(maps.Keys(m.byHub))
	const most = 3
	more := ""
	if len(hubs) > most {
		more = fmt.Sprintf(" and %d more", len(hubs)-most)
		hubs = hubs[:most]
	}
	for i, hub := range hubs {
		if len(validation.IsValidLabelValue(hub)) > 0 {
			hubs[i] = "one with an id that is none"
		}
	}
	return strings.Join(hubs, ", ") + more
}
