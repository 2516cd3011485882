package agent

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// podWith is a pod whose container has these host ports, and one port that is no host port.
func podWith(uid types.UID, ports ...int32) *corev1.Pod {
	c := corev1.Container{Ports: []corev1.ContainerPort{{ContainerPort: 1}}}
	for _, port := range ports {
		c.Ports = append(c.Ports, corev1.ContainerPort{ContainerPort: port, HostPort: port})
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: string(uid), UID: uid},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{c}},
	}
}

// A host port must never be two pods', and never stay nobody's while a pod waits for it.
func TestHostPorts(t *testing.T) {
	h := newHostPorts()
	first, second, both, none := podWith("first", 3128), podWith("second", 3128), podWith("both", 8080, 3128), podWith("none")
	for _, pod := range []*corev1.Pod{none, first, first, none} {
		if err := h.takeOrWait(pod); err != nil {
			t.Errorf("pod %s: %v", pod.UID, err)
		}
	}
	for _, pod := range []*corev1.Pod{second, both, second} {
		if err := h.takeOrWait(pod); err == nil {
			t.Errorf("pod %s has a port that another has", pod.UID)
		}
	}
	if err := h.take(podWith("other", 8080)); err != nil {
		t.Errorf("a pod that waits keeps its other port from the rest: %v", err)
	}
	if waiting := h.release("none"); len(waiting) > 0 {
		t.Errorf("a pod without ports frees them for %v", waiting)
	}
	waiting := h.release("first")
	if len(waiting) != 2 || !slices.Contains(waiting, claimOf(second)) || !slices.Contains(waiting, claimOf(both)) {
		t.Errorf("waiting: %v", waiting)
	}
	if err := h.takeOrWait(second); err != nil {
		t.Error(err)
	}
	if err := h.takeOrWait(both); err == nil {
		t.Error("a port that was released is two pods'")
	}
	// One that goes while it waits is not asked again.
	if waiting := h.release("both"); len(waiting) > 0 {
		t.Errorf("waiting: %v", waiting)
	}
	if waiting := h.release("second"); len(waiting) > 0 {
		t.Errorf("waiting: %v", waiting)
	}
}
