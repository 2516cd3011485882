package proxy

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/fairqueue"
	"github.com/proxyfleet/proxy-operator/internal/provider"
	"github.com/proxyfleet/proxy-operator/spoke/pod"
)

const (
	// reconcileTimeout bounds one pass: a spoke that hangs holds a worker no longer.
	reconcileTimeout = 30 * time.Second
	// noAnswer is the wait of a Proxy whose spoke does not answer.
	noAnswer = 5 * time.Second
	// notListed is that of one whose spoke is being taken into the fleet, which is
	// a matter of moments.
	notListed = 100 * time.Millisecond
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
	// Listed says whether the fleet shows all that an engaged spoke has: before
	// that, how many may be replaced is not known.
	Listed func(spoke string) bool
	// DefaultImage runs where spec.kubernetes.image is absent.
	DefaultImage string
	// MaxConcurrent is the number of Proxies worked on at once; 16 where zero.
	MaxConcurrent int
	// MaxUnavailable is how many of the Proxies that one edit of a Secret replaces
	// may be out of service at once.
	MaxUnavailable Limit
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
	r := &reconciler{Options: o, clusters: mgr.GetCluster, budget: newBudget(o.MaxUnavailable), pauses: newPauses(), fresh: newFresh()}
	refs := newReferences()
	r.secrets = newSecrets(refs)
	err := mcbuilder.ControllerManagedBy(mgr).
		Named("proxy").
		Watches(&v1alpha1.Proxy{}, onProxies(r.fresh)).
		Watches(&corev1.Pod{}, onPods, mcbuilder.OnlyMetadata).
		Watches(&corev1.Secret{}, onSecrets(refs), mcbuilder.OnlyMetadata).
		WatchesRawSource(fleetSource(o.Fleet, r.budget, refs)).
		WithOptions(controller.TypedOptions[mcreconcile.Request]{
			SkipNameValidation:      ptr.To(true), // names need be unique in a hub, not in a process
			MaxConcurrentReconciles: o.MaxConcurrent,
			ReconciliationTimeout:   reconcileTimeout,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[mcreconcile.Request](backoffBase, backoffCap),
			LogConstructor:          logConstructor(o.Log),
			NewQueue:                newQueue(o.MaxConcurrent),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the proxy controller: %w", err)
	}
	return nil
}

// newQueue shares the workers between spokes. A spoke may have a quarter of
// them: it takes four that hang at once, and have not been found out yet, to
// hold up a fifth.
func newQueue(workers int) func(string, workqueue.TypedRateLimiter[mcreconcile.Request]) queue {
	return func(name string, limiter workqueue.TypedRateLimiter[mcreconcile.Request]) queue {
		return fairqueue.New(fairqueue.Options[mcreconcile.Request]{
			Name: name, RateLimiter: limiter, Most: max(1, workers/4),
			Group: func(r mcreconcile.Request) string { return r.ClusterName.String() },
		})
	}
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

type reconciler struct {
	Options
	budget   *budget
	pauses   *pauses
	fresh    *fresh
	secrets  *secrets
	clusters func(context.Context, multicluster.ClusterName) (cluster.Cluster, error)
}

// Reconcile fetches one Proxy and hands it to a pass. A spoke that is not
// engaged is no error: its Proxies come again when it is.
func (r *reconciler) Reconcile(ctx context.Context, req mcreconcile.Request) (ctrl.Result, error) {
	name := req.ClusterName.String()
	cl, err := r.clusters(ctx, req.ClusterName)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !r.Answers(name) {
		return ctrl.Result{RequeueAfter: spread(noAnswer)}, nil
	}
	if !r.Listed(name) {
		return ctrl.Result{RequeueAfter: notListed}, nil
	}
	clusterUID, ok := r.ClusterUID(cl)
	if !ok {
		return ctrl.Result{}, multicluster.ErrClusterNotFound
	}
	p, err := r.read(ctx, cl, name, req.NamespacedName)
	if err != nil || p == nil {
		return ctrl.Result{}, err
	}
	var instances provider.Provider
	if p.Spec.Provider == v1alpha1.ProviderKubernetes {
		pods := pod.Provider{Reader: cl.GetAPIReader(), Writer: cl.GetClient(), DefaultImage: r.DefaultImage}
		instances = provider.Observed(pods, r.Recorder, string(p.Spec.Provider), name)
	}
	s := &pass{
		spoke: spoke{
			name: name, clusterUID: clusterUID, client: cl.GetClient(), direct: cl.GetAPIReader(),
			secrets:  r.secrets.of(name, clusterUID, cl.GetClient(), cl.GetAPIReader()),
			provider: instances,
			recorder: cl.GetEventRecorder("proxy-operator"),
		},
		hubID: r.HubID, providerConfig: r.DefaultImage, fleet: r.Fleet, budget: r.budget, pauses: r.pauses, fresh: r.fresh, now: time.Now,
	}
	res, err := s.run(ctx, p)
	if err == nil && !s.raced {
		// What comes again by itself makes way for what has news.
		res.Priority = ptr.To(handler.LowPriority)
	}
	return res, err
}

// read returns the Proxy as it is after this hub's own writes; nil when it is gone.
func (r *reconciler) read(ctx context.Context, cl cluster.Cluster, spoke string, key client.ObjectKey) (*v1alpha1.Proxy, error) {
	var p v1alpha1.Proxy
	err := cl.GetClient().Get(ctx, key, &p)
	if err == nil && r.fresh.behind(spoke, &p) {
		err = cl.GetAPIReader().Get(ctx, key, &p)
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read proxy: %w", err)
	}
	return &p, nil
}
