package proxy

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

func proxyObject() *v1alpha1.Proxy {
	return &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "crawl", UID: "uid", Generation: 4}}
}

func seenAs(instance string, v fleet.Verdict) *fleet.Proxy {
	return &fleet.Proxy{UID: "uid", Instance: instance, Protocol: "http", Verdict: v}
}

func TestPhases(t *testing.T) {
	healthy := fleet.Verdict{Health: fleet.Healthy, Reason: "ProbeSucceeded", Latency: 41 * time.Millisecond, Time: time.Unix(1000, 500)}
	unhealthy := fleet.Verdict{Health: fleet.Unhealthy, Reason: "DialFailed", Message: "refused", Time: time.Unix(1000, 0)}
	for _, tc := range []struct {
		name        string
		provisioned bool
		reason      string
		deleting    bool
		seen        *fleet.Proxy
		want        v1alpha1.Phase
		ready       string
	}{
		{"asked for", false, "Provisioning", false, nil, v1alpha1.PhaseProvisioning, "Provisioning"},
		{"provider failed", false, "TransientError", false, nil, v1alpha1.PhasePending, "TransientError"},
		{"no room", false, "QuotaExceeded", false, nil, v1alpha1.PhasePending, "QuotaExceeded"},
		{"cloud-init missing", false, "CloudInitError", false, nil, v1alpha1.PhasePending, "CloudInitError"},
		{"will never work", false, "PermanentError", false, nil, v1alpha1.PhaseFailed, "PermanentError"},
		{"being replaced", false, "Replacing", false, seenAs("i", healthy), v1alpha1.PhaseReplacing, "Replacing"},
		{"runs, not in the fleet yet", true, "Created", false, nil, v1alpha1.PhaseProbing, "Probing"},
		{"runs, verdict of its predecessor", true, "Created", false, seenAs("old", healthy), v1alpha1.PhaseProbing, "Probing"},
		{"runs, healthy", true, "Created", false, seenAs("i", healthy), v1alpha1.PhaseReady, "Ready"},
		{"runs, unhealthy", true, "Created", false, seenAs("i", unhealthy), v1alpha1.PhaseUnhealthy, "DialFailed"},
		{"going", false, "Deleting", true, seenAs("i", healthy), v1alpha1.PhaseDeleting, "Deleting"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := proxyObject()
			if tc.deleting {
				now := metav1.Now()
				p.DeletionTimestamp = &now
			}
			setProvisioned(p, tc.provisioned, tc.reason, "because")
			finishStatus(p, tc.seen, "i")
			if p.Status.Phase != tc.want {
				t.Errorf("phase %s, want %s", p.Status.Phase, tc.want)
			}
			ready := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady)
			if ready.Reason != tc.ready || (ready.Status == metav1.ConditionTrue) != (tc.want == v1alpha1.PhaseReady) {
				t.Errorf("Ready is %s/%s, want reason %s", ready.Status, ready.Reason, tc.ready)
			}
			if p.Status.ObservedGeneration != 4 {
				t.Errorf("observed generation %d", p.Status.ObservedGeneration)
			}
		})
	}
}

func TestStagingTwiceChangesNothing(t *testing.T) {
	p := proxyObject()
	v := fleet.Verdict{Health: fleet.Healthy, Reason: "ProbeSucceeded", Latency: 41 * time.Millisecond, Time: time.Now()}
	stage := func() {
		setInstance(p, &provider.Instance{ProviderID: "i", Host: "fd00::1"}, true)
		setProvisioned(p, true, "Created", "the instance runs")
		seen := seenAs("i", v)
		seen.Host, seen.Port = "fd00::1", 3128
		finishStatus(p, seen, "i")
	}
	stage()
	first := p.Status.DeepCopy()
	stage()
	if !equal(first, &p.Status) {
		t.Errorf("a quiet pass would write:\n%+v\n%+v", first, p.Status)
	}
	if p.Status.Endpoint != "[fd00::1]:3128" || p.Status.LatencyMillis != 41 {
		t.Errorf("endpoint %q, latency %d", p.Status.Endpoint, p.Status.LatencyMillis)
	}
}

