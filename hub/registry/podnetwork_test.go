package registry

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/testkit/apiserver"
)

// podNetwork is the annotation.
func podNetwork(said string) func(*registration) {
	return func(r *registration) { r.podNetwork = &said }
}

// managedPod is a Proxy whose endpoint is a pod's address.
func managedPod(name, host string) *v1alpha1.Proxy {
	p := proxyNamed(name)
	p.Spec = v1alpha1.ProxySpec{Mode: v1alpha1.ModeManaged, Provider: v1alpha1.ProviderKubernetes, Protocol: v1alpha1.ProtocolHTTP}
	p.Status.ProviderID, p.Status.Endpoint, p.Status.Access = name, host+":3128", p.Spec.AccessTo()
	return p
}

// barredAs waits until the fleet shows the Proxy with this bar.
func barredAs(t *testing.T, r *Registry, spoke, name string, want fleet.BarKind) {
	t.Helper()
	eventually(t, name+" is barred as it should be", func() bool {
		p := r.Fleet.Get(fleet.Key{Cluster: spoke, Namespace: "crawl", Name: name})
		return p != nil && p.Barred.Kind == want
	}, func() any { return r.Fleet.All() })
}

func TestAPodNetworkIsTheHubsToDialOnlyWhileTheSecretSaysSo(t *testing.T) {
	cluster := apiserver.Start(t).Cluster("x")
	cluster.Put(managedPod("a", "10.0.0.1"))
	r, e := started(t)
	raw := cluster.Kubeconfig(theToken)
	s := aged(r, "eu", 0, raw)
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
	barredAs(t, r, "eu", "a", fleet.NotRoutable)
	aged(r, "eu", 0, raw, podNetwork("routable"))
	barredAs(t, r, "eu", "a", fleet.NotBarred)
	aged(r, "eu", 0, raw)
	barredAs(t, r, "eu", "a", fleet.NotRoutable)
	if n := e.count(); n != 1 {
		t.Errorf("%d engagements: the word is about what is dialled, not about the connection", n)
	}
}

func TestAWordOnThePodNetworkThatIsNoneIsRefused(t *testing.T) {
	cluster := apiserver.Start(t).Cluster("x")
	cluster.Put(managedPod("a", "10.0.0.1"))
	r, _ := started(t)
	raw := cluster.Kubeconfig(theToken)
	s := aged(r, "eu", 0, raw, podNetwork("routable"))
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
	barredAs(t, r, "eu", "a", fleet.NotBarred)
	for _, said := range []string{"true", "", "Routable"} {
		aged(r, "eu", 0, raw, podNetwork(said))
		barredAs(t, r, "eu", "a", fleet.NotBarred) // what was said before holds, like all that a refused Secret held
		st := s.State()
		if !st.Ready || st.CredentialReason != v1alpha1.ReasonKubeconfigInvalid || !strings.Contains(st.CredentialMessage, fmt.Sprintf("is %q: write routable, or remove it", said)) {
			t.Errorf("%q: %+v", said, st)
		}
	}
	aged(r, "eu", 0, raw, podNetwork("routable"))
	barredAs(t, r, "eu", "a", fleet.NotBarred)
	if st := s.State(); st.CredentialReason != "" {
		t.Errorf("taken back: %+v", st)
	}
	never := aged(r, "us", 0, apiserver.Start(t).Cluster("y").Kubeconfig(theToken), podNetwork("yes"))
	until(t, never, "refused", reason(v1alpha1.ReasonKubeconfigInvalid))
}

