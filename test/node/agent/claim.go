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
)

const (
	claimers   = 8
	apiTimeout = 10 * time.Second

	// noFreePorts is a scheduler's message where no node has the host ports of a pod.
	noFreePorts = "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."
)

// claim names one pod; the UID keeps a binding from reaching a namesake.
type claim struct {
	namespace, name string
	uid             types.UID
}

func claimOf(pod *corev1.Pod) claim { return claim{pod.Namespace, pod.Name, pod.UID} }

// claimPods binds every unscheduled pod that this node may run, until the queue of claims is
// shut down. There is no scheduler; should there be other nodes, the API server decides who was
// first.
func (n *node) claimPods(ctx context.Context) {
	var workers sync.WaitGroup
	for range claimers {
		workers.Go(func() {
			for n.claimNext(ctx) {
			}
		})
	}
	workers.Wait()
}

func (n *node) wants(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && len(pod.Spec.SchedulingGates) == 0 &&
		pod.Spec.SchedulerName == corev1.DefaultSchedulerName &&
		labels.SelectorFromSet(pod.Spec.NodeSelector).Matches(labels.Set(nodeLabels(n.name)))
}

func (n *node) claimNext(ctx context.Context) bool {
	c, shutdown := n.claims.Get()
	if shutdown {
		return false
	}
	defer n.claims.Done(c)
	pod := n.known(c)
	if pod == nil || !n.wants(pod) {
		n.claims.Forget(c)
		return true
	}
	call, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	var err error
	if n.hostPorts.takeOrWait(pod) == nil {
		err = n.bind(call, c)
	} else {
		err = n.tellUnschedulable(call, pod)
	}
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// Done, or the watch is about to tell what has become of the pod. If it has told
		// already that the pod is gone, that was before the pod had its host ports.
		n.claims.Forget(c)
		if n.known(c) == nil {
			n.freeHostPorts(c.uid)
		}
	case ctx.Err() != nil:
	default:
		n.log.Warn("cannot bind pod, trying again", "namespace", c.namespace, "pod", c.name, "error", err)
		n.claims.AddRateLimited(c)
	}
	return true
}

// known is the pod's newest state that the watch has told of; nil once it has told of the end.
func (n *node) known(c claim) *corev1.Pod {
	object, found, err := n.pods.GetStore().GetByKey(c.namespace + "/" + c.name)
	if err != nil || !found {
		return nil
	}
	if pod := object.(*corev1.Pod); pod.UID == c.uid {
		return pod
	}
	return nil
}

func (n *node) bind(ctx context.Context, c claim) error {
	return n.core.Pods(c.namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: c.name, UID: c.uid},
		Target:     corev1.ObjectReference{Kind: "Node", Name: n.name},
	}, metav1.CreateOptions{})
}

// tellUnschedulable says in a pod's status that it waits for a host port.
func (n *node) tellUnschedulable(ctx context.Context, pod *corev1.Pod) error {
	told := condition(corev1.PodScheduled, false, corev1.PodReasonUnschedulable, noFreePorts, metav1.Now().Rfc3339Copy())
	for _, c := range pod.Status.Conditions {
		if c.Type == told.Type && c.Status == told.Status && c.Reason == told.Reason && c.Message == told.Message {
			return nil
		}
	}
	status := pod.Status.DeepCopy()
	status.Conditions = setCondition(status.Conditions, told)
	// The version keeps it from a pod that another node has bound meanwhile.
	patch, err := statusPatch(map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
		map[string]any{"conditions": status.Conditions})
	if err != nil {
		return err
	}
	_, err = n.core.Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
