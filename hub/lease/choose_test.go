package lease

import (
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// proxy is an offerable one in cluster c, namespace n.
func proxy(name string, change ...func(*fleet.Proxy)) *fleet.Proxy {
	p := &fleet.Proxy{
		Key: fleet.Key{Cluster: "c", Namespace: "n", Name: name}, UID: "uid-" + name,
		Protocol: "http", Host: "10.0.0.1", Port: 3128, Instance: "i-" + name,
		Provisioned: true, Verdict: fleet.Verdict{Health: fleet.Healthy, Latency: 10 * time.Millisecond},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func latency(d time.Duration) func(*fleet.Proxy) {
	return func(p *fleet.Proxy) { p.Verdict.Latency = d }
}
func health(h fleet.Health) func(*fleet.Proxy) { return func(p *fleet.Proxy) { p.Verdict.Health = h } }
func limit(n int) func(*fleet.Proxy)           { return func(p *fleet.Proxy) { p.MaxLeases = n } }
func in(cluster, namespace string) func(*fleet.Proxy) {
	return func(p *fleet.Proxy) { p.Cluster, p.Namespace = cluster, namespace }
}
func attr(k, v string) func(*fleet.Proxy) {
	return func(p *fleet.Proxy) { p.Attributes = map[string]string{k: v} }
}

func TestChoiceIsFewestLeasesThenLatencyThenName(t *testing.T) {
	ms := time.Millisecond
	for _, tc := range []struct {
		name string
		in   []candidate // the first must win
	}{
		{"fewer leases beat latency and name", []candidate{
			{proxy: proxy("z", latency(900*ms)), active: 1},
			{proxy: proxy("a", latency(ms)), active: 2}}},
		{"lower latency beats name", []candidate{
			{proxy: proxy("z", latency(20*ms))},
			{proxy: proxy("a", latency(21*ms))}}},
		{"what reads the same is the same latency", []candidate{
			{proxy: proxy("a", latency(20*ms+400*time.Microsecond))},
			{proxy: proxy("b", latency(20*ms))}}},
		{"no latency sorts last", []candidate{
			{proxy: proxy("z", latency(time.Hour))},
			{proxy: proxy("a", latency(0))}}},
		{"a very small latency is not none", []candidate{
			{proxy: proxy("z", latency(time.Microsecond))},
			{proxy: proxy("a", latency(2*ms))}}},
		{"cluster before namespace before name", []candidate{
			{proxy: proxy("z", in("a", "z"))},
			{proxy: proxy("a", in("b", "a"))}}},
		{"namespace before name", []candidate{
			{proxy: proxy("z", in("a", "a"))},
			{proxy: proxy("a", in("a", "b"))}}},
		{"name last", []candidate{{proxy: proxy("a")}, {proxy: proxy("b")}}},
		{"a full one does not win", []candidate{
			{proxy: proxy("b"), active: 5},
			{proxy: proxy("a", limit(1)), active: 1}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, order := range [][]candidate{tc.in, {tc.in[1], tc.in[0]}} {
				s := search{coolsUntil: func(candidate) time.Time { return time.Time{} }}
				for _, c := range order {
					s.look(c)
				}
				if s.best.proxy != tc.in[0].proxy {
					t.Errorf("chose %v", s.best)
				}
			}
		})
	}
}

func TestEveryConsideredProxyIsCountedOnce(t *testing.T) {
	now := time.Unix(1000, 0)
	cools := map[string]time.Time{
		"cool": now.Add(30 * time.Second), "full-cool": now.Add(50 * time.Second),
		"sick": now.Add(time.Second), "cool-ended": now,
	}
	deleting := func(p *fleet.Proxy) { p.Deleting = true }
	withdrawn := func(p *fleet.Proxy) { p.Withdrawn = true }
	unprovisioned := func(p *fleet.Proxy) { p.Provisioned = false }
	noAddress := func(p *fleet.Proxy) { p.Host = "" }
	full := func(p *fleet.Proxy, end time.Duration) candidate {
		return candidate{proxy: p, active: p.MaxLeases, firstEnd: now.Add(end)}
	}
	for _, tc := range []struct {
		name     string
		in       []candidate
		want     NoMatchError
		selector map[string]string
	}{
		{"nothing there", nil, NoMatchError{}, nil},
		{"deleting is not considered", []candidate{{proxy: proxy("a", deleting)}}, NoMatchError{}, nil},
		{"another cluster is not considered", []candidate{{proxy: proxy("a", in("x", "n"))}}, NoMatchError{}, nil},
		{"other attributes are not considered", []candidate{{proxy: proxy("a", attr("region", "us"))}}, NoMatchError{},
			map[string]string{"region": "eu"}},
		{"not offerable for any reason is unhealthy", []candidate{
			{proxy: proxy("a", health(fleet.Unhealthy))}, {proxy: proxy("b", health(fleet.Unknown))},
			{proxy: proxy("c", withdrawn)}, {proxy: proxy("d", unprovisioned)}, {proxy: proxy("e", noAddress)},
		}, NoMatchError{Considered: 5, Unhealthy: 5}, nil},
		{"unhealthy before full and cooling", []candidate{
			{proxy: proxy("sick", health(fleet.Unhealthy), limit(1)), active: 1, firstEnd: now.Add(time.Second)},
		}, NoMatchError{Considered: 1, Unhealthy: 1}, nil},
		{"full before cooling, and free when both have passed", []candidate{
			full(proxy("full-cool", limit(1)), 20*time.Second),
		}, NoMatchError{Considered: 1, AtCapacity: 1, RetryAfter: 50 * time.Second}, nil},
		{"a lowered limit is full", []candidate{
			{proxy: proxy("a", limit(1)), active: 3, firstEnd: now.Add(7 * time.Second)},
		}, NoMatchError{Considered: 1, AtCapacity: 1, RetryAfter: 7 * time.Second}, nil},
		{"the first to end counts", []candidate{
			full(proxy("a", limit(2)), 40*time.Second), {proxy: proxy("cool")}, {proxy: proxy("b", health(fleet.Unhealthy))},
		}, NoMatchError{Considered: 3, Unhealthy: 1, AtCapacity: 1, InCooldown: 1, RetryAfter: 30 * time.Second}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := search{selector: tc.selector, cluster: "c", now: now, coolsUntil: func(c candidate) time.Time { return cools[c.proxy.Name] }}
			for _, c := range tc.in {
				s.look(c)
			}
			if got := s.noMatch(); s.best.proxy != nil || *got != tc.want {
				t.Errorf("got %+v (best %v), want %+v", *got, s.best, tc.want)
			}
		})
	}
}

func TestACooldownThatEndsNowBlocksNoMore(t *testing.T) {
	now := time.Unix(1000, 0)
	s := search{now: now, coolsUntil: func(candidate) time.Time { return now }}
	s.look(candidate{proxy: proxy("a")})
	if s.best.proxy == nil {
		t.Error("not chosen")
	}
}
