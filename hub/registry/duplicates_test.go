package registry

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/testkit/apiserver"
)

func TestOneClusterUnderTwoNamesIsEngagedOnce(t *testing.T) {
	r, e := started(t)
	raw := apiserver.Start(t).Cluster("good").Kubeconfig(theToken)
	first := put(r, "first", raw)
	until(t, first, "connected", reason(v1alpha1.ReasonConnected))
	second := put(r, "second", raw)
	st := until(t, second, "refused", reason(v1alpha1.ReasonDuplicateCluster))
	if st.Ready || !strings.Contains(st.Message, "spoke first") || !first.State().Ready {
		t.Errorf("%+v", st)
	}
	r.deregister("first")
	until(t, second, "connected once it is alone", reason(v1alpha1.ReasonConnected))
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Equal(e.names, []string{"first", "second"}) {
		t.Errorf("engaged %v", e.names)
	}
}

// aged registers a kubeconfig as that of a Secret so many seconds old.
func aged(r *Registry, name string, age int, kubeconfig []byte, more ...func(*registration)) *spoke {
	reg := registration{secret: name, kubeconfig: kubeconfig, created: noon.Add(-time.Duration(age) * time.Second)}
	for _, edit := range more {
		edit(&reg)
	}
	return r.register(name, reg)
}

func pinned(uid string) func(*registration)    { return func(r *registration) { r.pinned = uid } }
func accepting(uid string) func(*registration) { return func(r *registration) { r.accept = uid } }

// listedUnder names the spokes under which the fleet has the Proxy.
func (r *Registry) listedUnder(name string) []string {
	var under []string
	for _, p := range r.Fleet.All() {
		if p.Name == name {
			under = append(under, p.Cluster)
		}
	}
	return under
}

func TestTheOlderTakesTheClusterFromTheYounger(t *testing.T) {
	c := apiserver.Start(t).Cluster("x")
	c.Put(proxyNamed("a"))
	r, _ := startedWith(t, often)
	young := aged(r, "young", 1, c.Kubeconfig(theToken))
	until(t, young, "connected", reason(v1alpha1.ReasonConnected))
	old := aged(r, "old", 2, c.Kubeconfig(theToken))
	began := time.Now()
	gap := time.Duration(0)
	eventually(t, "listed under the older", func() bool {
		switch under := r.listedUnder("a"); {
		case len(under) > 1:
			t.Fatalf("listed under %v at once", under)
		case len(under) == 0 && gap == 0:
			gap = time.Since(began)
		case len(under) == 1 && under[0] == "old":
			return true
		}
		return false
	}, func() any { return old.State() })
	t.Logf("listed under the older after %s", time.Since(began).Round(time.Millisecond))
	until(t, young, "a duplicate", reason(v1alpha1.ReasonDuplicateCluster))
	until(t, old, "connected", reason(v1alpha1.ReasonConnected))
	r.deregister("old")
	until(t, young, "connected again", reason(v1alpha1.ReasonConnected))
}

func TestAnIdentityAloneTakesNothingFromTheYounger(t *testing.T) {
	server := apiserver.Start(t)
	server.Cluster("victim").Put(proxyNamed("a"))
	liar := server.Cluster("liar")
	liar.SetUID("uid-victim")
	liar.Put(proxyNamed("a")) // of the same name, and another UID
	r, _ := startedWith(t, often)
	victim := aged(r, "victim", 1, server.Cluster("victim").Kubeconfig(theToken))
	until(t, victim, "connected", reason(v1alpha1.ReasonConnected))
	st := until(t, aged(r, "liar", 2, liar.Kubeconfig(theToken)), "refused", reason(v1alpha1.ReasonDuplicateCluster))
	if !strings.Contains(st.Message, "none of its Proxies") || !victim.State().Ready || !slices.Equal(r.listedUnder("a"), []string{"victim"}) {
		t.Errorf("%s; the victim is %+v, listed under %v", st.Message, victim.State(), r.listedUnder("a"))
	}
}

func TestAnIdentityAloneTakesNothingFromAYoungerThatIsAway(t *testing.T) {
	server := apiserver.Start(t)
	victim, liar := server.Cluster("victim"), server.Cluster("liar")
	victim.Put(proxyNamed("a"))
	liar.SetUID("uid-victim")
	liar.Put(proxyNamed("a"))
	victim.Unavailable(true)
	r, _ := startedWith(t, often)
	v := aged(r, "victim", 1, victim.Kubeconfig(theToken), pinned("uid-victim"))
	l := aged(r, "liar", 2, liar.Kubeconfig(theToken))
	until(t, l, "refused", reason(v1alpha1.ReasonDuplicateCluster))
	victim.Unavailable(false)
	until(t, v, "connected", reason(v1alpha1.ReasonConnected))
	if under := r.listedUnder("a"); !slices.Equal(under, []string{"victim"}) {
		t.Errorf("listed under %v", under)
	}
}

