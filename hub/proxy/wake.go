package proxy

import (
	"context"
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	mchandler "sigs.k8s.io/multicluster-runtime/pkg/handler"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

type queue = workqueue.TypedRateLimitingInterface[mcreconcile.Request]

func request(k fleet.Key) mcreconcile.Request {
	return mcreconcile.Request{
		ClusterName: multicluster.ClusterName(k.Cluster),
		Request:     reconcile.Request{NamespacedName: types.NamespacedName{Namespace: k.Namespace, Name: k.Name}},
	}
}

// fleetSource wakes a Proxy whose verdict changed (by the engine, not by being
// withdrawn), which may be dialled now or may not any more, of which the fleet wants
// to know more, or which may be replaced now. It adds to the queue itself:
// there is no channel that could be full and lose one.
func fleetSource(f *fleet.Fleet, b *budget, refs *references) source.TypedSource[mcreconcile.Request] {
	return source.TypedFunc[mcreconcile.Request](func(_ context.Context, q queue) error {
		b.wake = func(key fleet.Key) { q.Add(request(key)) }
		f.Follow(func(c fleet.Change) {
			refs.observe(c)
			b.observe(c)
			switch {
			case c.New == nil:
			case judgedAnew(c) || asks(c) || barredAnew(c) && c.Old != nil:
				q.Add(request(c.New.Key))
			case barredAnew(c): // as a first list brings them
				addLow(q, request(c.New.Key))
			}
		})
		return nil
	})
}

func judgedAnew(c fleet.Change) bool {
	return c.Old != nil && c.Old.Verdict != c.New.Verdict && c.Old.Withdrawn == c.New.Withdrawn
}

func barredAnew(c fleet.Change) bool {
	var before fleet.Bar
	if c.Old != nil {
		before = c.Old.Barred
	}
	return c.New.Barred != before
}

// asks says that an instance came up whose credentials or authorities are not known.
func asks(c fleet.Change) bool {
	return c.New.Lacks() && c.New.Instance != "" && (c.Old == nil || c.Old.Instance != c.New.Instance || !c.Old.Lacks())
}

type handlers = mchandler.TypedEventHandlerFunc[client.Object, mcreconcile.Request]

// funcs are what a handler does about a spoke's objects.
type funcs = handler.TypedFuncs[client.Object, mcreconcile.Request]

// onProxies wakes a Proxy that came, or that somebody else has changed. One that
// was there before, as a first list brings it, makes way for what has news.
func onProxies(written *fresh) handlers {
	return func(spoke multicluster.ClusterName, _ cluster.Cluster) handler.TypedEventHandler[client.Object, mcreconcile.Request] {
		key := func(o client.Object) mcreconcile.Request {
			return request(fleet.Key{Cluster: spoke.String(), Namespace: o.GetNamespace(), Name: o.GetName()})
		}
		return funcs{
			CreateFunc: func(_ context.Context, e event.TypedCreateEvent[client.Object], q queue) {
				if p, ok := e.Object.(*v1alpha1.Proxy); ok && p.Status.ObservedGeneration == p.Generation {
					addLow(q, key(p))
					return
				}
				q.Add(key(e.Object))
			},
			UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[client.Object], q queue) {
				if !written.echo(spoke.String(), e.ObjectNew) {
					q.Add(key(e.ObjectNew))
				}
			},
		}
	}
}

// addLow adds at low priority, where the queue knows any.
func addLow(q queue, r mcreconcile.Request) {
	if p, ok := q.(priorityqueue.PriorityQueue[mcreconcile.Request]); ok {
		p.AddWithOpts(priorityqueue.AddOpts{Priority: ptr.To(handler.LowPriority)}, r)
		return
	}
	q.Add(r)
}

// onPods wakes the Proxy that a pod was made for when it changes or goes. That
// it came is no news: a pass has made it.
func onPods(spoke multicluster.ClusterName, _ cluster.Cluster) handler.TypedEventHandler[client.Object, mcreconcile.Request] {
	wake := func(o client.Object, q queue) {
		owner := metav1.GetControllerOf(o)
		if owner != nil && owner.Kind == "Proxy" && string(owner.UID) == o.GetLabels()[v1alpha1.LabelUID] {
			q.Add(request(fleet.Key{Cluster: spoke.String(), Namespace: o.GetNamespace(), Name: owner.Name}))
		}
	}
	return funcs{
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[client.Object], q queue) { wake(e.ObjectNew, q) },
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[client.Object], q queue) { wake(e.Object, q) },
	}
}

// onSecrets wakes the Proxies that refer to a Secret that came, changed or went.
// They make way for what has news of its own: there may be thousands of them, and
// a Secret may be written to all the time.
func onSecrets(refs *references) handlers {
	return func(spoke multicluster.ClusterName, _ cluster.Cluster) handler.TypedEventHandler[client.Object, mcreconcile.Request] {
		wake := func(o client.Object, q queue) {
			for _, key := range refs.of(shared{spoke.String(), o.GetNamespace(), o.GetName()}) {
				addLow(q, request(key))
			}
		}
		return funcs{
			CreateFunc: func(_ context.Context, e event.TypedCreateEvent[client.Object], q queue) { wake(e.Object, q) },
			UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[client.Object], q queue) {
				if e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion() {
					wake(e.ObjectNew, q)
				}
			},
			DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[client.Object], q queue) { wake(e.Object, q) },
		}
	}
}

// references knows which Proxies refer to a Secret.
type references struct {
	forget func(shared) // is called when nobody refers to a Secret any more

	mu     sync.Mutex
	byName map[shared]map[fleet.Key]bool
}

func newReferences() *references {
	return &references{forget: func(shared) {}, byName: map[shared]map[fleet.Key]bool{}}
}

// ifReferred runs f if a Proxy refers to the Secret, and before forget is called.
func (r *references) ifReferred(secret shared, f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.byName[secret]) > 0 {
		f()
	}
}

// observe follows the fleet.
func (r *references) observe(c fleet.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.New != nil {
		for _, secret := range c.New.References {
			s := shared{c.New.Cluster, c.New.Namespace, secret}
			if r.byName[s] == nil {
				r.byName[s] = map[fleet.Key]bool{}
			}
			r.byName[s][c.New.Key] = true
		}
	}
	if c.Old == nil {
		return
	}
	for _, secret := range c.Old.References {
		if c.New != nil && slices.Contains(c.New.References, secret) {
			continue
		}
		s := shared{c.Old.Cluster, c.Old.Namespace, secret}
		if delete(r.byName[s], c.Old.Key); len(r.byName[s]) == 0 {
			delete(r.byName, s)
			r.forget(s)
		}
	}
}

// of are the Proxies that refer to the Secret.
func (r *references) of(secret shared) []fleet.Key {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.byName[secret]))
}
