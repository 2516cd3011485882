package registry

import (
	"errors"
	"testing"

	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/testkit/apiserver"
)

func TestAReplicaThatDoesNotLeadKnowsTheFleetAndReconcilesNothing(t *testing.T) {
	server := apiserver.Start(t)
	c := server.Cluster("c")
	c.Put(proxyNamed("a"))
	r, _ := following(t, checkInterval)
	s := put(r, "x", c.Kubeconfig(theToken))
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
	if proxies, _ := r.Fleet.Count("x"); proxies != 1 || !r.Answers("x") || !r.Listed("x") {
		t.Errorf("%d Proxies, answers %v, listed %v", proxies, r.Answers("x"), r.Listed("x"))
	}
	if _, err := r.Get(t.Context(), multicluster.ClusterName("x")); err != nil {
		t.Error(err)
	}
	put(r, "x", c.Kubeconfig("another-token")) // the connection is swapped
	eventually(t, "swapped", func() bool { return s.State().Hash == hashOf(c.Kubeconfig("another-token")) && s.State().Ready }, func() any { return s.State() })

	e := &engagements{}
	leading(t, r, e)
	eventually(t, "the controllers are told", func() bool { return e.count() == 1 }, func() any { return e.count() })
	engagement, cl := e.last()
	if engagement.Err() != nil || cl.GetConfig().BearerToken != "another-token" {
		t.Errorf("engaged with an old connection, or not for long (%v)", engagement.Err())
	}
	later := put(r, "y", server.Cluster("d").Kubeconfig(theToken))
	until(t, later, "connected", reason(v1alpha1.ReasonConnected))
	if e.count() != 2 {
		t.Errorf("%d engagements of 2 spokes", e.count())
	}
	r.deregister("x")
	eventually(t, "disengaged", func() bool { return engagement.Err() != nil }, func() any { return nil })
}

func TestASpokeThatTheControllersDoNotTakeAtATakeOverIsTriedAgain(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	r, _ := following(t, checkInterval)
	s := put(r, "x", c.Kubeconfig(theToken))
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
	e := &engagements{fail: errors.New("not today")}
	leading(t, r, e)
	eventually(t, "tried", func() bool { return e.count() > 0 }, func() any { return nil })
	e.mu.Lock()
	e.fail = nil
	e.mu.Unlock()
	eventually(t, "engaged", func() bool {
		engagement, _ := e.last()
		return engagement.Err() == nil && s.State().Ready && r.Answers("x")
	}, func() any { return s.State() })
}

// The manager ends what runs on every replica first.
func TestPassesUnderWayKeepTheirConnectionWhenAHubStops(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	r, stopFollowing := following(t, checkInterval)
	e := &engagements{}
	stopLeading := leading(t, r, e)
	until(t, put(r, "x", c.Kubeconfig(theToken)), "connected", reason(v1alpha1.ReasonConnected))
	engagement, cl := e.last()
	stopFollowing()
	var all v1alpha1.ProxyList
	if err := cl.GetAPIReader().List(t.Context(), &all); err != nil || engagement.Err() != nil {
		t.Errorf("the connection has gone with passes under way: %v, %v", err, engagement.Err())
	}
	stopLeading()
	eventually(t, "ended", func() bool { return engagement.Err() != nil }, func() any { return nil })
}

// A replica that has found nothing, or something else, would let a spoke be another
// cluster without its admin's word when it takes over.
func TestAReplicaKeepsToTheIdentityThatTheLeaderHasFound(t *testing.T) {
	for _, tc := range []struct {
		name      string
		connected bool // before the leader's word is heard
		pinned    string
		accept    string
		reason    string
	}{
		{"it has not connected, and the leader found this cluster", false, "uid-c", "", v1alpha1.ReasonConnected},
		{"it has not connected, and the leader found another", false, "uid-other", "", v1alpha1.ReasonIdentityChanged},
		{"it has connected, as the leader has", true, "uid-c", "", v1alpha1.ReasonConnected},
		{"it has connected to another cluster", true, "uid-other", "", v1alpha1.ReasonIdentityChanged},
		{"it has connected to the one that the admin lets take its place", true, "uid-other", "uid-c", v1alpha1.ReasonConnected},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := apiserver.Start(t).Cluster("c")
			r, _ := following(t, checkInterval)
			c.Unavailable(!tc.connected)
			reg := registration{secret: "x", kubeconfig: c.Kubeconfig(theToken)}
			s := r.register("x", reg)
			if tc.connected {
				until(t, s, "connected", reason(v1alpha1.ReasonConnected))
			} else {
				until(t, s, "unreachable", reason(v1alpha1.ReasonUnreachable))
			}
			reg.pinned, reg.accept = tc.pinned, tc.accept
			s = r.register("x", reg)
			c.Unavailable(false)
			until(t, s, "as the leader says", reason(tc.reason))
			leading(t, r, &engagements{})
			eventually(t, "it leads", func() bool { return r.leads() != nil }, func() any { return nil })
			if r.register("x", reg) != s || s.State().Reason != tc.reason {
				t.Errorf("what the Spoke shows outrules the one who writes it: %+v", s.State())
			}
		})
	}
}

func TestSpokesAreWrittenByTheLeaderAloneAndMadeUpForByTheNext(t *testing.T) {
	h := showing(t)
	_, stop := h.hub()
	h.register()
	next, lead, _ := h.replica()
	connected := func() bool { return next.Reasons()[v1alpha1.ReasonConnected] == 1 }
	eventually(t, "the other is connected", connected, func() any { return next.Reasons() })
	stop()
	before := h.spoke()

	// While nobody leads, one Secret goes and another takes its name.
	if err := h.Delete(t.Context(), h.secret()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other has let it go", func() bool { return len(next.Reasons()) == 0 }, func() any { return next.Reasons() })
	secret := h.secret()
	secret.Data = map[string][]byte{v1alpha1.KubeconfigKey: h.kubeconfig}
	h.create(secret)
	eventually(t, "the other is connected anew", connected, func() any { return next.Reasons() })
	if now := h.spoke(); now.UID != before.UID || now.ResourceVersion != before.ResourceVersion {
		t.Errorf("a replica that does not lead writes the Spoke: %+v", now)
	}

	lead()
	eventually(t, "the Spoke is that of the Secret", func() bool { return ownerUID(h.spoke()) == string(secret.UID) }, func() any { return h.spoke() })
	h.condition(v1alpha1.ConditionReady, "Connected", isTrue)
}
