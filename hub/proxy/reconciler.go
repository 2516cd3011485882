package proxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// +kubebuilder:rbac:groups=crawl.proxyfleet.dev,resources=proxies,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=crawl.proxyfleet.dev,resources=proxies/status,verbs=patch
// +kubebuilder:rbac:groups=crawl.proxyfleet.dev,resources=proxies/finalizers,verbs=update

// retrySoon is the wait after a conflict: normal, and over as soon as the
// cache has caught up.
const retrySoon = time.Second

// pass is one look at one Proxy: what Reconcile needs of the spoke that the
// Proxy lives in, and nothing of the others.
type pass struct {
	spoke    string
	owner    provider.Owner
	client   client.Client
	provider provider.Provider
	fleet    *fleet.Fleet
	image    string
	// written is condition Provisioned as the status had it before this pass.
	written *metav1.Condition
}

// run brings p one step further and writes its status if that changed.
func (s *pass) run(ctx context.Context, p *v1alpha1.Proxy) (ctrl.Result, error) {
	if hub := p.Annotations[v1alpha1.AnnotationHub]; hub != "" && hub != s.owner.Hub {
		log.FromContext(ctx).V(1).Info("Proxy is marked by another hub and left alone", "hub", hub)
		return ctrl.Result{}, nil
	}
	deleting := !p.DeletionTimestamp.IsZero()
	if deleting && p.Spec.Mode != v1alpha1.ModeExternal && !controllerutil.ContainsFinalizer(p, v1alpha1.Finalizer) {
		return ctrl.Result{}, nil
	}
	if !deleting {
		if err := s.claim(ctx, p); err != nil {
			return conflictLater(err)
		}
	}

	base := p.DeepCopy()
	s.written = meta.FindStatusCondition(base.Status.Conditions, v1alpha1.ConditionProvisioned)
	var res ctrl.Result
	var err error
	gone := false
	if p.Spec.Mode == v1alpha1.ModeExternal {
		s.external(p)
	} else {
		res, gone, err = s.managed(ctx, p)
	}
	if gone {
		return res, err
	}
	if patchErr := s.patchStatus(ctx, base, p); patchErr != nil {
		if err != nil {
			return ctrl.Result{}, errors.Join(err, patchErr)
		}
		return conflictLater(patchErr)
	}
	return res, err
}

// claim puts the hub's mark and, on a Managed Proxy, the finalizer and the
// spec hash on the object, in one write and before the first outside effect:
// an instance must never exist for a Proxy that could vanish without us.
func (s *pass) claim(ctx context.Context, p *v1alpha1.Proxy) error {
	base := p.DeepCopy()
	want := map[string]string{v1alpha1.AnnotationHub: s.owner.Hub}
	if p.Spec.Mode == v1alpha1.ModeManaged {
		hash, err := specHash(&p.Spec)
		if err != nil {
			return err
		}
		want[v1alpha1.AnnotationSpecHash] = hash
		controllerutil.AddFinalizer(p, v1alpha1.Finalizer)
	}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	for k, v := range want {
		p.Annotations[k] = v
	}
	if equality.Semantic.DeepEqual(base.ObjectMeta, p.ObjectMeta) {
		return nil
	}
	// The lock: a merge patch replaces the whole list of finalizers, and must
	// not undo somebody else's.
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := s.client.Patch(ctx, p, patch); err != nil {
		return fmt.Errorf("claim proxy: %w", err)
	}
	return nil
}

// external has nothing to bring up: the endpoint is in the spec.
func (s *pass) external(p *v1alpha1.Proxy) {
	if p.Spec.Endpoint == nil { // the CRD of its cluster does not ask for one
		setProvisioned(p, false, v1alpha1.ReasonPermanentError, "spec.endpoint is missing: give the proxy's host and port")
		finishStatus(p, s.seen(p), "")
		return
	}
	endpoint := net.JoinHostPort(p.Spec.Endpoint.Host, strconv.Itoa(int(p.Spec.Endpoint.Port)))
	p.Status.IP, p.Status.Endpoint = p.Spec.Endpoint.Host, endpoint
	setProvisioned(p, true, v1alpha1.ReasonExternalEndpoint, "the endpoint is in the spec")
	finishStatus(p, s.seen(p), endpoint)
}

// managed looks at the instance, does what the plan says and stages the status.
// gone says that the finalizer was dropped: there is no status to write any more.
func (s *pass) managed(ctx context.Context, p *v1alpha1.Proxy) (res ctrl.Result, gone bool, err error) {
	ref := provider.Ref{Namespace: p.Namespace, Name: provider.NameFromUID(string(p.UID))}
	owner := s.owner
	owner.ProxyUID = string(p.UID)
	hash, err := specHash(&p.Spec)
	if err != nil {
		return ctrl.Result{}, false, err
	}
	inst, err := s.look(ctx, ref)
	if err != nil {
		return s.failed(p, err)
	}
	next := plan(situation{
		deleting: !p.DeletionTimestamp.IsZero(), wantHash: hash, owner: owner, inst: inst,
		seenRunning: inst != nil && provisioned(p) && p.Status.ProviderID == inst.ProviderID,
	})
	if next.act != actRelease {
		// Staged before it is done: if doing it fails, what is known stands.
		s.stage(p, inst, owner, hash, next)
	}
	created, err := s.do(ctx, p, next.act, ref, owner, hash, inst)
	switch {
	case err != nil:
		return s.failed(p, err)
	case next.act == actRelease:
		return ctrl.Result{}, true, nil
	case created != nil:
		s.stage(p, created, owner, hash, next)
	}
	return ctrl.Result{RequeueAfter: spread(next.wait)}, false, nil
}

