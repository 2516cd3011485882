package registry

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

func TestState(t *testing.T) {
	connected := func(s *State) { s.offered("A", "https://a"); s.connected("A", "https://a", "v1", "uid") }
	for _, tc := range []struct {
		name string
		do   func(*State)
		// ready, reason and credential are what the admin then sees.
		ready              bool
		reason, credential string
		server             string
	}{
		{"new", func(*State) {}, false, "Connecting", "", ""},
		{"refused from the start", func(s *State) { s.offered("A", ""); s.refused("KubeconfigInvalid", "m") }, false, "KubeconfigInvalid", "", ""},
		{"does not connect", func(s *State) { s.offered("A", "https://a"); s.refused("Unreachable", "m") }, false, "Unreachable", "", "https://a"},
		{"connected", connected, true, "Connected", "", "https://a"},
		{"two contacts missed", func(s *State) { connected(s); s.missed("Unreachable", "m"); s.missed("Unreachable", "m") }, true, "Connected", "", "https://a"},
		{"three contacts missed", func(s *State) {
			connected(s)
			for range 3 {
				s.missed("Unreachable", "m")
			}
		}, false, "Unreachable", "", "https://a"},
		{"an answer in between starts the count again", func(s *State) {
			connected(s)
			s.missed("Unreachable", "m")
			s.missed("Unreachable", "m")
			s.answered("A", "v1")
			s.missed("Unreachable", "m")
		}, true, "Connected", "", "https://a"},
		{"a credential that is no longer taken counts at once", func(s *State) { connected(s); s.missed("Unauthorized", "m") }, false, "Unauthorized", "", "https://a"},
		{"back", func(s *State) {
			connected(s)
			s.missed("Unauthorized", "m")
			s.answered("A", "v2")
		}, true, "Connected", "", "https://a"},
		{"a bad change leaves what serves", func(s *State) { connected(s); s.offered("B", ""); s.refused("KubeconfigInvalid", "m") }, true, "Connected", "KubeconfigInvalid", "https://a"},
		{"and an answer of what serves does not make it good", func(s *State) {
			connected(s)
			s.offered("B", "")
			s.refused("KubeconfigInvalid", "m")
			s.answered("A", "v1")
		}, true, "Connected", "KubeconfigInvalid", "https://a"},
		{"a bad change taken back", func(s *State) {
			connected(s)
			s.offered("B", "")
			s.refused("KubeconfigInvalid", "m")
			s.offered("A", "https://a")
			s.answered("A", "v1")
		}, true, "Connected", "", "https://a"},
		{"a change that connects", func(s *State) {
			connected(s)
			s.offered("B", "https://b")
			s.connected("B", "https://b", "v2", "uid")
		}, true, "Connected", "", "https://b"},
		{"a swap that fails half way", func(s *State) { connected(s); s.offered("B", "https://b"); s.lost("Unreachable", "m") }, false, "Unreachable", "", "https://a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newState()
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
	} {
		if mine != api {
			t.Errorf("state says %q, the API %q", mine, api)
		}
	}
}

func TestWhatARestartedHubWritesDoesNotContradictItself(t *testing.T) {
	before := newState()
	before.offered("A", "https://a")
	before.connected("A", "https://a", "v1", "uid")
	before.offered("B", "")
	before.refused("KubeconfigInvalid", "a typo")
	var status v1alpha1.SpokeStatus
	fillStatus(&status, before)
	if !meta.IsStatusConditionFalse(status.Conditions, v1alpha1.ConditionCredentialAccepted) {
		t.Fatal("a bad change of the kubeconfig is not told")
	}
	after := newState()
	after.offered("B", "")
	after.refused("KubeconfigInvalid", "a typo")
	fillStatus(&status, after)
	if c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionCredentialAccepted); c != nil {
		t.Errorf("nothing serves, and yet it says: %s", c.Message)
	}
}

func TestOnlyASpokeThatAnsweredAndDoesNotAnyMoreIsLost(t *testing.T) {
	s := newState()
	if s.isLost() {
		t.Error("lost before it was ever connected: its first passes would wait")
	}
	s.connected("A", "https://a", "v1", "uid")
	if s.isLost() {
		t.Error("lost while connected")
	}
	s.missed("Unauthorized", "m")
	if !s.isLost() {
		t.Error("not lost: its Proxies would hold workers that wait for nothing")
	}
	s.answered("A", "v1")
	if s.isLost() {
		t.Error("lost after it answered again")
	}
}
