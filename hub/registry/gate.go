package registry

import (
	"context"
	"fmt"
	"sync"

	toolscache "k8s.io/client-go/tools/cache"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// gate lets one connection of a spoke feed the fleet at a time, and none after
// it is shut. Without it a late event of a replaced connection could bring back
// what the present one has seen go, or a removed spoke's Proxies reappear.
type gate struct {
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
	informer, err := conn.cluster.GetCache().GetInformer(ctx, &v1alpha1.Proxy{})
	if err != nil {
		return fmt.Errorf("feed the fleet: %w", err)
	}
	g.mu.Lock()
	g.current = conn
	g.mu.Unlock()
	listed := map[fleet.Key]bool{}
	upsert := func(obj any) {
		if p, ok := obj.(*v1alpha1.Proxy); ok {
			g.pass(conn, func() {
				seen := fleet.FromObject(spoke, p)
				if mark := p.Annotations[v1alpha1.AnnotationHub]; mark != "" && mark != o.HubID {
					// Another hub's: leasing it too would exceed its maxLeases.
					f.Delete(seen.Key, seen.UID)
					return
				}
				f.Upsert(seen)
				if listed != nil {
					listed[seen.Key] = true
				}
			})
		}
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
					f.Delete(fleet.Key{Cluster: spoke, Namespace: p.Namespace, Name: p.Name}, string(p.UID))
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
	})
	return nil
}
