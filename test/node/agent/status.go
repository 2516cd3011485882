package agent

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// observation is all that a pod's status depends on besides the pod. At most one of waiting
// and running is set.
type observation struct {
	hostIP   string
	podIP    string
	accepted metav1.Time
	waiting  *corev1.ContainerStateWaiting
	running  *corev1.ContainerStateRunning
	// containerID and ready belong to the running container.
	containerID string
	ready       bool
	// lastExit is the end of the life before this one; nil in the first.
	lastExit *corev1.ContainerStateTerminated
	restarts int32
}

// podStatus is what a kubelet would write: the status before, with everything replaced that is
// a kubelet's to say. Transition times stay where nothing has changed, so that an unchanged
// observation gives an equal status.
func podStatus(pod *corev1.Pod, before corev1.PodStatus, o observation, now metav1.Time) corev1.PodStatus {
	status := *before.DeepCopy()
	status.Phase = corev1.PodPending
	if o.running != nil || o.lastExit != nil {
		status.Phase = corev1.PodRunning
	}
	if status.StartTime == nil {
		status.StartTime = &o.accepted
	}
	status.HostIP, status.HostIPs = o.hostIP, []corev1.HostIP{{IP: o.hostIP}}
	status.PodIP, status.PodIPs = o.podIP, []corev1.PodIP{{IP: o.podIP}}
	if o.podIP == "" {
		status.PodIPs = nil
	}
	status.ContainerStatuses = []corev1.ContainerStatus{containerStatus(&pod.Spec.Containers[0], o)}

	set := func(kind corev1.PodConditionType, ok bool, reason, message string) {
		status.Conditions = setCondition(status.Conditions, condition(kind, ok, reason, message, now))
	}
	reason, message := "", ""
	if !o.ready {
		reason = "ContainersNotReady"
		message = fmt.Sprintf("containers with unready status: [%s]", pod.Spec.Containers[0].Name)
	}
	set(corev1.PodScheduled, true, "", "")
	set(corev1.PodInitialized, true, "", "")
	set(corev1.ContainersReady, o.ready, reason, message)
	set(corev1.PodReady, o.ready, reason, message)
	return status
}

func containerStatus(c *corev1.Container, o observation) corev1.ContainerStatus {
	started := o.running != nil
	status := corev1.ContainerStatus{
		Name:         c.Name,
		Image:        c.Image,
		State:        corev1.ContainerState{Waiting: o.waiting, Running: o.running},
		Ready:        o.ready,
		Started:      &started,
		RestartCount: o.restarts,
	}
	if o.lastExit != nil {
		status.LastTerminationState.Terminated = o.lastExit
		status.ContainerID = o.lastExit.ContainerID
	}
	if started {
		status.ContainerID = o.containerID
		status.ImageID = c.Image
	}
	return status
}

func condition(kind corev1.PodConditionType, ok bool, reason, message string, now metav1.Time) corev1.PodCondition {
	c := corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: now}
	if !ok {
		c.Status = corev1.ConditionFalse
	}
	return c
}

// setCondition replaces the condition of the same type, keeping its transition time if the
// status is the same, or appends it.
func setCondition(conditions []corev1.PodCondition, c corev1.PodCondition) []corev1.PodCondition {
	i := slices.IndexFunc(conditions, func(old corev1.PodCondition) bool { return old.Type == c.Type })
	if i < 0 {
		return append(conditions, c)
	}
	old := conditions[i]
	c.ObservedGeneration = old.ObservedGeneration
	if old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	conditions[i] = c
	return conditions
}

// previousLife reads from a pod's status what an earlier life of this node left behind: its
// process is gone, the pod is to be run again.
func previousLife(status corev1.PodStatus, now metav1.Time) observation {
	o := observation{accepted: now}
	if len(status.ContainerStatuses) == 0 {
		return o
	}
	c := status.ContainerStatuses[0]
	o.restarts, o.lastExit = c.RestartCount, c.LastTerminationState.Terminated
	if c.State.Running != nil {
		o.lastExit = &corev1.ContainerStateTerminated{
			ExitCode: 137, Reason: "Error", Message: "ended with its node",
			StartedAt: c.State.Running.StartedAt, FinishedAt: now, ContainerID: c.ContainerID,
		}
	}
	return o
}
