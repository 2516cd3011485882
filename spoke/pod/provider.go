// Package pod runs an instance as a pod in the Proxy's own namespace of its own
// spoke. What the pod is and how a pod reads as an instance are pure functions
// (build.go); this file only talks to the API server. Pods are read directly
// and never cached: a spoke may hold many thousands that are none of ours.
package pod

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;create;delete

// Provider implements provider.Provider with the pods of one spoke.
type Provider struct {
	// Reader reads pods from the API server, not from a cache.
	Reader client.Reader
	// Writer creates and deletes them.
	Writer client.Writer
}

var _ provider.Provider = Provider{}

// Create implements provider.Provider.
func (p Provider) Create(ctx context.Context, req provider.CreateRequest) (provider.Instance, error) {
	pod := build(req)
	if err := p.Writer.Create(ctx, pod); err != nil {
		return provider.Instance{}, fmt.Errorf("create pod %s/%s: %w", req.Ref.Namespace, req.Ref.Name, classified(err))
	}
	return instance(pod), nil
}

// Get implements provider.Provider.
func (p Provider) Get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	var pod corev1.Pod
	if err := p.Reader.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &pod); err != nil {
		return provider.Instance{}, fmt.Errorf("get pod %s/%s: %w", ref.Namespace, ref.Name, classified(err))
	}
	return instance(&pod), nil
}

// Delete implements provider.Provider.
func (p Provider) Delete(ctx context.Context, ref provider.Ref, id string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name}}
	err := p.Writer.Delete(ctx, pod, client.Preconditions{UID: (*types.UID)(&id)})
	// A conflict is a namesake with another UID: the one that was meant is gone.
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("delete pod %s/%s: %w", ref.Namespace, ref.Name, classified(err))
}

// classified wraps the error class around an API server's answer.
func classified(err error) error {
	class := provider.ErrTransient
	switch {
	case apierrors.IsNotFound(err):
		class = provider.ErrNotFound
	case apierrors.IsAlreadyExists(err):
		class = provider.ErrExists
	case apierrors.IsInvalid(err):
		class = provider.ErrPermanent
	}
	return fmt.Errorf("%w: %w", class, err)
}
