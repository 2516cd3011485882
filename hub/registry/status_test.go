package registry

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
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
	broken := is(v1alpha1.ConditionPathBroken, "True", "EveryDialFails")
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
		{"no Proxy is reached", []metav1.Condition{contested}, []metav1.Condition{contested, broken}, "[{Warning PathBroken }]"},
		{"none still is", []metav1.Condition{broken}, []metav1.Condition{broken}, "[]"},
		{"one is", []metav1.Condition{broken, contested}, []metav1.Condition{contested}, "[{Normal PathRestored it is not so any more that every Proxy that counts fails at the dial}]"},
		{"and is no news", nil, nil, "[]"},
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

func TestThePathIsShownAsFarAsItIsKnown(t *testing.T) {
	open, broken := func(s *State) { s.dialled(false) }, func(s *State) { s.dialled(true) }
	for _, tc := range []struct {
		name string
		was  bool // broken, says the hub before this one
		do   []func(*State)
		want bool
	}{
		{"nothing is known", false, nil, false},
		{"nothing is known yet", true, nil, true},
		{"open", false, []func(*State){open}, false},
		{"open meanwhile", true, []func(*State){open}, false},
		{"broken", false, []func(*State){broken}, true},
		{"broken still", true, []func(*State){broken}, true},
		{"restored", false, []func(*State){broken, open}, false},
		{"broken again", false, []func(*State){broken, open, broken}, true},
	} {
		s := newState("")
		s.connected("A", "https://a", "", "v1", "uid", noon)
		var status v1alpha1.SpokeStatus
		if tc.was {
			before := s
			before.dialled(true)
			fillStatus(&status, before)
		}
		for _, do := range tc.do {
			do(&s)
		}
		fillStatus(&status, s)
		c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionPathBroken)
		if got := c != nil && c.Status == metav1.ConditionTrue; got != tc.want || got != (c != nil) {
			t.Errorf("%s: %+v", tc.name, c)
		}
		if !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionReady) {
			t.Errorf("%s: not Ready, with an API server that answers", tc.name)
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
	broken := func(message string) *v1alpha1.SpokeStatus {
		return &v1alpha1.SpokeStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionPathBroken, Status: metav1.ConditionTrue, Message: message}}}
	}
	if !equality.Semantic.DeepEqual(wordless(broken("one")), wordless(broken("two"))) {
		t.Error("the same break in other words would be written at once")
	}
}

func TestTheSpokesWhosePathIsBrokenAreListedInOrder(t *testing.T) {
	r := New(options(t))
	for _, name := range []string{"us", "eu", "asia", "unknown"} {
		put(r, name, nil)
		t.Cleanup(func() { r.deregister(name) })
	}
	for _, tc := range []struct {
		name string
		do   func()
		want string
	}{
		{"nothing is known", func() {}, "[]"},
		{"two are, one is not", func() { r.SetPathBroken("us", true); r.SetPathBroken("eu", true); r.SetPathBroken("asia", false) }, "[eu us]"},
		{"nobody's", func() { r.SetPathBroken("nobody", true) }, "[eu us]"},
		{"one is restored", func() { r.SetPathBroken("us", false); r.SetPathBroken("asia", true) }, "[asia eu]"},
		{"one is removed", func() { r.deregister("eu") }, "[asia]"},
		{"and another of its name comes", func() { put(r, "eu", nil) }, "[asia]"},
	} {
		tc.do()
		if got := fmt.Sprint(r.PathsBroken()); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}
