// Package pod runs an instance as a pod in the Proxy's own namespace of its own
// spoke. What the pod is (build.go) and how a pod reads as an instance
// (instance.go) are pure functions, as is the class of an API server's refusal
// (errors.go); this file only talks to the API server. The Service of one that is
// exposed by a load balancer is all in service.go.
//
// A pod's files are in a Secret of its own: immutable, made before the pod, and
// removed once no instance needs it. Pods and Secrets are read directly and
// never cached whole: a spoke may hold many thousands that are none of ours.
package pod

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete;patch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;create;delete;patch

// pageSize is how many pods are listed at a time where nothing else is said.
const pageSize = 500

// Provider implements provider.Provider with the pods of one spoke.
type Provider struct {
	// Reader reads from the API server, not from a cache.
	Reader client.Reader
	// Writer creates, changes and deletes.
	Writer client.Writer
	// DefaultImage runs where the spec names none.
	DefaultImage string
	// Namespaces are the only ones that the hub may work in; empty: all.
	Namespaces []string

	// pageSize is how many pods are listed at a time; 500 where zero.
	pageSize int64
}

var _ provider.Provider = Provider{}

// Create implements provider.Provider.
func (p Provider) Create(ctx context.Context, req provider.CreateRequest) (provider.Instance, error) {
	if err := p.prepare(ctx, req); err != nil {
		return provider.Instance{}, err
	}
	pod := build(req, p.DefaultImage)
	if err := p.Writer.Create(ctx, pod); err != nil {
		return provider.Instance{}, fmt.Errorf("create pod %s/%s: %w", req.Ref.Namespace, req.Ref.Name, refused(err))
	}
	return instance(pod), nil
}

// prepare makes what the pod needs and removes what its predecessors needed: there
// is no pod of that name now, or Create fails.
func (p Provider) prepare(ctx context.Context, req provider.CreateRequest) error {
	if err := p.prepareFiles(ctx, req); err != nil {
		return err
	}
	if req.Spec.ExposedAs() == v1alpha1.ExposeLoadBalancer {
		return p.expose(ctx, req)
	}
	return p.conceal(ctx, req.Ref, req.Owner)
}

func (p Provider) prepareFiles(ctx context.Context, req provider.CreateRequest) error {
	secrets, err := p.secrets(ctx, req.Ref, req.Owner)
	if err != nil {
		return err
	}
	there := false
	for _, s := range secrets {
		if len(req.Files) > 0 && s.Name == filesName(req.Ref, req.SpecHash) {
			there = true
			continue
		}
		if err := p.delete(ctx, s, &client.DeleteOptions{}); err != nil {
			return err
		}
	}
	if len(req.Files) == 0 {
		return nil
	}
	if !there {
		secret := buildFiles(req)
		err := p.Writer.Create(ctx, secret)
		if err == nil {
			return nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create secret %s/%s: %w", secret.Namespace, secret.Name, refusedFiles(err))
		}
		// Somebody else's, or of a hub that led a moment ago.
	}
	return p.check(ctx, req)
}

// check holds the Secret that is there already against the one that its name
// stands for.
func (p Provider) check(ctx context.Context, req provider.CreateRequest) error {
	var secret corev1.Secret
	key := client.ObjectKey{Namespace: req.Ref.Namespace, Name: filesName(req.Ref, req.SpecHash)}
	if err := p.Reader.Get(ctx, key, &secret); err != nil {
		return fmt.Errorf("get secret %s: %w", key, refused(err))
	}
	ours := ownerOf(&secret) == req.Owner && ptr.Deref(secret.Immutable, false)
	switch {
	case !ours || !maps.EqualFunc(secret.Data, req.Files, slices.Equal):
		return fmt.Errorf("create secret %s: %w", key, errNotOurFiles)
	case !secret.DeletionTimestamp.IsZero():
		return fmt.Errorf("create secret %s: %w", key, errFilesGoing)
	}
	return nil
}

