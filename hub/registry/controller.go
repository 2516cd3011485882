package registry

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

const (
	// countInterval is how often at most a Spoke is written because its counts
	// have changed.
	countInterval = time.Minute
	// countDelay lets a burst of changes pass before the counts are looked at.
	countDelay = 2 * time.Second
)

// SecretSelector selects the Secrets that the hub's cache must hold, and no others.
func SecretSelector() map[string]string {
	return map[string]string{v1alpha1.LabelKubeconfig: "true"}
}

// SetUp adds the controller that reads kubeconfig Secrets and writes Spokes to
// the hub cluster's manager. The manager's cache must be limited to namespace,
// and its Secrets to SecretSelector.
func (r *Registry) SetUp(mgr manager.Manager, namespace string) error {
	c := &secretController{registry: r, client: mgr.GetClient(), namespace: namespace, counted: map[string]time.Time{}}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("spoke").
		For(&corev1.Secret{}).
		Watches(&v1alpha1.Spoke{}, &handler.EnqueueRequestForObject{}).
		WatchesRawSource(c.wakeSource()).
		WithOptions(controller.Options{
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](backoffFirst, backoffCap),
		}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("set up the spoke controller: %w", err)
	}
	return mgr.Add(manager.RunnableFunc(c.expect))
}

// secretController has one worker: it never waits for a spoke.
type secretController struct {
	registry  *Registry
	client    client.Client
	namespace string
	counted   map[string]time.Time // when a Spoke was written for its counts last
}

// expect tells the registry which spokes a starting hub has to wait for.
func (c *secretController) expect(ctx context.Context) error {
	var secrets corev1.SecretList
	if err := c.client.List(ctx, &secrets, client.InNamespace(c.namespace)); err != nil {
		return fmt.Errorf("list kubeconfig secrets: %w", err)
	}
	names := make([]string, 0, len(secrets.Items))
	for i := range secrets.Items {
		names = append(names, secrets.Items[i].Name)
	}
	c.registry.expect(names)
	return nil
}

// wakeSource puts a spoke into the controller's queue when the registry tells
// of a change, and a little later when its counts may have changed.
func (c *secretController) wakeSource() source.Source {
	return source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		request := func(name string) reconcile.Request {
			return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: c.namespace, Name: name}}
		}
		c.registry.mu.Lock()
		c.registry.wake = func(name string) { q.Add(request(name)) }
		c.registry.mu.Unlock()
		c.registry.Fleet.Follow(func(change fleet.Change) {
			if cluster, counts := countChanged(change); counts {
				q.AddAfter(request(cluster), countDelay)
			}
		})
		return nil
	})
}

// countChanged says which cluster's counts a change moves, if it does.
func countChanged(c fleet.Change) (cluster string, changed bool) {
	switch {
	case c.Old == nil:
		return c.New.Cluster, true
	case c.New == nil:
		return c.Old.Cluster, true
	default:
		return c.New.Cluster, (c.Old.Instance == "") != (c.New.Instance == "")
	}
}

// Reconcile makes the registry follow one Secret, and its Spoke the registry.
func (c *secretController) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var secret corev1.Secret
	err := c.client.Get(ctx, req.NamespacedName, &secret)
	if apierrors.IsNotFound(err) {
		c.registry.deregister(req.Name)
		delete(c.counted, req.Name)
		return ctrl.Result{}, c.deleteSpoke(ctx, req.NamespacedName)
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read kubeconfig secret %s: %w", req.Name, err)
	}
	s := c.registry.register(req.Name, secret.Data[v1alpha1.KubeconfigKey])
	wait, err := c.writeSpoke(ctx, req.NamespacedName, s.State())
	return ctrl.Result{RequeueAfter: wait}, err
}

func (c *secretController) deleteSpoke(ctx context.Context, key types.NamespacedName) error {
	spoke := &v1alpha1.Spoke{}
	if err := c.client.Get(ctx, key, spoke); err != nil {
		return client.IgnoreNotFound(err)
	}
	if err := client.IgnoreNotFound(c.client.Delete(ctx, spoke)); err != nil {
		return fmt.Errorf("delete spoke %s: %w", key.Name, err)
	}
	return nil
}

// writeSpoke writes the state if it differs from what the Spoke shows. Counts
// that alone have changed wait until countInterval has passed; how long is returned.
func (c *secretController) writeSpoke(ctx context.Context, key types.NamespacedName, state State) (time.Duration, error) {
	spoke := &v1alpha1.Spoke{}
	err := c.client.Get(ctx, key, spoke)
	if apierrors.IsNotFound(err) {
		spoke = &v1alpha1.Spoke{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		err = c.client.Create(ctx, spoke)
		if apierrors.IsAlreadyExists(err) {
			return 0, nil // the cache is behind; the watch brings it
		}
	}
	if err != nil {
		return 0, fmt.Errorf("read or create spoke %s: %w", key.Name, err)
	}
	base := spoke.DeepCopy()
	fillStatus(&spoke.Status, state)
	told := !equality.Semantic.DeepEqual(base.Status, spoke.Status)
	proxies, instances := c.registry.Fleet.Count(key.Name)
	spoke.Status.Proxies, spoke.Status.Instances = ptr.To(int32(proxies)), ptr.To(int32(instances))
	if equality.Semantic.DeepEqual(base.Status, spoke.Status) {
		return 0, nil
	}
	if wait := countInterval - time.Since(c.counted[key.Name]); !told && wait > 0 {
		return wait, nil
	}
	if err := client.IgnoreNotFound(c.client.Status().Patch(ctx, spoke, client.MergeFrom(base))); err != nil {
		return 0, fmt.Errorf("patch spoke %s: %w", key.Name, err)
	}
	if !told {
		c.counted[key.Name] = time.Now()
	}
	return 0, nil
}
