package fleet

import (
	"slices"
	"testing"
	"time"
)

// What the statuses of a cluster said when the hub lost sight of it may be long past:
// nobody is to be led to a proxy for that.
func TestWhoeverTakesOverForgetsTheVerdictsOfClustersThatItDoesNotSee(t *testing.T) {
	f := New(Options{})
	all := []Proxy{
		running("a", healthy, at("10.0.0.1")),
		running("b", healthy, at("10.0.0.2")),
		running("a", healthy, at("10.0.0.3"), of("lost")),
		running("b", at("10.0.0.4"), of("lost"), func(p *Proxy) { p.Verdict = Verdict{Health: Unhealthy, Reason: "DialFailed"} }),
		running("c", at("10.0.0.5"), of("lost")), // without a verdict: no news
		running("a", healthy, at("10.0.0.6"), of("us")),
	}
	for _, p := range all {
		f.Upsert(p)
	}
	var told []string
	f.Follow(func(c Change) {
		if c.Old != nil {
			told = append(told, c.New.String())
		}
	})
	var asked []string
	f.Judge(func(cluster string) bool {
		asked = append(asked, cluster)
		return cluster != "lost"
	})
	if want := []string{"eu", "lost", "us"}; !slices.Equal(slices.Sorted(slices.Values(asked)), want) {
		t.Errorf("asked about %v, want %v once each", asked, want)
	}
	for _, p := range all {
		want := p.Verdict
		if p.Cluster == "lost" {
			want = Verdict{}
		}
		if got := f.Get(p.Key); got.Verdict != want || got.Offerable() != (want.Health == Healthy) {
			t.Errorf("%s: verdict %+v, want %+v; offerable %v", p.Key, got.Verdict, want, got.Offerable())
		}
	}
	if want := []string{"lost/crawl/a", "lost/crawl/b"}; !slices.Equal(slices.Sorted(slices.Values(told)), want) {
		t.Errorf("leases are told of %v, want %v", told, want)
	}
}

// Its status still claims what it claimed when the cluster comes back into sight.
func TestAForgottenVerdictDoesNotComeBackWithItsStatus(t *testing.T) {
	f := New(Options{})
	f.Upsert(running("a", healthy))
	f.Judge(func(string) bool { return false })
	f.Upsert(running("a", healthy, func(p *Proxy) { p.Attributes = map[string]string{"k": "v"} }))
	if got := f.Get(key("a")); got.Offerable() || got.Attributes["k"] != "v" {
		t.Errorf("offered for what a status said long ago: %+v", got)
	}
	if !f.SetVerdict(key("a"), first, Verdict{Health: Healthy}) || !f.Get(key("a")).Offerable() {
		t.Error("a probe does not bring it back")
	}
}

// Who knows whether a cluster is in sight has locks of its own, and holds them when it
// changes the fleet: the one would wait for the other for ever.
func TestAHubThatTakesOverDoesNotStandStill(t *testing.T) {
	f := New(Options{})
	f.Upsert(running("a", healthy))
	taken := make(chan Health, 1)
	go func() {
		f.Judge(func(string) bool {
			f.Upsert(running("b", at("10.0.0.2")))
			return f.Get(key("a")).Verdict.Health == Healthy && f.Get(key("b")) != nil
		})
		taken <- f.Get(key("a")).Verdict.Health
	}()
	select {
	case got := <-taken:
		if got != Healthy {
			t.Errorf("health %v", got)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the fleet is locked while it is asked who is in sight")
	}
}
