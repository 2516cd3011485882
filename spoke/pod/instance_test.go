package pod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// pods with modifiers: a pod is as the API server has just taken it but for these.

func phase(p corev1.PodPhase) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.Phase = p }
}

func address(ip string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.PodIP = ip }
}

func saying(reason, message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.Reason, pod.Status.Message = reason, message }
}

func condition(kind corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: status, Reason: reason, Message: message})
	}
}

func containerStatus(s corev1.ContainerStatus) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, s) }
}

func runs() func(*corev1.Pod) {
	return containerStatus(corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
}

func waits(reason, message string) func(*corev1.Pod) {
	return containerStatus(waiting(reason, message))
}

func waiting(reason, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
}

// crashes is a container that a kubelet does not start again yet. Its words have
// the seconds in them.
func crashes(last *corev1.ContainerStateTerminated) func(*corev1.Pod) {
	s := waiting("CrashLoopBackOff", "back-off 20s restarting failed container=proxy pod=proxy-u-1_crawl(pod-1)")
	s.LastTerminationState.Terminated = last
	return containerStatus(s)
}

func deleted(at time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: at} }
}

func podThat(changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := build(request(), "proxy:1")
	pod.Status.Phase = corev1.PodPending
	for _, change := range changes {
		change(pod)
	}
	return pod
}

var goneBy = time.Date(2026, 1, 2, 15, 4, 15, 0, time.UTC)

func TestStates(t *testing.T) {
	type is = []func(*corev1.Pod)
	for _, tc := range []struct {
		name string
		is   is
		want provider.State
		says string
	}{
		{"just created", is{}, provider.StateProvisioning, ""},
		{"no node for it", is{condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/3 nodes are available: 3 Insufficient cpu.")},
			provider.StateProvisioning, "Unschedulable: 0/3 nodes are available: 3 Insufficient cpu."},
		{"scheduled", is{condition(corev1.PodScheduled, corev1.ConditionTrue, "", "")}, provider.StateProvisioning, ""},
		{"image on its way", is{waits("ContainerCreating", "")}, provider.StateProvisioning, ""},
		{"behind the init containers that a mesh has put in", is{waits("PodInitializing", "")}, provider.StateProvisioning, ""},
		{"one of which cannot start", is{waits("PodInitializing", ""), func(pod *corev1.Pod) {
			pod.Status.InitContainerStatuses = []corev1.ContainerStatus{waiting("CreateContainerConfigError", `secret "mesh" not found`)}
		}}, provider.StateProvisioning, `CreateContainerConfigError: secret "mesh" not found`},
		{"a Secret of its env is missing", is{waits("CreateContainerConfigError", `secret "tokens" not found`)},
			provider.StateProvisioning, `CreateContainerConfigError: secret "tokens" not found`},
		{"crashes", is{crashes(&corev1.ContainerStateTerminated{ExitCode: 2, Reason: "Error"})}, provider.StateProvisioning, "CrashLoopBackOff: exit code 2"},
		{"crashes with last words", is{crashes(&corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "no such file"})},
			provider.StateProvisioning, "CrashLoopBackOff: exit code 1"},
		{"is killed for its memory", is{crashes(&corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"})},
			provider.StateProvisioning, "CrashLoopBackOff: exit code 137, OOMKilled"},
		{"crashes, nobody knows how", is{crashes(nil)}, provider.StateProvisioning, "CrashLoopBackOff"},
		{"runs, no address yet", is{phase(corev1.PodRunning), runs()}, provider.StateProvisioning, ""},
		{"runs", is{phase(corev1.PodRunning), runs(), address("10.0.0.1")}, provider.StateRunning, ""},
		{"runs, and is not ready", is{phase(corev1.PodRunning), runs(), address("10.0.0.1"), condition(corev1.PodReady, corev1.ConditionFalse, "ContainersNotReady", "containers with unready status: [proxy]")},
			provider.StateRunning, ""},
		{"runs, a container that was put in does not", is{phase(corev1.PodRunning), runs(), waits("ErrImageNeverPull", "not here"), address("10.0.0.1")},
			provider.StateProvisioning, "ErrImageNeverPull: not here"},
		{"runs, nothing is known of a container that was put in", is{phase(corev1.PodRunning), runs(), address("10.0.0.1"), func(pod *corev1.Pod) {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "mesh"})
		}}, provider.StateProvisioning, ""},
		{"evicted", is{phase(corev1.PodFailed), saying("Evicted", "The node was low on resource: memory. "), address("10.0.0.1")},
			provider.StateStopped, "Evicted: The node was low on resource: memory. "},
		{"came to its end", is{phase(corev1.PodSucceeded)}, provider.StateStopped, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inst := instance(podThat(tc.is...))
			if inst.State != tc.want || inst.Message != tc.says {
				t.Errorf("%s %q, want %s %q", inst.State, inst.Message, tc.want, tc.says)
			}
			if !inst.GoneBy.IsZero() {
				t.Errorf("gone by %s, and nobody deletes it", inst.GoneBy)
			}
		})
	}
}

