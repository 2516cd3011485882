package agent

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	t0 = metav1.NewTime(time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC))
	t1 = metav1.NewTime(t0.Add(time.Minute))

	testPod = &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "proxy", Image: "image:1"}}}}
	running = &corev1.ContainerStateRunning{StartedAt: t0}
	exit137 = &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error", ContainerID: "process://1"}
)

func waiting(reason string) *corev1.ContainerStateWaiting {
	return &corev1.ContainerStateWaiting{Reason: reason}
}

// What the operator reads from a pod must be what a kubelet would have said.
func TestPodStatus(t *testing.T) {
	for _, c := range []struct {
		name        string
		seen        observation
		phase       corev1.PodPhase
		ready       corev1.ConditionStatus
		containerID string
	}{
		{"no image yet", observation{waiting: waiting("ErrImagePull")}, corev1.PodPending, corev1.ConditionFalse, ""},
		{"started, not ready", observation{running: running, containerID: "process://2"}, corev1.PodRunning, corev1.ConditionFalse, "process://2"},
		{"ready", observation{running: running, containerID: "process://2", ready: true}, corev1.PodRunning, corev1.ConditionTrue, "process://2"},
		{"crashed", observation{waiting: waiting("CrashLoopBackOff"), lastExit: exit137}, corev1.PodRunning, corev1.ConditionFalse, "process://1"},
		{"running again", observation{running: running, containerID: "process://2", ready: true, lastExit: exit137, restarts: 1}, corev1.PodRunning, corev1.ConditionTrue, "process://2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.seen.hostIP, c.seen.podIP, c.seen.accepted = "127.8.0.1", "127.20.0.1", t0
			status := podStatus(testPod, corev1.PodStatus{QOSClass: corev1.PodQOSBestEffort}, c.seen, t1)
			if status.Phase != c.phase || status.PodIP != "127.20.0.1" || status.PodIPs[0].IP != status.PodIP || status.HostIP != "127.8.0.1" || status.HostIPs[0].IP != status.HostIP {
				t.Errorf("phase %s, podIP %s, podIPs %v, hostIP %s, hostIPs %v", status.Phase, status.PodIP, status.PodIPs, status.HostIP, status.HostIPs)
			}
			if status.QOSClass != corev1.PodQOSBestEffort || !status.StartTime.Equal(&t0) {
				t.Errorf("qosClass %q, startTime %s", status.QOSClass, status.StartTime)
			}
			want := map[corev1.PodConditionType]corev1.ConditionStatus{
				corev1.PodScheduled: corev1.ConditionTrue, corev1.PodInitialized: corev1.ConditionTrue,
				corev1.ContainersReady: c.ready, corev1.PodReady: c.ready,
			}
			for _, condition := range status.Conditions {
				if condition.Status != want[condition.Type] {
					t.Errorf("condition %s is %s, want %s", condition.Type, condition.Status, want[condition.Type])
				}
				delete(want, condition.Type)
			}
			if len(want) > 0 {
				t.Errorf("missing conditions: %v", want)
			}
			container := status.ContainerStatuses[0]
			if container.Ready != c.seen.ready || container.RestartCount != c.seen.restarts || container.ContainerID != c.containerID ||
				container.State.Waiting != c.seen.waiting || container.State.Running != c.seen.running ||
				container.LastTerminationState.Terminated != c.seen.lastExit {
				t.Errorf("container %+v does not say %+v", container, c.seen)
			}
		})
	}
}

// A quiet pod must cause no writes: the same observation later is the same status.
func TestSameObservationIsSameStatus(t *testing.T) {
	seen := observation{podIP: "127.20.0.1", accepted: t0, running: running, ready: true}
	first := podStatus(testPod, corev1.PodStatus{}, seen, t0)
	if second := podStatus(testPod, first, seen, t1); !equality.Semantic.DeepEqual(first, second) {
		t.Errorf("%+v became %+v", first, second)
	}
}

// How long a pod has been (un)ready is read from the transition times.
func TestOnlyChangedConditionsMoveInTime(t *testing.T) {
	seen := observation{podIP: "127.20.0.1", accepted: t0, running: running}
	foreign := corev1.PodCondition{Type: "example.test/gate", Status: corev1.ConditionTrue, LastTransitionTime: t0}
	before := podStatus(testPod, corev1.PodStatus{Conditions: []corev1.PodCondition{foreign}}, seen, t0)
	seen.ready = true
	after := podStatus(testPod, before, seen, t1)
	for _, condition := range after.Conditions {
		want := t0
		if condition.Type == corev1.PodReady || condition.Type == corev1.ContainersReady {
			want = t1
		}
		if !condition.LastTransitionTime.Equal(&want) {
			t.Errorf("%s moved at %s, want %s", condition.Type, condition.LastTransitionTime, want)
		}
	}
	if !equality.Semantic.DeepEqual(after.Conditions[0], foreign) {
		t.Errorf("the condition of somebody else became %+v", after.Conditions[0])
	}
}

// A node that comes back must neither forget a pod's restarts nor invent an exit.
func TestPreviousLife(t *testing.T) {
	if o := previousLife(corev1.PodStatus{}, t1); o.lastExit != nil || o.restarts != 0 {
		t.Errorf("a new pod has a past: %+v", o)
	}
	ran := podStatus(testPod, corev1.PodStatus{}, observation{running: running, containerID: "process://7", restarts: 2}, t0)
	if o := previousLife(ran, t1); o.restarts != 2 || o.lastExit.ExitCode != 137 || o.lastExit.ContainerID != "process://7" || o.running != nil {
		t.Errorf("of a running container remains %+v", o)
	}
	crashed := podStatus(testPod, corev1.PodStatus{}, observation{waiting: waiting("CrashLoopBackOff"), lastExit: exit137, restarts: 2}, t0)
	if o := previousLife(crashed, t1); o.restarts != 2 || o.lastExit != exit137 {
		t.Errorf("of a crashed container remains %+v", o)
	}
}
