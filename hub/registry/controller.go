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
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// countInterval is how often at most a Spoke is written because its counts
// have changed.
const countInterval = time.Minute

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
	counted   map[string]time.Time // when a Spoke's counts were written last
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

// wakeSource lets the registry put a spoke into the controller's queue.
func (c *secretController) wakeSource() source.Source {
	return source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		c.registry.mu.Lock()
		defer c.registry.mu.Unlock()
		c.registry.wake = func(name string) {
			q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: c.namespace, Name: name}})
		}
		return nil
	})
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
	if err := c.writeSpoke(ctx, req.NamespacedName, s.State()); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: countInterval}, nil
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
// that alone have changed wait until countInterval has passed.
func (c *secretController) writeSpoke(ctx context.Context, key types.NamespacedName, state State) error {
	spoke := &v1alpha1.Spoke{}
	err := c.client.Get(ctx, key, spoke)
	if apierrors.IsNotFound(err) {
		spoke = &v1alpha1.Spoke{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		err = c.client.Create(ctx, spoke)
		if apierrors.IsAlreadyExists(err) {
			return nil // the cache is behind; the watch brings it
		}
	}
	if err != nil {
		return fmt.Errorf("read or create spoke %s: %w", key.Name, err)
	}
	base := spoke.DeepCopy()
	fillStatus(&spoke.Status, state)
	proxies, instances := c.registry.Fleet.Count(key.Name)
	told := !equality.Semantic.DeepEqual(base.Status, spoke.Status)
	counts := spoke.Status.Proxies != int32(proxies) || spoke.Status.Instances != int32(instances)
	if !told && (!counts || time.Since(c.counted[key.Name]) < countInterval) {
		return nil
	}
	spoke.Status.Proxies, spoke.Status.Instances = int32(proxies), int32(instances)
	if err := client.IgnoreNotFound(c.client.Status().Patch(ctx, spoke, client.MergeFrom(base))); err != nil {
		return fmt.Errorf("patch spoke %s: %w", key.Name, err)
	}
	c.counted[key.Name] = time.Now()
	return nil
}
