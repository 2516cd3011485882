package pod

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/proxyfleet/proxy-operator/internal/provider"
)

var request = provider.CreateRequest{
	Ref:   provider.Ref{Namespace: "crawl", Name: provider.NameFromUID("u-1")},
	Owner: provider.Owner{ProxyUID: "u-1", Hub: "hub-1", ClusterUID: "cluster-1"}, SpecHash: "v1-abc",
	Spoke: "eu", ProxyName: "eu-1", Protocol: "http", Port: 3128, Image: "proxy:1",
}

func TestAPodCarriesItsOwnershipAndReadsBackAsTheInstanceThatWasAskedFor(t *testing.T) {
	pod := build(request)
	pod.UID = "pod-1"
	inst := instance(pod)
	if inst.Owner != request.Owner || inst.SpecHash != request.SpecHash || inst.ProviderID != "crawl/proxy-u-1/pod-1" || inst.ID != "pod-1" {
		t.Errorf("read back as %+v", inst)
	}
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.UID != "u-1" || owner.Name != "eu-1" || owner.Kind != "Proxy" {
		t.Errorf("controller owner %+v: a deleted Proxy's pod would stay", owner)
	}
}

func TestAPodIsRestrictedAndToldWhatToListenOn(t *testing.T) {
	pod := build(request)
	c := pod.Spec.Containers[0]
	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = e.Value
	}
	if env["PROXY_PORT"] != "3128" || env["PROXY_PROTOCOL"] != "http" || c.Image != "proxy:1" {
		t.Errorf("env %v, image %q", env, c.Image)
	}
	s := c.SecurityContext
	if *pod.Spec.AutomountServiceAccountToken || !*pod.Spec.SecurityContext.RunAsNonRoot || *s.AllowPrivilegeEscalation ||
		!*s.ReadOnlyRootFilesystem || s.Capabilities.Drop[0] != "ALL" || pod.Spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Error("the pod would not pass Pod Security restricted")
	}
}

func TestStates(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}
	now := metav1.Now()
	status := func(s corev1.ContainerState) []corev1.ContainerStatus { return []corev1.ContainerStatus{{State: s}} }
	for _, tc := range []struct {
		name    string
		deleted bool
		status  corev1.PodStatus
		want    provider.State
		says    string
	}{
		{"just created", false, corev1.PodStatus{Phase: corev1.PodPending}, provider.StateProvisioning, ""},
		{"no node for it", false, corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes"}}}, provider.StateProvisioning, "Unschedulable: 0/3 nodes"},
		{"image missing", false, corev1.PodStatus{ContainerStatuses: status(waiting)}, provider.StateProvisioning, "ImagePullBackOff: no such image"},
		{"crashes", false, corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 20s restarting"}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2}},
		}}}, provider.StateProvisioning, "CrashLoopBackOff: exit code 2"},
		{"runs, no address yet", false, corev1.PodStatus{ContainerStatuses: status(running)}, provider.StateProvisioning, ""},
		{"runs", false, corev1.PodStatus{ContainerStatuses: status(running), PodIP: "10.0.0.1"}, provider.StateRunning, ""},
		{"evicted", false, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", PodIP: "10.0.0.1"}, provider.StateStopped, "Evicted"},
		{"going", true, corev1.PodStatus{ContainerStatuses: status(running), PodIP: "10.0.0.1"}, provider.StateDeleting, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := build(request)
			pod.Status = tc.status
			if tc.deleted {
				pod.DeletionTimestamp = &now
			}
			if inst := instance(pod); inst.State != tc.want || inst.Message != tc.says {
				t.Errorf("%s %q, want %s %q", inst.State, inst.Message, tc.want, tc.says)
			}
		})
	}
}

func TestErrorClasses(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for _, tc := range []struct {
		err  error
		want string
	}{
		{nil, "ok"},
		{classified(apierrors.NewNotFound(pods, "x")), "not_found"},
		{classified(apierrors.NewAlreadyExists(pods, "x")), "exists"},
		{classified(apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "x", nil)), "permanent"},
		{classified(apierrors.NewForbidden(pods, "x", errors.New("rights"))), "transient"},
		{classified(context.DeadlineExceeded), "transient"},
		{errors.New("anything else"), "transient"},
	} {
		if got := provider.Class(tc.err); got != tc.want {
			t.Errorf("class %q, want %q for %v", got, tc.want, tc.err)
		}
	}
}
