package proxy

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// attempts is how often one write is tried against somebody who keeps writing
// to the same object. Between two there is a read.
const attempts = 5

// claim puts the hub's mark and, on a Managed Proxy, the finalizer and its first
// spec hash on the object, in one write and before the first outside effect: an
// instance must never exist for a Proxy that could vanish without us.
func (s *pass) claim(ctx context.Context, p *v1alpha1.Proxy, hash string) error {
	err := s.patch(ctx, p, p.Status.DeepCopy(), always, func(p *v1alpha1.Proxy) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[v1alpha1.AnnotationHub] = s.hubID
		if p.Spec.Mode == v1alpha1.ModeExternal {
			return
		}
		if hash != "" && p.Annotations[v1alpha1.AnnotationSpecHash] == "" {
			p.Annotations[v1alpha1.AnnotationSpecHash] = hash
		}
		controllerutil.AddFinalizer(p, v1alpha1.Finalizer)
	})
	if err != nil {
		return fmt.Errorf("claim proxy: %w", err)
	}
	return nil
}

// mark repeats on the Proxy the hash of the instance that comes next; "" is none.
func (s *pass) mark(ctx context.Context, p *v1alpha1.Proxy, hash string) error {
	if hash == "" || p.Annotations[v1alpha1.AnnotationSpecHash] == hash {
		return nil
	}
	staged := p.Status.DeepCopy()
	err := s.patch(ctx, p, s.base, once, func(p *v1alpha1.Proxy) { p.Annotations[v1alpha1.AnnotationSpecHash] = hash })
	staged.DeepCopyInto(&p.Status)
	switch {
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		return fmt.Errorf("mark proxy: %w", err)
	case err != nil:
		// It only repeats for people what is on the instance.
		log.FromContext(ctx).Error(err, "Cannot repeat the spec hash on the Proxy")
	}
	return nil
}

// release drops the finalizer; the API server then removes the object.
func (s *pass) release(ctx context.Context, p *v1alpha1.Proxy) error {
	err := s.patch(ctx, p, s.base, always, func(p *v1alpha1.Proxy) { controllerutil.RemoveFinalizer(p, v1alpha1.Finalizer) })
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("drop finalizer: %w", err)
	}
	s.pauses.forget(s.pausedAs(p))
	s.fresh.released(s.name, p)
	log.FromContext(ctx).Info("Proxy let go")
	return nil
}

// patch changes the object's metadata. The lock: a merge patch replaces the
// whole list of finalizers, and must not undo somebody else's. Somebody who
// changes labels and annotations all the time only makes it try again.
// status is the one that p has there.
func (s *pass) patch(ctx context.Context, p *v1alpha1.Proxy, status *v1alpha1.ProxyStatus, locks locking, change func(*v1alpha1.Proxy)) error {
	return s.retried(ctx, p, status, func(first bool) error {
		base := p.DeepCopy()
		change(p)
		if equality.Semantic.DeepEqual(base.ObjectMeta, p.ObjectMeta) {
			return nil
		}
		return s.client.Patch(ctx, p, mergeFrom(base, first || locks == always))
	})
}

// locking says when a write carries the version that it is made from.
type locking int

const (
	always locking = iota
	// once: at the first attempt, which may be made from a stale cache. Later ones
	// are made from what has just been read, and somebody who never stops writing
	// would win every time.
	once
)

func mergeFrom(base *v1alpha1.Proxy, locked bool) client.Patch {
	if locked {
		return client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	}
	return client.MergeFrom(base)
}

// patchStatus writes what was staged, if anything, and then tells what is worth
// an Event. The lock: a status that was derived from a stale cache would be
// written although nothing has changed, with transition times of its own. Nobody
// else writes a status, so it is for the first attempt alone.
func (s *pass) patchStatus(ctx context.Context, base, p *v1alpha1.Proxy) error {
	if equal(&base.Status, &p.Status) {
		return nil
	}
	staged := p.Status.DeepCopy()
	err := s.retried(ctx, p, &base.Status, func(first bool) error {
		before := p.DeepCopy()
		base.Status.DeepCopyInto(&before.Status)
		staged.DeepCopyInto(&p.Status)
		return s.client.Status().Patch(ctx, p, mergeFrom(before, first))
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("patch status: %w", err)
	}
	s.tell(p, &base.Status)
	return nil
}

// retried repeats a write that conflicts, on the object as it is by then, as
// long as it is only others' metadata that has changed. Anything else is for
// the next pass to look at. status is the one that p is known to have there.
func (s *pass) retried(ctx context.Context, p *v1alpha1.Proxy, status *v1alpha1.ProxyStatus, write func(first bool) error) error {
	was := p.DeepCopy()
	for attempt := 1; ; attempt++ {
		version := p.ResourceVersion
		err := write(attempt == 1)
		if err == nil && p.ResourceVersion != version {
			s.fresh.wrote(s.name, p)
		}
		if !apierrors.IsConflict(err) || attempt == attempts {
			return err
		}
		var now v1alpha1.Proxy
		if readErr := s.direct.Get(ctx, client.ObjectKeyFromObject(p), &now); readErr != nil {
			return readErr
		}
		if now.UID != was.UID || now.Generation != was.Generation || now.DeletionTimestamp.IsZero() != was.DeletionTimestamp.IsZero() ||
			now.Annotations[v1alpha1.AnnotationHub] != was.Annotations[v1alpha1.AnnotationHub] || !equal(&now.Status, status) {
			return err
		}
		s.raced = true
		now.DeepCopyInto(p)
	}
}
