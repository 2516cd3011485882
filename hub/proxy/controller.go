package proxy

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/provider"
	"github.com/proxyfleet/proxy-operator/spoke/pod"
)

const (
	// reconcileTimeout bounds one pass: a spoke that hangs holds a worker no longer.
	reconcileTimeout = 30 * time.Second
	// laneFull and noAnswer are the waits of a Proxy whose spoke has all the
	// workers that it may have, or does not answer.
	laneFull, noAnswer = time.Second, 5 * time.Second
	// Backoff of a Proxy whose pass failed. The library's own cap is a
	// thousand seconds, which a user takes for a dead operator.
	backoffBase, backoffCap = 500 * time.Millisecond, 30 * time.Second
)

// Options configure the controller.
type Options struct {
	Fleet *fleet.Fleet
	// HubID marks what is ours.
	HubID string
	// ClusterUID returns the identity of a cluster that the manager gave out.
	ClusterUID func(cluster.Cluster) (string, bool)
	// Answers says whether an engaged spoke answers, as far as is known: in one
	// that does not, nothing is reconciled.
	Answers func(spoke string) bool
	// DefaultImage runs where spec.kubernetes.image is absent.
	DefaultImage string
	// MaxConcurrent is the number of Proxies worked on at once; 16 where zero.
	MaxConcurrent int
	// Recorder is told of every provider call.
	Recorder provider.Recorder
	// Log is the base of the controller's lines.
	Log logr.Logger
}

// SetUp adds the controller to the manager.
func SetUp(mgr mcmanager.Manager, o Options) error {
	if o.MaxConcurrent == 0 {
		o.MaxConcurrent = 16
	}
	// A quarter of the workers: it takes four spokes that hang at once, and have
	// not been found out yet, to hold up a fifth.
	r := &reconciler{Options: o, clusters: mgr.GetCluster, lanes: newLanes(max(1, o.MaxConcurrent/4))}
	err := mcbuilder.ControllerManagedBy(mgr).
		Named("proxy").
		For(&v1alpha1.Proxy{}).
		WatchesRawSource(verdictSource(o.Fleet)).
		WithOptions(controller.TypedOptions[mcreconcile.Request]{
			SkipNameValidation:      ptr.To(true), // names need be unique in a hub, not in a process
			MaxConcurrentReconciles: o.MaxConcurrent,
			ReconciliationTimeout:   reconcileTimeout,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[mcreconcile.Request](backoffBase, backoffCap),
			LogConstructor:          logConstructor(o.Log),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the proxy controller: %w", err)
	}
	return nil
}

// logConstructor puts spoke, namespace and name on every line of a pass; the
// library's own carries neither.
func logConstructor(base logr.Logger) func(*mcreconcile.Request) logr.Logger {
	return func(req *mcreconcile.Request) logr.Logger {
		if req == nil {
			return base
		}
		return base.WithValues("spoke", req.ClusterName, "namespace", req.Namespace, "name", req.Name)
	}
}

// verdictSource wakes a Proxy whose verdict changed. It adds to the queue
// itself: there is no channel that could be full and lose one.
func verdictSource(f *fleet.Fleet) source.TypedSource[mcreconcile.Request] {
	return source.TypedFunc[mcreconcile.Request](func(_ context.Context, q workqueue.TypedRateLimitingInterface[mcreconcile.Request]) error {
		f.Follow(func(c fleet.Change) {
			if c.Old != nil && c.New != nil && c.Old.Verdict != c.New.Verdict {
				q.Add(request(c.New.Key))
			}
		})
		return nil
	})
}

func request(k fleet.Key) mcreconcile.Request {
	return mcreconcile.Request{
		ClusterName: multicluster.ClusterName(k.Cluster),
		Request:     reconcile.Request{NamespacedName: types.NamespacedName{Namespace: k.Namespace, Name: k.Name}},
	}
}

type reconciler struct {
	Options
	lanes    *lanes
	clusters func(context.Context, multicluster.ClusterName) (cluster.Cluster, error)
}

// Reconcile fetches one Proxy and hands it to a pass. A spoke that is not
// engaged is no error: its Proxies come again when it is.
func (r *reconciler) Reconcile(ctx context.Context, req mcreconcile.Request) (ctrl.Result, error) {
	spoke := req.ClusterName.String()
	cl, err := r.clusters(ctx, req.ClusterName)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !r.Answers(spoke) {
		return ctrl.Result{RequeueAfter: spread(noAnswer)}, nil
	}
	leave, ok := r.lanes.enter(spoke)
	if !ok {
		return ctrl.Result{RequeueAfter: spread(laneFull)}, nil
	}
	defer leave()
	clusterUID, ok := r.ClusterUID(cl)
	if !ok {
		return ctrl.Result{}, multicluster.ErrClusterNotFound
	}
	var p v1alpha1.Proxy
	if err := cl.GetClient().Get(ctx, req.NamespacedName, &p); err != nil {
		if apierrors.IsNotFound(err) {
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("read proxy: %w", err)
	}
	pods := pod.Provider{Reader: cl.GetAPIReader(), Writer: cl.GetClient()}
	s := &pass{
		spoke:    spoke,
		owner:    provider.Owner{Hub: r.HubID, ClusterUID: clusterUID},
		client:   cl.GetClient(),
		provider: provider.Observed(pods, r.Recorder, string(v1alpha1.ProviderKubernetes), spoke),
		fleet:    r.Fleet,
		image:    r.DefaultImage,
	}
	return s.run(ctx, &p)
}
