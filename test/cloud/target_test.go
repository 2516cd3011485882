package cloud

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func runningPod(name string, modify ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
			{Name: "metrics", ContainerPort: 9090}, {Name: "proxy", ContainerPort: 3128},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "127.20.0.1"},
	}
	for _, f := range modify {
		f(pod)
	}
	return pod
}

func ready(pod *corev1.Pod) {
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
}

func deleted(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{} }

// Traffic must go to no pod that cannot take it, and rather to one that says that it can.
func TestChoose(t *testing.T) {
	pending := runningPod("pending", func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodPending })
	nowhere := runningPod("nowhere", ready, func(pod *corev1.Pod) { pod.Status.PodIP = "" })
	for _, c := range []struct {
		name string
		pods []*corev1.Pod
		want string
	}{
		{"no pods", nil, ""},
		{"none that runs", []*corev1.Pod{pending, nowhere, runningPod("deleted", ready, deleted)}, ""},
		{"one that is not ready", []*corev1.Pod{pending, runningPod("unready")}, "unready"},
		{"a ready one among others", []*corev1.Pod{runningPod("a"), runningPod("ready", ready), runningPod("b")}, "ready"},
		{"a replacement that is not ready yet", []*corev1.Pod{runningPod("old", ready, deleted), runningPod("new")}, "new"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 20 {
				got := ""
				if pod := choose(c.pods); pod != nil {
					got = pod.Name
				}
				if got != c.want {
					t.Fatalf("chose %q, want %q", got, c.want)
				}
			}
		})
	}
}

func TestTargetPort(t *testing.T) {
	for _, c := range []struct {
		name   string
		target intstr.IntOrString
		want   int32
		ok     bool
	}{
		{"none is the port itself", intstr.IntOrString{}, 80, true},
		{"a number", intstr.FromInt32(3128), 3128, true},
		{"a name", intstr.FromString("proxy"), 3128, true},
		{"a name that the pod does not know", intstr.FromString("typo"), 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok := targetPort(corev1.ServicePort{Port: 80, TargetPort: c.target}, runningPod("pod"))
			if got != c.want || ok != c.ok {
				t.Errorf("%d, %t; want %d, %t", got, ok, c.want, c.ok)
			}
		})
	}
}
