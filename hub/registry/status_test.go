package registry

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

func TestTransitions(t *testing.T) {
	is := func(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason}
	}
	ready := func(status metav1.ConditionStatus, reason string) metav1.Condition {
		return is("Ready", status, reason)
	}
	accepted := func(status metav1.ConditionStatus, reason string) metav1.Condition {
		return is(v1alpha1.ConditionCredentialAccepted, status, reason)
	}
	contested := is(v1alpha1.ConditionContested, "True", "MarkedByAnotherHub")
	for _, tc := range []struct {
		name          string
		before, after []metav1.Condition
		want          string
	}{
		{"a first look", nil, []metav1.Condition{ready("False", "Connecting")}, "[]"},
		{"connected", []metav1.Condition{ready("False", "Connecting")}, []metav1.Condition{ready("True", "Connected"), accepted("True", "Accepted")}, "[{Normal Connected }]"},
		{"nothing new", []metav1.Condition{ready("True", "Connected")}, []metav1.Condition{ready("True", "Connected")}, "[]"},
		{"lost", []metav1.Condition{ready("True", "Connected")}, []metav1.Condition{ready("False", "Unreachable")}, "[{Warning Unreachable }]"},
		{"lost otherwise", []metav1.Condition{ready("False", "Unreachable")}, []metav1.Condition{ready("False", "CRDMissing")}, "[{Warning CRDMissing }]"},
		{"a bad change", []metav1.Condition{accepted("True", "Accepted")}, []metav1.Condition{accepted("False", "KubeconfigInvalid")}, "[{Warning CredentialKubeconfigInvalid }]"},
		{"a good one after it", []metav1.Condition{accepted("False", "KubeconfigInvalid")}, []metav1.Condition{accepted("True", "Accepted")}, "[{Normal Accepted }]"},
		{"contested", nil, []metav1.Condition{contested}, "[{Warning MarkedByAnotherHub }]"},
		{"not any more", []metav1.Condition{contested}, nil, "[{Normal NotContested no Proxy here is marked by another hub any more}]"},
	} {
		if got := fmt.Sprint(transitions(&v1alpha1.SpokeStatus{Conditions: tc.before}, &v1alpha1.SpokeStatus{Conditions: tc.after})); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

func TestARotationIsTold(t *testing.T) {
	status := func(hash string, accepted metav1.ConditionStatus) *v1alpha1.SpokeStatus {
		return &v1alpha1.SpokeStatus{KubeconfigHash: hash, Conditions: []metav1.Condition{{Type: v1alpha1.ConditionCredentialAccepted, Status: accepted, Reason: "x"}}}
	}
	for _, tc := range []struct {
		name          string
		before, after *v1alpha1.SpokeStatus
		want          bool
	}{
		{"rotated", status("a", "True"), status("b", "True"), true},
		{"the same", status("a", "True"), status("a", "True"), false},
		{"refused", status("a", "True"), status("b", "False"), false},
		{"the first", &v1alpha1.SpokeStatus{}, status("a", "True"), false},
	} {
		if got := rotated(tc.before, tc.after); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

func TestOtherWordsForTheSameFaultAreNoTransition(t *testing.T) {
	said := func(reason, message string) *v1alpha1.SpokeStatus {
		s := newState("")
		s.offered("A", "A", "https://a")
		s.fails(reason, message)
		status := &v1alpha1.SpokeStatus{}
		fillStatus(status, s)
		for i := range status.Conditions {
			status.Conditions[i].LastTransitionTime = metav1.Time{}
		}
		return status
	}
	first := wordless(said("Unreachable", "it is 12:00"))
	if !equality.Semantic.DeepEqual(first, wordless(said("Unreachable", "it is 12:01"))) {
		t.Error("the same fault in other words would be written at each retry")
	}
	if equality.Semantic.DeepEqual(first, wordless(said("Unauthorized", "it is 12:00"))) {
		t.Error("another fault would wait")
	}
}