func TestAnOutgoingInstanceIsNotShownAtThePortOfTheNewSpec(t *testing.T) {
	p := proxyObject()
	inst := &provider.Instance{ProviderID: "one", Host: "10.0.0.1"}
	setInstance(p, inst, true)
	p.Spec.Port = 8888
	setInstance(p, inst, false)
	if p.Status.Endpoint != "10.0.0.1:3128" {
		t.Errorf("shown at %s, where nothing listens", p.Status.Endpoint)
	}
}

// An address that is a pod's own must not pass for another because the spec asks
// for another: it would be dialled where nobody has said that it may be.
func TestWhoseAddressItIsIsSaidByWhoHasFoundIt(t *testing.T) {
	p := proxyObject()
	p.Spec.Kubernetes = &v1alpha1.KubernetesSpec{Expose: v1alpha1.ExposeHostPort}
	for _, tc := range []struct {
		found *v1alpha1.Access
		want  v1alpha1.Expose
	}{
		{&v1alpha1.Access{Expose: v1alpha1.ExposeHostPort}, v1alpha1.ExposeHostPort},
		{&v1alpha1.Access{Expose: v1alpha1.ExposePodIP}, v1alpha1.ExposePodIP},
		{nil, v1alpha1.ExposePodIP}, // somebody has taken the annotation off the pod
	} {
		setInstance(p, &provider.Instance{ProviderID: "i", Host: "10.0.0.1", Access: tc.found}, true)
		if got := p.Status.Access.Expose; got != tc.want {
			t.Errorf("found %+v: %s, want %s", tc.found, got, tc.want)
		}
	}
}

func TestAnInstanceAtANewAddressHasNoVerdictYet(t *testing.T) {
	p := proxyObject()
	setInstance(p, &provider.Instance{ProviderID: "i", Host: "10.0.0.2"}, true)
	setProvisioned(p, true, "Created", "the instance runs")
	old := seenAs("i", fleet.Verdict{Health: fleet.Healthy, Reason: "ProbeSucceeded"})
	old.Host, old.Port = "10.0.0.1", 3128
	finishStatus(p, old, "i")
	if p.Status.Phase != v1alpha1.PhaseProbing {
		t.Errorf("phase %s on a verdict about another address", p.Status.Phase)
	}
}

func TestARestartingInstanceKeepsItsAddressAndAnotherOneDoesNotInheritIt(t *testing.T) {
	p := proxyObject()
	setInstance(p, &provider.Instance{ProviderID: "one", Host: "10.0.0.1"}, true)
	setInstance(p, &provider.Instance{ProviderID: "one"}, true)
	if p.Status.IP != "10.0.0.1" {
		t.Errorf("the address was lost: %q", p.Status.IP)
	}
	setInstance(p, &provider.Instance{ProviderID: "two"}, true)
	if p.Status.IP != "" || p.Status.Endpoint != "" {
		t.Errorf("the replacement has its predecessor's address %q", p.Status.Endpoint)
	}
	setInstance(p, nil, false)
	if p.Status.ProviderID != "" {
		t.Errorf("an instance that is gone is still named: %q", p.Status.ProviderID)
	}
}

func TestAnExternalProxyWithoutAnEndpointIsToldSo(t *testing.T) {
	p := proxyObject()
	p.Spec.Mode = v1alpha1.ModeExternal // a CRD that is not ours may let it pass
	if _, err := (&pass{fleet: fleet.New(fleet.Options{AllowLocal: true})}).external(p, wanted{}, nil); err != nil {
		t.Fatal(err)
	}
	c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionProvisioned)
	if c == nil || c.Reason != v1alpha1.ReasonPermanentError || p.Status.Phase != v1alpha1.PhaseFailed {
		t.Errorf("phase %s, %+v", p.Status.Phase, c)
	}
}
