package agent

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

const (
	claimers   = 8
	apiTimeout = 10 * time.Second
)

// claim names one pod; the UID keeps a binding from reaching a namesake.
type claim struct {
	namespace, name string
	uid             types.UID
}

// claimPods binds every unscheduled pod that this node may run, until ctx ends. There is no
// scheduler; should there be other nodes, the API server decides who was first.
func (n *node) claimPods(ctx context.Context) {
	queue := workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[claim](100*time.Millisecond, 5*time.Second))
	var workers sync.WaitGroup
	for range claimers {
		workers.Go(func() {
			for n.bindNext(ctx, queue) {
			}
		})
	}
	consider := func(object any) {
		if pod := object.(*corev1.Pod); n.wants(pod) {
			queue.Add(claim{pod.Namespace, pod.Name, pod.UID})
		}
	}
	n.watch(ctx, "spec.nodeName=", cache.ResourceEventHandlerFuncs{
		AddFunc:    consider,
		UpdateFunc: func(_, object any) { consider(object) },
	})
	queue.ShutDown()
	workers.Wait()
}

func (n *node) wants(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && len(pod.Spec.SchedulingGates) == 0 &&
		pod.Spec.SchedulerName == corev1.DefaultSchedulerName &&
		labels.SelectorFromSet(pod.Spec.NodeSelector).Matches(labels.Set(nodeLabels(n.name)))
}

func (n *node) bindNext(ctx context.Context, queue workqueue.TypedRateLimitingInterface[claim]) bool {
	c, shutdown := queue.Get()
	if shutdown {
		return false
	}
	defer queue.Done(c)
	call, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	err := n.core.Pods(c.namespace).Bind(call, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: c.name, UID: c.uid},
		Target:     corev1.ObjectReference{Kind: "Node", Name: n.name},
	}, metav1.CreateOptions{})
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// Bound, gone, or somebody else's.
		queue.Forget(c)
	case ctx.Err() != nil:
	default:
		n.log.Warn("cannot bind pod, trying again", "namespace", c.namespace, "pod", c.name, "error", err)
		queue.AddRateLimited(c)
	}
	return true
}
