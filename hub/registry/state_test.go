package registry

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func TestState(t *testing.T) {
	connected := func(s *State) { s.offered("A", "A", "https://a"); s.connected("A", "https://a", "", "v1", "uid", noon) }
	for _, tc := range []struct {
		name string
		do   func(*State)
		// ready, reason and credential are what the admin then sees.
		ready              bool
		reason, credential string
		server             string
	}{
		{"new", func(*State) {}, false, "Connecting", "", ""},
		{"refused from the start", func(s *State) { s.offered("A", "A", ""); s.fails("KubeconfigInvalid", "m") }, false, "KubeconfigInvalid", "", ""},
		{"does not connect", func(s *State) { s.offered("A", "A", "https://a"); s.fails("Unreachable", "m") }, false, "Unreachable", "", "https://a"},
		{"connected", connected, true, "Connected", "", "https://a"},
		{"two contacts missed", func(s *State) { connected(s); s.missed("Unreachable", "m", noon); s.missed("Unreachable", "m", noon) }, true, "Connected", "", "https://a"},
		{"three contacts missed", func(s *State) {
			connected(s)
			for range 3 {
				s.missed("Unreachable", "m", noon)
			}
		}, false, "Unreachable", "", "https://a"},
		{"an answer in between starts the count again", func(s *State) {
			connected(s)
			s.missed("Unreachable", "m", noon)
			s.missed("Unreachable", "m", noon)
			s.answered(noon)
			s.missed("Unreachable", "m", noon)
		}, true, "Connected", "", "https://a"},
		{"a credential that is no longer taken counts at once", func(s *State) { connected(s); s.missed("Unauthorized", "m", noon) }, false, "Unauthorized", "Unauthorized", "https://a"},
		{"an answer of one that was lost is not yet a full view", func(s *State) {
			connected(s)
			s.missed("Unauthorized", "m", noon)
			s.answered(noon)
		}, false, "Unauthorized", "Unauthorized", "https://a"},
		{"back, with a connection that has listed", func(s *State) {
			connected(s)
			s.missed("Unauthorized", "m", noon)
			s.answered(noon)
			connected(s)
		}, true, "Connected", "", "https://a"},
		{"one review finds a right missing", func(s *State) { connected(s); s.doubted("Forbidden", "m", false, noon) }, true, "Connected", "", "https://a"},
		{"two reviews do", func(s *State) {
			connected(s)
			s.doubted("Forbidden", "m", false, noon)
			s.doubted("Forbidden", "m", false, noon)
		}, false, "Forbidden", "", "https://a"},
		{"a good review in between starts the count again", func(s *State) {
			connected(s)
			s.doubted("Forbidden", "m", false, noon)
			s.reviewed("v1")
			s.doubted("Forbidden", "m", false, noon)
		}, true, "Connected", "", "https://a"},
		{"a review that reaches nobody is the contacts' to tell", func(s *State) {
			connected(s)
			for range 5 {
				s.doubted("Unreachable", "m", false, noon)
			}
		}, true, "Connected", "", "https://a"},
		{"two renewals that fail do", func(s *State) {
			connected(s)
			s.doubted("Unreachable", "m", true, noon)
			s.doubted("Unreachable", "m", true, noon)
		}, false, "Unreachable", "", "https://a"},
		{"given up for another spoke", func(s *State) { connected(s); s.closed("DuplicateCluster", "m") }, false, "DuplicateCluster", "", "https://a"},
		{"given up while the Secret holds a bad change", func(s *State) {
			connected(s)
			s.offered("B", "B", "")
			s.fails("KubeconfigInvalid", "m")
			s.closed("DuplicateCluster", "m")
		}, false, "KubeconfigInvalid", "", "https://a"},
		{"refused while another one was coming up", func(s *State) {
			s.offered("A", "A", "https://a")
			s.offered("B", "B", "")
			s.fails("KubeconfigInvalid", "m")
			s.connected("A", "https://a", "", "v1", "uid", noon)
		}, true, "Connected", "KubeconfigInvalid", "https://a"},
		{"another cluster counts at once", func(s *State) { connected(s); s.doubted("IdentityChanged", "m", false, noon) }, false, "IdentityChanged", "", "https://a"},
		{"what a lost one turns out to have is told", func(s *State) {
			connected(s)
			for range 3 {
				s.missed("Unreachable", "m", noon)
			}
			s.doubted("CRDMissing", "m", false, noon)
		}, false, "CRDMissing", "", "https://a"},
		{"a bad change leaves what serves", func(s *State) { connected(s); s.offered("B", "B", ""); s.fails("KubeconfigInvalid", "m") }, true, "Connected", "KubeconfigInvalid", "https://a"},
		{"and an answer of what serves does not make it good", func(s *State) {
			connected(s)
			s.offered("B", "B", "")
			s.fails("KubeconfigInvalid", "m")
			s.answered(noon)
		}, true, "Connected", "KubeconfigInvalid", "https://a"},
		{"nor does a renewal of what serves", func(s *State) {
			connected(s)
			s.offered("B", "B", "")
			s.fails("KubeconfigInvalid", "m")
			s.connected("A", "https://a", "", "v1", "uid", noon)
		}, true, "Connected", "KubeconfigInvalid", "https://a"},
		{"a bad change taken back", func(s *State) {
			connected(s)
			s.offered("B", "B", "")
			s.fails("KubeconfigInvalid", "m")
			s.offered("A", "A", "https://a")
			s.takenBack()
		}, true, "Connected", "", "https://a"},
		{"a change that connects", func(s *State) {
			connected(s)
			s.offered("B", "B", "https://b")
			s.connected("B", "https://b", "", "v2", "uid", noon)
		}, true, "Connected", "", "https://b"},
		{"a swap that fails half way", func(s *State) { connected(s); s.offered("B", "B", "https://b"); s.closed("Unreachable", "m") }, false, "Unreachable", "", "https://a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newState("")
			tc.do(&s)
			if s.Ready != tc.ready || s.Reason != tc.reason || s.CredentialReason != tc.credential || s.Server != tc.server {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestTheStatesReasonsAreTheAPIs(t *testing.T) {
	for mine, api := range map[string]string{
		reasonConnecting: v1alpha1.ReasonConnecting, reasonConnected: v1alpha1.ReasonConnected, reasonUnauthorized: v1alpha1.ReasonUnauthorized,
		reasonUnreachable: v1alpha1.ReasonUnreachable, reasonIdentityChanged: v1alpha1.ReasonIdentityChanged,
		reasonDuplicate: v1alpha1.ReasonDuplicateCluster,
	} {
		if mine != api {
			t.Errorf("state says %q, the API %q", mine, api)
		}
	}
}

func TestWhatARestartedHubWritesDoesNotContradictItself(t *testing.T) {
	before := newState("")
	before.offered("A", "A", "https://a")
	before.connected("A", "https://a", "", "v1", "uid", noon)
	before.offered("B", "B", "")
	before.fails("KubeconfigInvalid", "a typo")
	var status v1alpha1.SpokeStatus
	fillStatus(&status, before)
	if !meta.IsStatusConditionFalse(status.Conditions, v1alpha1.ConditionCredentialAccepted) {
		t.Fatal("a bad change of the kubeconfig is not told")
	}
	after := newState("")
	after.offered("B", "B", "")
	after.fails("KubeconfigInvalid", "a typo")
	fillStatus(&status, after)
	if c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionCredentialAccepted); c != nil {
		t.Errorf("nothing serves, and yet it says: %s", c.Message)
	}
}

func TestOnlyASpokeThatAnsweredAndDoesNotAnyMoreIsLost(t *testing.T) {
	s := newState("")
	if s.isLost() {
		t.Error("lost before it was ever connected: its first passes would wait")
	}
	s.connected("A", "https://a", "", "v1", "uid", noon)
	if s.isLost() {
		t.Error("lost while connected")
	}
	s.missed("Unauthorized", "m", noon)
	if !s.isLost() {
		t.Error("not lost: its Proxies would hold workers that wait for nothing")
	}
	s.connected("A", "https://a", "", "v1", "uid", noon)
	if s.isLost() {
		t.Error("lost after it was connected again")
	}
}

func TestALossBeganWithTheFirstContactThatFailed(t *testing.T) {
	s := newState("")
	s.connected("A", "https://a", "", "v1", "uid", noon)
	for i := range 5 {
		s.missed("Unreachable", "m", noon.Add(time.Duration(i)*time.Minute))
	}
	s.missed("Unreachable", "in other words", noon.Add(time.Hour))
	s.doubted("CRDMissing", "m", false, noon.Add(2*time.Hour))
	if !s.Since.Equal(noon) {
		t.Errorf("lost since %s, want the first moment", s.Since)
	}
	var status v1alpha1.SpokeStatus
	fillStatus(&status, s)
	if ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady); !ready.LastTransitionTime.Time.Equal(noon) {
		t.Errorf("the condition says %s", ready.LastTransitionTime)
	}
	s.connected("A", "https://a", "", "v1", "uid", noon.Add(3*time.Hour))
	if !s.Since.IsZero() {
		t.Error("still lost")
	}
}

func TestMoved(t *testing.T) {
	for _, tc := range []struct {
		pinned, found, accepted string
		want                    bool
	}{
		{"", "a", "", true}, {"a", "a", "", true}, {"a", "b", "", false}, {"a", "b", "a", false}, {"a", "b", "b", true}, {"a", "a", "b", true},
	} {
		if got := moved(tc.pinned, tc.found, tc.accepted); got != tc.want {
			t.Errorf("pinned %q, found %q, accepted %q: %v", tc.pinned, tc.found, tc.accepted, got)
		}
	}
}
