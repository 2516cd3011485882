package proxy

import (
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

var me = provider.Owner{ProxyUID: "uid", Hub: "hub", ClusterUID: "cluster"}

func instance(state provider.State, edits ...func(*provider.Instance)) *provider.Instance {
	i := &provider.Instance{ID: "id", ProviderID: "crawl/proxy-uid/id", Owner: me, SpecHash: "v1-now", State: state, IP: "10.0.0.1"}
	for _, edit := range edits {
		edit(i)
	}
	return i
}

func TestPlan(t *testing.T) {
	oldSpec := func(i *provider.Instance) { i.SpecHash = "v1-before" }
	foreign := func(edit func(*provider.Owner)) func(*provider.Instance) {
		return func(i *provider.Instance) { edit(&i.Owner) }
	}
	says := func(text string) func(*provider.Instance) { return func(i *provider.Instance) { i.Message = text } }
	for _, tc := range []struct {
		name     string
		deleting bool
		seen     bool
		inst     *provider.Instance
		want     step
	}{
		{"nothing there: create", false, false, nil,
			step{actCreate, false, "Provisioning", "instance asked for", pollSoon}},
		{"created, not running: wait and say what the kubelet says", false, false, instance(provider.StateProvisioning, says("ErrImagePull: no such image")),
			step{actNone, false, "Provisioning", "the instance does not run yet: ErrImagePull: no such image", pollSoon}},
		{"running: provisioned", false, false, instance(provider.StateRunning),
			step{actNone, true, "Created", "the instance runs", pollDrift}},
		{"restarting after it ran: stays provisioned", false, true, instance(provider.StateProvisioning, says("CrashLoopBackOff")),
			step{actNone, true, "Created", "the instance is restarting: CrashLoopBackOff", pollSoon}},
		{"vanished after it ran: create again", false, true, nil,
			step{actCreate, false, "Provisioning", "instance asked for", pollSoon}},
		{"stopped: replace", false, true, instance(provider.StateStopped, says("Evicted")),
			step{actDelete, false, "Replacing", "the instance has stopped and is being replaced: Evicted", pollSoon}},
		{"spec edited: replace", false, true, instance(provider.StateRunning, oldSpec),
			step{actDelete, false, "Replacing", "the spec has changed: the old instance is going", pollSoon}},
		{"spec edited between a crash's create and its bookkeeping: replace, not adopt", false, false, instance(provider.StateProvisioning, oldSpec),
			step{actDelete, false, "Replacing", "the spec has changed: the old instance is going", pollSoon}},
		{"old instance going: wait, one at a time", false, true, instance(provider.StateDeleting, oldSpec),
			step{actNone, false, "Replacing", "the old instance is going", pollSoon}},
		{"somebody else's of that name: left alone", false, false, instance(provider.StateRunning, foreign(func(o *provider.Owner) { *o = provider.Owner{} })),
			step{actNone, false, "PermanentError", "an instance of this name exists already and does not carry this hub's labels for this Proxy: remove it, or delete this Proxy", pollDrift}},
		{"another hub's: left alone, whatever its hash", false, false, instance(provider.StateRunning, oldSpec, foreign(func(o *provider.Owner) { o.Hub = "other" })),
			step{actNone, false, "PermanentError", "an instance of this name exists already and does not carry this hub's labels for this Proxy: remove it, or delete this Proxy", pollDrift}},
		{"a label taken off a running one: serves on, untouched", false, true, instance(provider.StateRunning, oldSpec, foreign(func(o *provider.Owner) { o.Hub = "" })),
			step{actNone, true, "Created", "the instance runs, but has lost this hub's labels: put them back, or it will be neither replaced nor deleted", pollDrift}},
		{"deletion: delete, although nothing is recorded", true, false, instance(provider.StateProvisioning),
			step{actDelete, false, "Deleting", "the instance is going", pollSoon}},
		{"deletion: delete a running one", true, true, instance(provider.StateRunning, oldSpec),
			step{actDelete, false, "Deleting", "the instance is going", pollSoon}},
		{"deletion: wait for it to go", true, true, instance(provider.StateDeleting),
			step{actNone, false, "Deleting", "the instance is going", pollSoon}},
		{"deletion: gone, let go", true, true, nil, step{act: actRelease}},
		{"deletion: another cluster's instance is not ours to delete", true, false, instance(provider.StateRunning, foreign(func(o *provider.Owner) { o.ClusterUID = "other" })),
			step{act: actRelease}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := plan(situation{deleting: tc.deleting, wantHash: "v1-now", owner: me, inst: tc.inst, seenRunning: tc.seen})
			if got != tc.want {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

func TestThePlansReasonsAreTheAPIs(t *testing.T) {
	for mine, api := range map[string]string{
		reasonProvisioning: v1alpha1.ReasonProvisioning, reasonCreated: v1alpha1.ReasonCreated, reasonReplacing: v1alpha1.ReasonReplacing,
		reasonDeleting: v1alpha1.ReasonDeleting, reasonPermanentError: v1alpha1.ReasonPermanentError,
	} {
		if mine != api {
			t.Errorf("plan says %q, the API %q", mine, api)
		}
	}
}

func TestSpecHashChangesWithWhatTheInstanceIsMadeOfAndNothingElse(t *testing.T) {
	spec := func(edits ...func(*v1alpha1.ProxySpec)) *v1alpha1.ProxySpec {
		s := &v1alpha1.ProxySpec{Mode: v1alpha1.ModeManaged, Provider: v1alpha1.ProviderKubernetes, Protocol: v1alpha1.ProtocolHTTP}
		for _, edit := range edits {
			edit(s)
		}
		return s
	}
	hash := func(s *v1alpha1.ProxySpec) string {
		h, err := specHash(s)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	limit := int32(3)
	base := hash(spec())
	// Written down once: a change of this value replaces every instance of
	// every fleet at the next upgrade.
	if want := "v1-e39390f79a7f1d1c59c897047aab9bc8"; base != want {
		t.Errorf("hash %s, want %s", base, want)
	}
	for name, s := range map[string]*v1alpha1.ProxySpec{
		"attributes":      spec(func(s *v1alpha1.ProxySpec) { s.Attributes = map[string]v1alpha1.AttributeValue{"a": "b"} }),
		"maxLeases":       spec(func(s *v1alpha1.ProxySpec) { s.MaxLeases = &limit }),
		"healthCheck":     spec(func(s *v1alpha1.ProxySpec) { s.HealthCheck.IntervalSeconds = 5 }),
		"default port":    spec(func(s *v1alpha1.ProxySpec) { s.Port = v1alpha1.DefaultPort }),
		"empty pod block": spec(func(s *v1alpha1.ProxySpec) { s.Kubernetes = &v1alpha1.KubernetesSpec{} }),
	} {
		if hash(s) != base {
			t.Errorf("%s replaces the instance", name)
		}
	}
	for name, s := range map[string]*v1alpha1.ProxySpec{
		"port":  spec(func(s *v1alpha1.ProxySpec) { s.Port = 8888 }),
		"image": spec(func(s *v1alpha1.ProxySpec) { s.Kubernetes = &v1alpha1.KubernetesSpec{Image: "x"} }),
	} {
		if hash(s) == base {
			t.Errorf("%s does not replace the instance", name)
		}
	}
}

func TestSpreadStaysWithinAFifth(t *testing.T) {
	for range 1000 {
		if d := spread(time.Minute); d < 48*time.Second || d > 72*time.Second {
			t.Fatalf("a minute became %s", d)
		}
	}
}