// Get implements provider.Provider.
func (p Provider) Get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	pod, err := p.get(ctx, ref)
	if err != nil {
		return provider.Instance{}, err
	}
	if !balanced(pod) {
		return instance(pod), nil
	}
	service, err := p.service(ctx, ref)
	if err != nil {
		return provider.Instance{}, err
	}
	return instanceAt(pod, behind(pod, service)), nil
}

func (p Provider) get(ctx context.Context, ref provider.Ref) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := p.Reader.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, pod); err != nil {
		return nil, fmt.Errorf("get pod %s/%s: %w", ref.Namespace, ref.Name, Classified(err))
	}
	return pod, nil
}

// Files implements provider.Provider.
func (p Provider) Files(ctx context.Context, ref provider.Ref, specHash string) (map[string][]byte, error) {
	var secret corev1.Secret
	key := client.ObjectKey{Namespace: ref.Namespace, Name: filesName(ref, specHash)}
	if err := p.Reader.Get(ctx, key, &secret); err != nil && !missing(err) {
		return nil, fmt.Errorf("get secret %s: %w", key, Classified(err))
	}
	return secret.Data, nil
}

// Delete implements provider.Provider.
func (p Provider) Delete(ctx context.Context, ref provider.Ref, id string, forced bool) error {
	pod := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name, UID: types.UID(id)}}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	options := &client.DeleteOptions{}
	if forced {
		options.GracePeriodSeconds = ptr.To[int64](0)
	}
	return p.delete(ctx, pod, options)
}

// delete deletes the object with this UID and no namesake. One that is gone is
// success.
func (p Provider) delete(ctx context.Context, o *metav1.PartialObjectMetadata, options *client.DeleteOptions) error {
	options.Preconditions = &metav1.Preconditions{UID: &o.UID}
	err := p.Writer.Delete(ctx, o, options)
	if err == nil || missing(err) {
		return nil
	}
	if apierrors.IsConflict(err) {
		// Either of a namesake's UID, and then the one that was meant is gone, or of a
		// write at the same moment.
		if now, readErr := p.metadata(ctx, o.Kind, client.ObjectKeyFromObject(o)); readErr == nil && (now == nil || now.UID != o.UID) {
			return nil
		}
	}
	return fmt.Errorf("delete %s %s/%s: %w", strings.ToLower(o.Kind), o.Namespace, o.Name, refusedOf(o.Kind, err))
}

// Clear implements provider.Provider.
func (p Provider) Clear(ctx context.Context, ref provider.Ref, owner provider.Owner) error {
	secrets, err := p.secrets(ctx, ref, owner)
	if err != nil {
		return err
	}
	for _, s := range secrets {
		if err := p.delete(ctx, s, &client.DeleteOptions{}); err != nil {
			return err
		}
	}
	return p.conceal(ctx, ref, owner)
}

// Abandon implements provider.Provider. A collector deletes what refers to an
// owner that is gone, so the reference goes as well. The pod comes last: while
// it carries the marks, whatever is interrupted here is done again.
func (p Provider) Abandon(ctx context.Context, ref provider.Ref, owner provider.Owner, id string) error {
	pod, err := p.metadata(ctx, "Pod", client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name})
	if err != nil {
		return err
	}
	switch {
	case pod == nil:
		return nil
	case string(pod.UID) != id:
		return fmt.Errorf("disown pod %s/%s: %w: it is another one by now", ref.Namespace, ref.Name, provider.ErrTransient)
	}
	// Only what it needs: the rest is collected with the Proxy.
	needs := []need{{"Secret", filesName(ref, pod.Labels[v1alpha1.LabelSpecHash])}}
	if access := accessOf(pod); access != nil && access.Expose == v1alpha1.ExposeLoadBalancer {
		needs = append(needs, need{"Service", ref.Name})
	}
	for _, n := range needs {
		o, err := p.metadata(ctx, n.kind, client.ObjectKey{Namespace: ref.Namespace, Name: n.name})
		if err != nil {
			return err
		}
		if o != nil && ownerOf(o) == owner {
			if err := p.disown(ctx, o, owner); err != nil {
				return err
			}
		}
	}
	return p.disown(ctx, pod, owner)
}

