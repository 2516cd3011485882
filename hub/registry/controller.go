package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
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
	// countInterval is how often at most a Spoke is written because its counts,
	// or the words for the same fault, have changed.
	countInterval = time.Minute
	// countDelay lets a burst of changes pass before the counts are looked at.
	countDelay = 2 * time.Second
	// connectGrace is how long a hub that has just started leaves what a Spoke
	// shows of the one before it, until it has an opinion of its own.
	connectGrace = 15 * time.Second
)

// SecretSelector selects the Secrets that the hub's cache must hold, and no others.
func SecretSelector() map[string]string {
	return map[string]string{v1alpha1.LabelKubeconfig: "true"}
}

// SetUp adds the registry to the hub cluster's manager, with the controller that
// reads kubeconfig Secrets on every replica, and on the leader writes Spokes. The
// manager's cache must be limited to namespace, and its Secrets to SecretSelector.
func (r *Registry) SetUp(mgr manager.Manager, namespace string) error {
	c := &secretController{
		registry: r, client: mgr.GetClient(), events: mgr.GetEventRecorder("proxy-operator"), namespace: namespace, counted: map[string]time.Time{},
	}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("spoke").
		For(&corev1.Secret{}).
		Watches(&v1alpha1.Spoke{}, &handler.EnqueueRequestForObject{}).
		WatchesRawSource(c.wakeSource()).
		WithOptions(controller.Options{
			SkipNameValidation: ptr.To(true), // names need be unique in a hub, not in a process
			NeedLeaderElection: ptr.To(false),
			RateLimiter:        workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](backoffFirst, backoffCap),
		}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("set up the spoke controller: %w", err)
	}
	r.mu.Lock()
	r.catchUp = c.catchUp
	r.mu.Unlock()
	return errors.Join(mgr.Add(everywhere(c.expect)), mgr.Add(everywhere(r.Run)))
}

// secretController has one worker: it never waits for a spoke.
type secretController struct {
	registry  *Registry
	client    client.Client
	events    events.EventRecorder
	namespace string
	counted   map[string]time.Time // when a Spoke was written for its counts last
}

// expect tells the registry which spokes a starting hub has to wait for.
func (c *secretController) expect(ctx context.Context) error {
	var secrets corev1.SecretList
	if err := c.client.List(ctx, &secrets, client.InNamespace(c.namespace)); err != nil {
		return fmt.Errorf("list kubeconfig secrets: %w", err)
	}
	names := make([]string, 0, len(secrets.Items)+1)
	if c.registry.LocalSpoke != "" {
		names = append(names, c.registry.LocalSpoke)
	}
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
		if c.registry.LocalSpoke != "" {
			q.Add(request(c.registry.LocalSpoke)) // no Secret brings it
		}
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

// Reconcile makes the registry follow one Secret, and, where this hub leads, its
// Spoke the registry.
func (c *secretController) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	secret := &corev1.Secret{}
	err := c.client.Get(ctx, req.NamespacedName, secret)
	if apierrors.IsNotFound(err) || err == nil && !secret.DeletionTimestamp.IsZero() {
		secret, err = nil, nil // a finalizer of somebody may hold it for long
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read kubeconfig secret %s: %w", req.Name, err)
	}
	local := req.Name == c.registry.LocalSpoke
	if secret == nil && !local {
		c.registry.deregister(req.Name)
		delete(c.counted, req.Name)
		return ctrl.Result{}, c.deleteSpoke(ctx, req.NamespacedName)
	}
	reg := c.localRegistration(secret != nil)
	if !local {
		reg = secretRegistration(secret)
	}
	spoke, err := c.find(ctx, req.NamespacedName, reg.secret)
	if err != nil {
		return ctrl.Result{}, err
	}
	reg.pinned = spoke.Status.ClusterUID
	if local {
		reg.pinned = "" // the hub's own cluster is whichever it runs in
	}
	s := c.registry.register(req.Name, reg)
	if c.registry.leads() == nil {
		return ctrl.Result{}, nil
	}
	wait, err := c.writeSpoke(ctx, spoke, secretOwner(secret, local), s)
	return ctrl.Result{RequeueAfter: wait}, err
}

func secretRegistration(secret *corev1.Secret) registration {
	reg := registration{
		secret: string(secret.UID), created: secret.CreationTimestamp.Time, kubeconfig: secret.Data[v1alpha1.KubeconfigKey],
		accept: secret.Annotations[v1alpha1.AnnotationAcceptIdentity],
	}
	if said, is := secret.Annotations[v1alpha1.AnnotationPodNetwork]; is {
		reg.podNetwork = &said
	}
	if namespaces, limited := secret.Annotations[v1alpha1.AnnotationNamespaces]; limited {
		reg.namespaces = &namespaces
	}
	return reg
}