// stage puts what was seen and what the plan says about it into the status.
func (s *pass) stage(p *v1alpha1.Proxy, inst *provider.Instance, owner provider.Owner, hash string, next step) {
	if inst != nil && inst.Owner != owner && !next.provisioned {
		inst = nil // somebody else's: its id and address are not this Proxy's
	}
	setInstance(p, inst, hash)
	setProvisioned(p, next.provisioned, next.reason, next.message)
	finishStatus(p, s.seen(p), p.Status.ProviderID)
}

// look returns the instance, nil when there is none.
func (s *pass) look(ctx context.Context, ref provider.Ref) (*provider.Instance, error) {
	inst, err := s.provider.Get(ctx, ref)
	if errors.Is(err, provider.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &inst, nil
}

// do carries the plan out. It returns the instance that it made, if it did.
func (s *pass) do(ctx context.Context, p *v1alpha1.Proxy, a act, ref provider.Ref, owner provider.Owner, hash string, inst *provider.Instance) (*provider.Instance, error) {
	logger := log.FromContext(ctx)
	key := s.key(p)
	switch a {
	case actCreate:
		created, err := s.provider.Create(ctx, provider.CreateRequest{
			Ref: ref, Owner: owner, SpecHash: hash, Spoke: s.spoke, ProxyName: p.Name,
			Protocol: string(p.Spec.Protocol), Port: p.Spec.ListenPort(), Image: s.imageOf(p),
		})
		if err != nil {
			return nil, err
		}
		logger.Info("Created instance", "providerID", created.ProviderID, "specHash", hash)
		return &created, nil
	case actDelete:
		// Out of service first: from here on it is offered to nobody, although
		// the status does not say so yet.
		s.fleet.SetWithdrawn(key, inst.ProviderID, true)
		if err := s.provider.Delete(ctx, ref, inst.ID); err != nil {
			return nil, err
		}
		logger.Info("Deleting instance", "providerID", inst.ProviderID)
	case actRelease:
		return nil, s.release(ctx, p)
	case actNone:
		if inst != nil && inst.State != provider.StateDeleting {
			// A deletion that was begun and then not wanted any more.
			s.fleet.SetWithdrawn(key, inst.ProviderID, false)
		}
	}
	return nil, nil
}

// release drops the finalizer; the API server then removes the object.
func (s *pass) release(ctx context.Context, p *v1alpha1.Proxy) error {
	base := p.DeepCopy()
	controllerutil.RemoveFinalizer(p, v1alpha1.Finalizer)
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := client.IgnoreNotFound(s.client.Patch(ctx, p, patch)); err != nil {
		return fmt.Errorf("drop finalizer: %w", err)
	}
	log.FromContext(ctx).Info("Instance is gone, Proxy let go")
	return nil
}

// failed stages what a provider's error means. An instance that has been seen
// running stays provisioned: a provider's hiccup takes no proxy from anybody.
func (s *pass) failed(p *v1alpha1.Proxy, err error) (ctrl.Result, bool, error) {
	said := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionProvisioned)
	permanent := errors.Is(err, provider.ErrPermanent)
	switch {
	case apierrors.IsConflict(err) || errors.Is(err, provider.ErrExists):
		return ctrl.Result{RequeueAfter: spread(retrySoon)}, false, nil
	case permanent:
		setTrouble(p, s.written, false, v1alpha1.ReasonPermanentError, "this will not work until the spec is changed", err)
	case provisioned(p):
		setTrouble(p, s.written, true, v1alpha1.ReasonCreated, "the instance ran when it was last seen", err)
	case said != nil && (said.Reason == v1alpha1.ReasonReplacing || said.Reason == v1alpha1.ReasonDeleting):
		setTrouble(p, s.written, false, said.Reason, "the old instance is to go, and will be tried again", err)
	default:
		setTrouble(p, s.written, false, v1alpha1.ReasonTransientError, "this will be tried again", err)
	}
	finishStatus(p, s.seen(p), p.Status.ProviderID)
	if permanent {
		return ctrl.Result{}, false, nil
	}
	return ctrl.Result{}, false, err
}

// patchStatus writes what was staged, if anything. The lock: a status that was
// derived from a stale cache would be written although nothing has changed, with
// transition times of its own.
func (s *pass) patchStatus(ctx context.Context, base, p *v1alpha1.Proxy) error {
	if equal(&base.Status, &p.Status) {
		return nil
	}
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := client.IgnoreNotFound(s.client.Status().Patch(ctx, p, patch)); err != nil {
		return fmt.Errorf("patch status: %w", err)
	}
	return nil
}

func (s *pass) key(p *v1alpha1.Proxy) fleet.Key {
	return fleet.Key{Cluster: s.spoke, Namespace: p.Namespace, Name: p.Name}
}

func (s *pass) seen(p *v1alpha1.Proxy) *fleet.Proxy { return s.fleet.Get(s.key(p)) }

func (s *pass) imageOf(p *v1alpha1.Proxy) string {
	if p.Spec.Kubernetes != nil && p.Spec.Kubernetes.Image != "" {
		return p.Spec.Kubernetes.Image
	}
	return s.image
}

func conflictLater(err error) (ctrl.Result, error) {
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: spread(retrySoon)}, nil
	}
	return ctrl.Result{}, client.IgnoreNotFound(err) // it has gone meanwhile
}

// spread moves a wait by up to ±20%, so that a fleet does not march in step.
func spread(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