// need is what an instance needs beside itself.
type need struct{ kind, name string }

// metadata reads an object's; nil where there is none.
func (p Provider) metadata(ctx context.Context, kind string, key client.ObjectKey) (*metav1.PartialObjectMetadata, error) {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	if err := p.Reader.Get(ctx, key, o); missing(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("get %s %s: %w", strings.ToLower(kind), key, Classified(err))
	}
	return o, nil
}

// disown takes the marks of ownership off an object: those that are the owner's,
// whatever else is there.
func (p Provider) disown(ctx context.Context, o *metav1.PartialObjectMetadata, owner provider.Owner) error {
	base := o.DeepCopy()
	if o.Labels[v1alpha1.LabelUID] != owner.ProxyUID && !slices.ContainsFunc(o.OwnerReferences, func(r metav1.OwnerReference) bool { return string(r.UID) == owner.ProxyUID }) {
		return nil // another Proxy's, or nobody's
	}
	o.OwnerReferences = slices.DeleteFunc(o.OwnerReferences, func(r metav1.OwnerReference) bool { return string(r.UID) == owner.ProxyUID })
	for label, value := range ownership(owner) {
		if o.Labels[label] == value {
			delete(o.Labels, label)
		}
	}
	if equality.Semantic.DeepEqual(base, o) {
		return nil
	}
	// The lock: the list of owners is replaced as a whole.
	if err := p.Writer.Patch(ctx, o, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil && !missing(err) {
		return fmt.Errorf("disown %s %s/%s: %w", strings.ToLower(o.Kind), o.Namespace, o.Name, refusedOf(o.Kind, err))
	}
	return nil
}

// refusedOf classifies a refusal, without foreign words where they may be about a
// Secret.
func refusedOf(kind string, err error) error {
	switch kind {
	case "Secret":
		return refusedFiles(err)
	case "Service":
		return refusedService(err)
	default:
		return Classified(err)
	}
}

// ListByTag implements provider.Provider. A scope is a namespace, or "" for the
// whole cluster. Services are not read for it: an instance behind a load balancer
// is listed without its Host, and so as one that does not run yet.
func (p Provider) ListByTag(ctx context.Context, hub string) (provider.Listing, error) {
	scopes := p.Namespaces
	if len(scopes) == 0 {
		scopes = []string{metav1.NamespaceAll}
	}
	var listing provider.Listing
	var failed error
	for _, scope := range scopes {
		instances, err := p.list(ctx, scope, hub)
		if err != nil {
			failed = err
			listing.Unanswered = append(listing.Unanswered, scope)
			continue
		}
		listing.Instances = append(listing.Instances, instances...)
	}
	if len(listing.Unanswered) == len(scopes) {
		return listing, fmt.Errorf("list pods of hub %s: %w", hub, Classified(failed))
	}
	return listing, nil
}

// list lists one scope, wholly or not at all.
func (p Provider) list(ctx context.Context, namespace, hub string) ([]provider.Instance, error) {
	var all []provider.Instance
	var page corev1.PodList
	limit := client.Limit(cmp.Or(p.pageSize, pageSize))
	for {
		err := p.Reader.List(ctx, &page, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelHub: hub}, limit, client.Continue(page.Continue))
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			all = append(all, instance(&page.Items[i]))
		}
		if page.Continue == "" {
			return all, nil
		}
	}
}

// secrets are those that were made for instances of the Proxy.
func (p Provider) secrets(ctx context.Context, ref provider.Ref, owner provider.Owner) ([]*metav1.PartialObjectMetadata, error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	if err := p.Reader.List(ctx, &list, client.InNamespace(ref.Namespace), client.MatchingLabels(ownership(owner))); err != nil {
		return nil, fmt.Errorf("list secrets of %s/%s: %w", ref.Namespace, ref.Name, Classified(err))
	}
	all := make([]*metav1.PartialObjectMetadata, len(list.Items))
	for i := range list.Items {
		all[i] = &list.Items[i]
		all[i].SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	}
	return all, nil
}