func TestADeletedPodSaysWhenItShouldBeGoneAndWhatMayKeepIt(t *testing.T) {
	type is = []func(*corev1.Pod)
	node := func(pod *corev1.Pod) { pod.Spec.NodeName = "node-1" }
	finalizers := func(pod *corev1.Pod) { pod.Finalizers = []string{"example.com/a", "example.com/b"} }
	for _, tc := range []struct {
		name string
		is   is
		says string
	}{
		{"nothing known", is{}, ""},
		{"running still", is{phase(corev1.PodRunning), runs(), address("10.0.0.1")}, ""},
		{"ended", is{phase(corev1.PodSucceeded)}, ""},
		{"held by somebody", is{finalizers}, "it has the finalizers example.com/a, example.com/b"},
		{"on a node", is{node}, "it is on node node-1"},
		{"its node does not answer", is{node, saying("NodeLost", "Node node-1 which was running pod proxy-u-1 is unresponsive")},
			"NodeLost: Node node-1 which was running pod proxy-u-1 is unresponsive; it is on node node-1"},
		{"tainted away", is{node, condition(corev1.DisruptionTarget, corev1.ConditionTrue, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")},
			"DeletionByTaintManager: Taint manager: deleting due to NoExecute taint; it is on node node-1"},
		{"was to be disrupted once", is{condition(corev1.DisruptionTarget, corev1.ConditionFalse, "PreemptionByScheduler", "")}, ""},
		{"all of it", is{node, finalizers}, "it has the finalizers example.com/a, example.com/b; it is on node node-1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inst := instance(podThat(append(tc.is, deleted(goneBy))...))
			if inst.State != provider.StateDeleting || inst.Message != tc.says || !inst.GoneBy.Equal(goneBy) {
				t.Errorf("%s %q gone by %s, want %q", inst.State, inst.Message, inst.GoneBy, tc.says)
			}
		})
	}
}

// The kubelet's words are those of pkg/kubelet/images/image_manager.go: of 1.36,
// which repeats the cause while it backs off, and of 1.31, which does not.
func TestAnImageThatCannotBePulledReadsTheSameWhileTheKubeletBacksOff(t *testing.T) {
	const cause = `failed to pull and unpack image "registry.example/proxy:1": not found`
	for _, tc := range []struct {
		name            string
		reason, message string
		says            string
	}{
		{"pulled", "ErrImagePull", cause, "ImagePullBackOff: " + cause},
		{"backing off", "ImagePullBackOff", `Back-off pulling image "registry.example/proxy:1": ErrImagePull: ` + cause, "ImagePullBackOff: " + cause},
		{"no signature", "SignatureValidationFailed", "image pull failed for registry.example/proxy:1 because the signature validation failed",
			"ImagePullBackOff: SignatureValidationFailed: image pull failed for registry.example/proxy:1 because the signature validation failed"},
		{"no signature, backing off", "ImagePullBackOff",
			`Back-off pulling image "registry.example/proxy:1": SignatureValidationFailed: image pull failed for registry.example/proxy:1 because the signature validation failed`,
			"ImagePullBackOff: SignatureValidationFailed: image pull failed for registry.example/proxy:1 because the signature validation failed"},
		{"registry down", "RegistryUnavailable", "image pull failed for registry.example/proxy:1 because the registry is unavailable: 503",
			"ImagePullBackOff: RegistryUnavailable: image pull failed for registry.example/proxy:1 because the registry is unavailable: 503"},
		{"registry down, backing off", "ImagePullBackOff",
			`Back-off pulling image "registry.example/proxy:1": RegistryUnavailable: image pull failed for registry.example/proxy:1 because the registry is unavailable: 503`,
			"ImagePullBackOff: RegistryUnavailable: image pull failed for registry.example/proxy:1 because the registry is unavailable: 503"},
		{"1.31, pulled", "ErrImagePull", "rpc error: code = NotFound desc = " + cause, "ImagePullBackOff: rpc error: code = NotFound desc = " + cause},
		{"1.31, backing off, without the cause", "ImagePullBackOff", `Back-off pulling image "registry.example/proxy:1"`, "ImagePullBackOff"},
		{"a name that is no name", "InvalidImageName", `Failed to apply default image tag "A": couldn't parse image name "A"`,
			`InvalidImageName: Failed to apply default image tag "A": couldn't parse image name "A"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if inst := instance(podThat(waits(tc.reason, tc.message))); inst.State != provider.StateProvisioning || inst.Message != tc.says {
				t.Errorf("%s %q, want %q", inst.State, inst.Message, tc.says)
			}
		})
	}
}
