package fleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func inPodNetwork(p *Proxy) { p.PodNetwork = true }

func at(host string) func(*Proxy) { return func(p *Proxy) { p.Host = host } }

func of(cluster string) func(*Proxy) { return func(p *Proxy) { p.Cluster = cluster } }

func TestAPodIsDialledOnlyWhereItsNetworkIsSaidToBeTheHubs(t *testing.T) {
	f := judging(Options{})
	var told []Bar
	f.Follow(func(c Change) { told = append(told, c.New.Barred) })
	f.Upsert(running("a", inPodNetwork, healthy))
	f.Upsert(running("b", at("10.0.0.2"), healthy)) // not a pod's address
	if p := f.Get(key("a")); p.Barred.Kind != NotRoutable || p.Probeable() || p.Offerable() || p.Verdict != (Verdict{}) || p.Phase() != "Probing" {
		t.Errorf("before anybody has said so: %+v", p)
	}
	if p := f.Get(key("b")); !p.Offerable() {
		t.Errorf("another kind of address: %+v", p.Barred)
	}
	f.SetRoutable("us", true)
	if f.Get(key("a")).Probeable() {
		t.Error("another cluster's word counts")
	}
	f.SetRoutable("eu", true)
	if p := f.Get(key("a")); !p.Probeable() || p.Offerable() {
		t.Error("it is not probed, or is offered before it was")
	}
	f.SetVerdict(key("a"), first, Verdict{Health: Healthy})
	f.SetRoutable("eu", false)
	if p := f.Get(key("a")); p.Probeable() || p.Verdict.Health != Unknown {
		t.Error("the word is taken back, and it is dialled on")
	}
	if f.SetVerdict(key("a"), first, Verdict{Health: Healthy}) {
		t.Error("a late answer is a verdict all the same")
	}
	want := []Bar{{Kind: NotRoutable}, {}, {}, {}, {Kind: NotRoutable}}
	if !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

func TestAnEndpointThatNobodyMayDialIsNeitherProbedNorOffered(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "169.254.169.254", "::1", "2130706433"} {
		f := judging(Options{})
		f.Upsert(running("a", at(host), healthy))
		if p := f.Get(key("a")); p.Barred.Kind != EndpointForbidden || p.Barred.Detail == "" || p.Probeable() || p.Phase() != "Unhealthy" {
			t.Errorf("%s: %+v, phase %s", host, p.Barred, p.Phase())
		}
		f = judging(Options{AllowLocal: true})
		f.Upsert(running("a", at(host), healthy))
		if !f.Get(key("a")).Offerable() {
			t.Errorf("%s is not offered where it is allowed", host)
		}
	}
}

func TestTwoManagedProxiesOfOneEndpointAreBothNobodys(t *testing.T) {
	us := Key{"us", "crawl", "z"}
	f := judging(Options{})
	f.Upsert(running("a", healthy))
	f.Upsert(running("z", of("us"), healthy, at("::ffff:10.0.0.1"))) // another spelling of it
	for own, rival := range map[Key]Key{key("a"): us, us: key("a")} {
		if p := f.Get(own); p.Barred != (Bar{Kind: EndpointConflict, Rival: rival}) || p.Probeable() || p.Verdict != (Verdict{}) {
			t.Errorf("%s: %+v", own, p.Barred)
		}
	}
	for _, tc := range []struct {
		name string
		edit []func(*Proxy)
	}{
		{"external: with other credentials it is another proxy", []func(*Proxy){func(p *Proxy) { p.Managed = false }}},
		{"another port", []func(*Proxy){func(p *Proxy) { p.Port = 3129 }}},
		{"no address", []func(*Proxy){at("")}},
		{"of a pod network that nobody dials", []func(*Proxy){inPodNetwork}},
	} {
		f.Upsert(running("z", append(tc.edit, of("us"))...))
		if a := f.Get(key("a")); a.Barred != (Bar{}) || !a.Probeable() || a.Offerable() {
			t.Errorf("%s: the other one is barred on, or offered unprobed: %+v", tc.name, a.Barred)
		}
		f.Upsert(running("z", of("us")))
		if a := f.Get(key("a")); a.Barred.Rival != us {
			t.Errorf("%s, and back: %+v", tc.name, a.Barred)
		}
	}
	f.Retain("us", nil)
	if a := f.Get(key("a")); !a.Probeable() {
		t.Errorf("its rival's spoke is deregistered: %+v", a.Barred)
	}
}

// Thousands of Proxies with one endpoint must not make millions of changes.
func TestARivalThatComesOrGoesIsNewsToOneOther(t *testing.T) {
	const n = 300
	f := judging(Options{})
	changes := 0
	f.Follow(func(Change) { changes++ })
	order := rand.New(rand.NewPCG(1, 2)).Perm(n)
	name := func(i int) string { return fmt.Sprintf("p-%03d", i) }
	step := func(what string, most int, do func()) {
		changes = 0
		if do(); changes > most {
			t.Fatalf("%s made %d changes", what, changes)
		}
	}
	for _, i := range order {
		step("joining", 2, func() { f.Upsert(running(name(i))) })
	}
	for _, p := range f.All() {
		if p.Barred.Kind != EndpointConflict || p.Barred.Rival == p.Key || f.Get(p.Barred.Rival) == nil {
			t.Fatalf("%s: %+v", p.Key, p.Barred)
		}
	}
	for _, i := range order[1:] {
		step("leaving", 2, func() { f.Delete(key(name(i)), "uid-"+name(i)) })
		for _, p := range f.All() {
			if alone := len(f.All()) == 1; alone == (p.Barred.Kind == EndpointConflict) || !alone && f.Get(p.Barred.Rival) == nil {
				t.Fatalf("of %d: %s: %+v", len(f.All()), p.Key, p.Barred)
			}
		}
	}
	f.Delete(key(name(order[0])), "uid-"+name(order[0]))
	if len(f.rivals) != 0 {
		t.Errorf("%d endpoints are kept of Proxies that are gone", len(f.rivals))
	}
}

// Followers act on each change, and on what was before it.
func TestFollowersSeeNoMomentInWhichABarredProxyMayBeDialled(t *testing.T) {
	for range 20 { // in whatever order the map has them
		f := judging(Options{})
		f.SetRoutable("eu", true)
		for _, name := range []string{"a", "b", "c"} {
			f.Upsert(running(name, inPodNetwork))
		}
		now := map[Key]*Proxy{}
		for _, p := range f.All() {
			now[p.Key] = p
		}
		replaying := true
		f.Follow(func(c Change) {
			if !replaying && (c.New.Probeable() || c.Old != now[c.New.Key]) {
				t.Errorf("%s: probeable %v, after %+v", c.New.Key, c.New.Probeable(), c.Old.Barred)
			}
			now[c.New.Key] = c.New
		})
		replaying = false
		f.SetRoutable("eu", false)
		for _, p := range f.All() {
			if p.Barred.Kind != NotRoutable {
				t.Errorf("%s: %+v", p.Key, p.Barred)
			}
		}
	}
}

func TestABarredProxyThatIsSeenAgainUnchangedIsNoNews(t *testing.T) {
	f := judging(Options{})
	f.Upsert(running("a", inPodNetwork))
	told := -1
	f.Follow(func(Change) { told++ })
	f.Upsert(running("a", inPodNetwork))
	if told != 0 {
		t.Errorf("%d changes told", told)
	}
}