// The word that comes with another kubeconfig is about the cluster that it leads
// to: until that one serves, the pods of the one before are not its to open.
func TestAWordOnThePodNetworkIsAboutTheClusterItCameWith(t *testing.T) {
	server := apiserver.Start(t)
	first, second := server.Cluster("first"), server.Cluster("second")
	second.SetUID("uid-second")
	first.Put(managedPod("a", "10.0.0.1"))
	second.Put(managedPod("b", "10.0.0.1"))
	r, _ := startedWith(t, often)
	s := aged(r, "eu", 0, first.Kubeconfig(theToken))
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
	barredAs(t, r, "eu", "a", fleet.NotRoutable)
	var opened atomic.Bool
	r.Fleet.Follow(func(c fleet.Change) {
		if c.New != nil && c.New.Name == "a" && c.New.Barred.Kind == fleet.NotBarred {
			opened.Store(true)
		}
	})
	other := second.Kubeconfig(theToken)
	aged(r, "eu", 0, other, podNetwork("routable")) // leads to another cluster, which nobody has accepted
	until(t, s, "refused", func(st State) bool { return st.CredentialReason == v1alpha1.ReasonIdentityChanged })
	// The connection to the first is renewed meanwhile.
	first.Unavailable(true)
	until(t, s, "lost", reason(v1alpha1.ReasonUnreachable))
	first.Unavailable(false)
	until(t, s, "back", reason(v1alpha1.ReasonConnected))
	first.Put(managedPod("c", "10.0.0.3"))
	barredAs(t, r, "eu", "c", fleet.NotRoutable)
	aged(r, "eu", 0, other, podNetwork("routable"), accepting("uid-second"))
	barredAs(t, r, "eu", "b", fleet.NotBarred)
	r.deregister("eu")
	if opened.Load() {
		t.Error("pods of the first cluster could be dialled on the word about the second")
	}
	// The name says nothing about the next that has it.
	s = aged(r, "eu", 1, first.Kubeconfig(theToken), func(reg *registration) { reg.secret = "another" })
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
	barredAs(t, r, "eu", "a", fleet.NotRoutable)
}

// The Secret is edited while the connection that it led to before is being taken.
func TestAWordThatComesWhileAnotherClusterIsTakenIsNotAboutThatOne(t *testing.T) {
	server := apiserver.Start(t)
	first, second := server.Cluster("first"), server.Cluster("second")
	second.SetUID("uid-second")
	first.Put(managedPod("a", "10.0.0.1"))
	r, e := started(t)
	var once sync.Once
	e.during = func() {
		once.Do(func() { aged(r, "eu", 0, second.Kubeconfig(theToken), podNetwork("routable")) })
	}
	var opened atomic.Bool
	r.Fleet.Follow(func(c fleet.Change) {
		if c.New != nil && c.New.Barred.Kind == fleet.NotBarred {
			opened.Store(true)
		}
	})
	s := aged(r, "eu", 0, first.Kubeconfig(theToken))
	until(t, s, "refused", func(st State) bool { return st.CredentialReason == v1alpha1.ReasonIdentityChanged })
	first.Put(managedPod("b", "10.0.0.2"))
	barredAs(t, r, "eu", "b", fleet.NotRoutable)
	if opened.Load() {
		t.Error("pods of the first cluster could be dialled on the word about the second")
	}
}

// The word is taken back while the connection that it is about is being taken, and
// nothing else in the Secret can be used.
func TestAWordTakenBackWhileItsClusterIsTakenDoesNotCount(t *testing.T) {
	cluster := apiserver.Start(t).Cluster("x")
	cluster.Put(managedPod("a", "10.0.0.1"))
	r, e := started(t)
	var once sync.Once
	e.during = func() {
		once.Do(func() {
			aged(r, "eu", 0, []byte("broken"), podNetwork("routable"))
			aged(r, "eu", 0, []byte("broken"))
		})
	}
	s := aged(r, "eu", 0, cluster.Kubeconfig(theToken), podNetwork("routable"))
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
	cluster.Put(managedPod("b", "10.0.0.2"))
	barredAs(t, r, "eu", "b", fleet.NotRoutable)
	if st := s.State(); st.Dials || !strings.Contains(st.Message, "not declared routable") {
		t.Errorf("the Spoke says %+v", st)
	}
}