// localRegistration is that of the hub's own cluster: the oldest there is, so
// that a Secret which leads to it is the duplicate.
func (c *secretController) localRegistration(shadowed bool) registration {
	return registration{local: c.registry.Local, shadowed: shadowed}
}

// find returns the Spoke as it is, or an empty one when there is none, or when
// it is that of another Secret, which has had the name before.
func (c *secretController) find(ctx context.Context, key types.NamespacedName, secretUID string) (*v1alpha1.Spoke, error) {
	spoke := &v1alpha1.Spoke{}
	err := c.client.Get(ctx, key, spoke)
	if err == nil && ownerUID(spoke) != secretUID {
		err = c.deleteSpoke(ctx, key)
		spoke = nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read spoke %s: %w", key.Name, err)
	}
	if err != nil || spoke == nil {
		spoke = &v1alpha1.Spoke{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	}
	return spoke, nil
}

// secretOwner makes the Spoke go with its Secret, even while no hub runs.
func secretOwner(secret *corev1.Secret, local bool) []metav1.OwnerReference {
	if local {
		return nil
	}
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Secret", Name: secret.Name, UID: secret.UID}}
}

func ownerUID(spoke *v1alpha1.Spoke) string {
	for _, owner := range spoke.OwnerReferences {
		if owner.Kind == "Secret" {
			return string(owner.UID)
		}
	}
	return ""
}

// deleteSpoke deletes a Spoke that is not that of a Secret any more, where this hub leads.
func (c *secretController) deleteSpoke(ctx context.Context, key types.NamespacedName) error {
	if c.registry.leads() == nil {
		return nil
	}
	spoke := &v1alpha1.Spoke{}
	if err := c.client.Get(ctx, key, spoke); err != nil {
		return client.IgnoreNotFound(err)
	}
	if err := client.IgnoreNotFound(c.client.Delete(ctx, spoke, client.Preconditions{UID: &spoke.UID})); err != nil {
		return fmt.Errorf("delete spoke %s: %w", key.Name, err)
	}
	return nil
}

// writeSpoke writes the state if it differs from what the Spoke shows, and
// tells the transitions as Events. Counts and wordings that alone have changed
// wait until countInterval has passed; how long is returned.
func (c *secretController) writeSpoke(ctx context.Context, spoke *v1alpha1.Spoke, owner []metav1.OwnerReference, s *spoke) (time.Duration, error) {
	if spoke.UID == "" {
		spoke.OwnerReferences = owner
		err := c.client.Create(ctx, spoke)
		if apierrors.IsAlreadyExists(err) {
			return time.Second, nil // the cache is behind, or the one before it is going
		}
		if err != nil {
			return 0, fmt.Errorf("create spoke %s: %w", spoke.Name, err)
		}
	}
	state := s.State()
	if wait := connectGrace - time.Since(s.since); state.Reason == v1alpha1.ReasonConnecting && len(spoke.Status.Conditions) > 0 && wait > 0 {
		return wait, nil
	}
	base := spoke.DeepCopy()
	proxies, instances := c.registry.Fleet.Count(spoke.Name)
	if state.Path == pathUnknown && proxies == 0 && c.registry.Listed(spoke.Name) {
		state.dialled(false) // there is none of which anybody could say more
	}
	fillStatus(&spoke.Status, state)
	told := !equality.Semantic.DeepEqual(wordless(&base.Status), wordless(&spoke.Status))
	spoke.Status.Proxies, spoke.Status.Instances = ptr.To(int32(proxies)), ptr.To(int32(instances))
	if equality.Semantic.DeepEqual(base.Status, spoke.Status) {
		return 0, nil
	}
	if wait := countInterval - time.Since(c.counted[spoke.Name]); !told && wait > 0 {
		return wait, nil
	}
	after := spoke.Status.DeepCopy()
	if err := client.IgnoreNotFound(c.client.Status().Patch(ctx, spoke, client.MergeFrom(base))); err != nil {
		return 0, fmt.Errorf("patch spoke %s: %w", spoke.Name, err)
	}
	if !told {
		c.counted[spoke.Name] = time.Now()
	}
	for _, t := range transitions(&base.Status, after) {
		c.events.Eventf(spoke, nil, t.kind, t.reason, "Register", "%s", t.note)
	}
	return 0, nil
}