func TestAnAcceptedMoveOntoAnothersClusterIsToldAsThat(t *testing.T) {
	server := apiserver.Start(t)
	x, y := server.Cluster("x"), server.Cluster("y")
	r, _ := startedWith(t, often)
	until(t, aged(r, "older", 9, y.Kubeconfig(theToken)), "connected", reason(v1alpha1.ReasonConnected))
	s := aged(r, "s", 5, x.Kubeconfig(theToken))
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
	x.SetUID("uid-y") // the same address is the other cluster now
	until(t, s, "another", reason(v1alpha1.ReasonIdentityChanged))
	aged(r, "s", 5, x.Kubeconfig(theToken), accepting("uid-y"))
	until(t, s, "told", reason(v1alpha1.ReasonDuplicateCluster))
	x.SetUID("uid-x")
	until(t, s, "back", reason(v1alpha1.ReasonConnected))
}

func TestARefusedMoveCostsNothingThatIsServed(t *testing.T) {
	server := apiserver.Start(t)
	x, y := server.Cluster("x"), server.Cluster("y")
	x.Put(proxyNamed("a"))
	r, _ := startedWith(t, often)
	b := aged(r, "b", 9, y.Kubeconfig(theToken))
	a := aged(r, "a", 5, x.Kubeconfig(theToken))
	until(t, a, "connected", reason(v1alpha1.ReasonConnected))
	until(t, b, "connected", reason(v1alpha1.ReasonConnected))
	c := aged(r, "c", 1, x.Kubeconfig(theToken))
	until(t, c, "a duplicate", reason(v1alpha1.ReasonDuplicateCluster))
	aged(r, "a", 5, y.Kubeconfig(theToken), accepting("uid-y"))
	st := until(t, a, "refused", func(st State) bool { return st.CredentialReason == v1alpha1.ReasonDuplicateCluster })
	if !st.Ready || !slices.Equal(r.listedUnder("a"), []string{"a"}) {
		t.Errorf("%+v, listed under %v", st, r.listedUnder("a"))
	}
	until(t, c, "still a duplicate", reason(v1alpha1.ReasonDuplicateCluster))
	// Undone, as the message says.
	aged(r, "a", 5, x.Kubeconfig(theToken))
	until(t, a, "accepted", func(st State) bool { return st.Ready && st.CredentialReason == "" })
}

func TestTheOrderOfRegistrationMakesNoDifference(t *testing.T) {
	for _, first := range []string{"young", "old"} {
		c := apiserver.Start(t).Cluster("x")
		r, _ := startedWith(t, often)
		// The older was this cluster for a hub before, and is not reached now.
		gone := kubeconfigTo(t, "https://127.0.0.1:1", nil)
		var young *spoke
		if first == "young" {
			young = aged(r, "young", 1, c.Kubeconfig(theToken))
			until(t, young, "connected", reason(v1alpha1.ReasonConnected))
			aged(r, "old", 2, gone, pinned("uid-x"))
		} else {
			aged(r, "old", 2, gone, pinned("uid-x"))
			young = aged(r, "young", 1, c.Kubeconfig(theToken))
		}
		until(t, young, "a duplicate", reason(v1alpha1.ReasonDuplicateCluster))
		if _, err := r.Get(t.Context(), "young"); err == nil {
			t.Errorf("%s first: engaged although it is a duplicate", first)
		}
		r.deregister("old")
		until(t, young, "connected", reason(v1alpha1.ReasonConnected))
	}
}

func TestAReviewOfAConnectionThatIsGoneIsNobodysNews(t *testing.T) {
	c := apiserver.Start(t).Cluster("x")
	r, _ := startedWith(t, often)
	young := aged(r, "young", 1, c.Kubeconfig(theToken))
	until(t, young, "connected", reason(v1alpha1.ReasonConnected))
	c.Answer(apiserver.AccessReviewsPath, apiserver.Answer{Hang: true})
	eventually(t, "a review hangs", func() bool {
		return slices.Contains(c.Requests()[len(c.Requests())-1:], "POST "+apiserver.AccessReviewsPath) || young.State().doubts > 0 || countOf(c.Requests(), "POST "+apiserver.AccessReviewsPath) > 30
	}, func() any { return nil })
	aged(r, "old", 2, kubeconfigTo(t, "https://127.0.0.1:1", nil), pinned("uid-x"))
	until(t, young, "a duplicate", reason(v1alpha1.ReasonDuplicateCluster))
	c.Answer(apiserver.AccessReviewsPath, apiserver.Answer{})
	r.deregister("old")
	until(t, young, "connected", reason(v1alpha1.ReasonConnected))
}

func countOf(all []string, one string) (n int) {
	for _, s := range all {
		if s == one {
			n++
		}
	}
	return n
}

func TestABadChangeIsNotForgottenWhenTheClusterIsGivenUp(t *testing.T) {
	c := apiserver.Start(t).Cluster("x")
	r, _ := startedWith(t, often)
	young := aged(r, "young", 1, c.Kubeconfig(theToken))
	until(t, young, "connected", reason(v1alpha1.ReasonConnected))
	aged(r, "young", 1, []byte("typo"))
	until(t, young, "refused", func(st State) bool { return st.CredentialReason == v1alpha1.ReasonKubeconfigInvalid })
	aged(r, "old", 2, c.Kubeconfig(theToken))
	until(t, young, "refused for what its Secret holds", func(st State) bool { return !st.Ready && st.Reason == v1alpha1.ReasonKubeconfigInvalid })
	r.deregister("old")
	requests := len(c.Requests())
	if st := young.State(); st.Reason != v1alpha1.ReasonKubeconfigInvalid || young.wanted() != nil {
		t.Errorf("%+v after %d requests", st, requests)
	}
}

func TestASlipThatWasTakenBackCostsNothing(t *testing.T) {
	server := apiserver.Start(t)
	x, y := server.Cluster("x"), server.Cluster("y")
	x.Put(proxyNamed("p"))
	r, _ := startedWith(t, often)
	until(t, aged(r, "other", 9, y.Kubeconfig(theToken)), "connected", reason(v1alpha1.ReasonConnected))
	s := aged(r, "mine", 5, x.Kubeconfig(theToken))
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
	aged(r, "mine", 5, y.Kubeconfig(theToken), accepting("uid-y"))
	until(t, s, "refused", func(st State) bool { return st.CredentialReason == v1alpha1.ReasonDuplicateCluster })
	aged(r, "mine", 5, x.Kubeconfig(theToken))
	until(t, s, "taken back", func(st State) bool { return st.Ready && st.CredentialReason == "" })
	younger := aged(r, "younger", 1, x.Kubeconfig(theToken))
	until(t, younger, "a duplicate", func(st State) bool {
		if under := r.listedUnder("p"); !slices.Equal(under, []string{"mine"}) {
			t.Fatalf("listed under %v", under)
		}
		return st.Reason == v1alpha1.ReasonDuplicateCluster
	})
}

func TestAPinThatWasShownNotToBeTrueHoldsNothing(t *testing.T) {
	server := apiserver.Start(t)
	r, _ := startedWith(t, often)
	wrong := aged(r, "wrong", 9, server.Cluster("a").Kubeconfig(theToken), pinned("uid-b"))
	right := aged(r, "right", 5, server.Cluster("b").Kubeconfig(theToken))
	until(t, wrong, "another", reason(v1alpha1.ReasonIdentityChanged))
	until(t, right, "connected", reason(v1alpha1.ReasonConnected))
}

// TestNeverUnderTwoNames registers, moves and removes three spokes of two
// clusters at random, and looks at the fleet all the time.
func TestNeverUnderTwoNames(t *testing.T) {
	server := apiserver.Start(t)
	clusters := map[string]*apiserver.Cluster{"c": server.Cluster("c"), "d": server.Cluster("d")}
	for name, c := range clusters {
		c.Put(proxyNamed("of-" + name))
	}
	r, _ := startedWith(t, often)
	stop, looked := make(chan struct{}), make(chan string, 1)
	go func() {
		defer close(looked)
		for {
			select {
			case <-stop:
				return
			default:
			}
			for name := range clusters {
				if under := r.listedUnder("of-" + name); len(under) > 1 {
					looked <- strings.Join(under, " and ")
					return
				}
			}
		}
	}()
	const seed = 20261129
	random := rand.New(rand.NewPCG(seed, seed))
	ages := map[string]int{}
	tick := time.NewTicker(150 * time.Millisecond)
	defer tick.Stop()
	for range 60 {
		<-tick.C
		name := []string{"a", "b", "z"}[random.IntN(3)]
		if random.IntN(4) == 0 {
			r.deregister(name)
			delete(ages, name)
			continue
		}
		if _, there := ages[name]; !there {
			ages[name] = random.IntN(5)
		}
		to := []string{"c", "c", "d"}[random.IntN(3)]
		aged(r, name, ages[name], clusters[to].Kubeconfig("token-of-"+name), accepting("uid-"+to))
	}
	close(stop)
	if twice := <-looked; twice != "" {
		t.Errorf("one Proxy under %s at once", twice)
	}
	for name := range ages { // all to one: the oldest has it
		aged(r, name, ages[name], clusters["c"].Kubeconfig("last-token-of-"+name), accepting("uid-c"))
	}
	oldest := ""
	for _, name := range slices.Sorted(maps.Keys(ages)) {
		if oldest == "" || ages[name] > ages[oldest] {
			oldest = name
		}
	}
	if oldest != "" {
		eventually(t, "the oldest has the cluster", func() bool { return slices.Equal(r.listedUnder("of-c"), []string{oldest}) }, func() any { return r.listedUnder("of-c") })
	}
}
