package metrics

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

const heldIs0 = `
# HELP proxy_operator_healthcheck_verdicts_held 1 while verdicts on Proxies are held back.
# TYPE proxy_operator_healthcheck_verdicts_held gauge
proxy_operator_healthcheck_verdicts_held 0
`

// with are the metrics, of an empty hub where the options do not say otherwise,
// and what they are registered with.
func with(o Options) (*Metrics, *prometheus.Registry) {
	if o.Proxies == nil {
		o.Proxies = func() []*fleet.Proxy { return nil }
		o.SpokeReasons = func() map[string]int { return nil }
		o.LeasesByCluster = o.SpokeReasons
		o.Cooldowns = func() int { return 0 }
	}
	reg := prometheus.NewPedanticRegistry()
	return New(reg, o), reg
}

func named(cluster, name string) fleet.Key {
	return fleet.Key{Cluster: cluster, Namespace: "crawl", Name: name}
}

// fail records a failed probe of each, which shows in both metrics of probes.
func fail(m *Metrics, keys ...fleet.Key) {
	for _, key := range keys {
		m.Probe(key, time.Second, "Timeout")
	}
}

// probed are the Proxies or clusters that have series of probes, the same in
// both metrics.
func probed(t *testing.T, reg *prometheus.Registry) []string {
	t.Helper()
	durations, failures := series(t, reg)
	if !slices.Equal(durations, failures) {
		t.Errorf("durations of %v, failures of %v", durations, failures)
	}
	return durations
}

func series(t *testing.T, reg *prometheus.Registry) (durations, failures []string) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	of := map[string][]string{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			of[family.GetName()] = append(of[family.GetName()], labels["cluster"]+"/"+labels["namespace"]+"/"+labels["proxy"])
		}
	}
	durations, failures = of["proxy_operator_healthcheck_duration_seconds"], of["proxy_operator_healthcheck_failures_total"]
	slices.Sort(durations)
	slices.Sort(failures)
	return durations, failures
}

func TestGaugesAreReadFromLiveStateAndSeriesGoWithTheirProxy(t *testing.T) {
	f := fleet.New(fleet.Options{AllowLocal: true})
	var held atomic.Bool
	m, reg := with(Options{
		Proxies:         f.All,
		SpokeReasons:    func() map[string]int { return map[string]int{"Connected": 2} },
		LeasesByCluster: func() map[string]int { return map[string]int{"eu": 3} },
		Cooldowns:       func() int { return 1 },
		VerdictsHeld:    held.Load,
		PerProxyLimit:   10,
	})
	key := fleet.Key{Cluster: "eu", Namespace: "crawl", Name: "a"}
	f.Upsert(fleet.Proxy{Key: key, UID: "u", Instance: "i", Provisioned: true, Host: "10.0.0.1"})
	m.Probe(key, time.Second, "")
	m.Probe(key, time.Second, "Timeout")
	m.Started(20 * time.Millisecond)
	m.Started(20 * time.Second)
	held.Store(true)
	m.LeaseRequest("granted")
	m.LeaseWait(40 * time.Millisecond)
	m.LeaseWait(40 * time.Second)
	m.ProviderRequest("kubernetes", "eu", "create", "ok")
	expect := func(text string, names ...string) {
		t.Helper()
		if err := testutil.GatherAndCompare(reg, strings.NewReader(text), names...); err != nil {
			t.Error(err)
		}
	}
	expect(`
# HELP proxy_operator_cooldowns_active Active cooldowns of a proxy for a target.
# TYPE proxy_operator_cooldowns_active gauge
proxy_operator_cooldowns_active 1
# HELP proxy_operator_leases_active Active leases.
# TYPE proxy_operator_leases_active gauge
proxy_operator_leases_active{cluster="eu"} 3
# HELP proxy_operator_proxies Proxies in the fleet.
# TYPE proxy_operator_proxies gauge
proxy_operator_proxies{cluster="eu",phase="Probing"} 1
# HELP proxy_operator_spokes Registered spokes by the reason of their Ready condition.
# TYPE proxy_operator_spokes gauge
proxy_operator_spokes{reason="Connected"} 2
# HELP proxy_operator_healthcheck_failures_total Probes that failed.
# TYPE proxy_operator_healthcheck_failures_total counter
proxy_operator_healthcheck_failures_total{cluster="eu",namespace="crawl",proxy="a",reason="Timeout"} 1
# HELP proxy_operator_healthcheck_schedule_lag_seconds How much later than due probes begin.
# TYPE proxy_operator_healthcheck_schedule_lag_seconds histogram
proxy_operator_healthcheck_schedule_lag_seconds_bucket{le="0.001"} 0
proxy_operator_healthcheck_schedule_lag_seconds_bucket{le="0.0025"} 0
proxy_operator_healthcheck_schedule_lag_seconds_bucket{le="0.005"} 0
proxy_operator_healthcheck_schedule_lag_seconds_bucket{le="0.01"} 0
proxy_operator_healthcheck_schedule_lag_seconds_bucket{le="0.025"} 1
proxy_operator_healthcheck_schedule_lag_seconds_bucket{le="0.05"} 1
proxy_operator_healthcheck_schedule_lag_seconds_bucket{le="0.1"} 1
proxy_operator_healthcheck_schedule_lag_seconds_bucket{le="0.25"} 1
proxy_operator_healthcheck_schedule_lag_seconds_bucket{le="0.5"} 1
proxy_operator_healthcheck_schedule_lag_seconds_bucket{le="1"} 1
proxy_operator_healthcheck_schedule_lag_seconds_bucket{le="2.5"} 1
proxy_operator_healthcheck_schedule_lag_seconds_bucket{le="5"} 1
proxy_operator_healthcheck_schedule_lag_seconds_bucket{le="10"} 1
proxy_operator_healthcheck_schedule_lag_seconds_bucket{le="30"} 2
proxy_operator_healthcheck_schedule_lag_seconds_bucket{le="+Inf"} 2
proxy_operator_healthcheck_schedule_lag_seconds_sum 20.02
proxy_operator_healthcheck_schedule_lag_seconds_count 2
# HELP proxy_operator_healthcheck_verdicts_held 1 while verdicts on Proxies are held back.
# TYPE proxy_operator_healthcheck_verdicts_held gauge
proxy_operator_healthcheck_verdicts_held 1
# HELP proxy_operator_lease_requests_total Requests for a lease by outcome.
# TYPE proxy_operator_lease_requests_total counter
proxy_operator_lease_requests_total{outcome="granted"} 1
# HELP proxy_operator_lease_wait_seconds How long requests with waitSeconds wait, those that are granted nothing too.
# TYPE proxy_operator_lease_wait_seconds histogram
proxy_operator_lease_wait_seconds_bucket{le="0.001"} 0
proxy_operator_lease_wait_seconds_bucket{le="0.01"} 0
proxy_operator_lease_wait_seconds_bucket{le="0.05"} 1
proxy_operator_lease_wait_seconds_bucket{le="0.1"} 1
proxy_operator_lease_wait_seconds_bucket{le="0.25"} 1
proxy_operator_lease_wait_seconds_bucket{le="0.5"} 1
proxy_operator_lease_wait_seconds_bucket{le="1"} 1
proxy_operator_lease_wait_seconds_bucket{le="2.5"} 1
proxy_operator_lease_wait_seconds_bucket{le="5"} 1
proxy_operator_lease_wait_seconds_bucket{le="10"} 1
proxy_operator_lease_wait_seconds_bucket{le="20"} 1
proxy_operator_lease_wait_seconds_bucket{le="30"} 1
proxy_operator_lease_wait_seconds_bucket{le="50"} 2
proxy_operator_lease_wait_seconds_bucket{le="+Inf"} 2
proxy_operator_lease_wait_seconds_sum 40.04
proxy_operator_lease_wait_seconds_count 2
# HELP proxy_operator_provider_requests_total Calls to a provider of instances.
# TYPE proxy_operator_provider_requests_total counter
proxy_operator_provider_requests_total{cluster="eu",op="create",provider="kubernetes",result="ok"} 1
`, "proxy_operator_cooldowns_active", "proxy_operator_leases_active", "proxy_operator_proxies", "proxy_operator_spokes",
		"proxy_operator_healthcheck_failures_total", "proxy_operator_healthcheck_schedule_lag_seconds", "proxy_operator_healthcheck_verdicts_held",
		"proxy_operator_lease_requests_total", "proxy_operator_lease_wait_seconds", "proxy_operator_provider_requests_total")
	held.Store(false)
	expect(heldIs0, "proxy_operator_healthcheck_verdicts_held")
	if n := testutil.CollectAndCount(m.probeSeconds); n != 1 {
		t.Errorf("%d series of probe durations, want 1", n)
	}

	m.Forget(key)
	m.ForgetSpoke("eu")
	if n := testutil.CollectAndCount(m.providerRs); n != 0 {
		t.Errorf("%d series of a spoke that is gone", n)
	}
	f.Retain("eu", nil)
	if n := testutil.CollectAndCount(m.probeSeconds) + testutil.CollectAndCount(m.probeFailures); n != 0 {
		t.Errorf("%d series of a Proxy that is gone", n)
	}
	expect("", "proxy_operator_proxies")
}

func TestASpokeWhosePathIsBrokenHasASeriesWhileItIs(t *testing.T) {
	var broken []string
	_, reg := with(Options{PathsBroken: func() []string { return broken }})
	for _, tc := range []struct {
		broken []string
		want   string
	}{
		{nil, ""},
		{[]string{"eu", "us"}, `
# HELP proxy_operator_spoke_path_broken 1 for each spoke whose Proxies all fail at the dial.
# TYPE proxy_operator_spoke_path_broken gauge
proxy_operator_spoke_path_broken{cluster="eu"} 1
proxy_operator_spoke_path_broken{cluster="us"} 1
`},
		{[]string{"us"}, `
# HELP proxy_operator_spoke_path_broken 1 for each spoke whose Proxies all fail at the dial.
# TYPE proxy_operator_spoke_path_broken gauge
proxy_operator_spoke_path_broken{cluster="us"} 1
`},
		{nil, ""},
	} {
		broken = tc.broken
		if err := testutil.GatherAndCompare(reg, strings.NewReader(tc.want), "proxy_operator_spoke_path_broken"); err != nil {
			t.Errorf("%v: %v", tc.broken, err)
		}
	}
}

func TestAHubWhoseEngineHoldsNothingSaysSo(t *testing.T) {
	_, reg := with(Options{})
	if err := testutil.GatherAndCompare(reg, strings.NewReader(heldIs0), "proxy_operator_healthcheck_verdicts_held"); err != nil {
		t.Error(err)
	}
}

func TestALargeFleetHasSeriesOfClusters(t *testing.T) {
	const perProxy, perCluster, none = "[eu/crawl/a eu/crawl/b us/crawl/a]", "[eu// us//]", "[]"
	for _, tc := range []struct {
		name  string
		limit int
		sizes []int
		// then is what there is after the sizes, and again what there is after probes.
		then, again string
	}{
		{"nothing is known of its size", 10, nil, perProxy, perProxy},
		{"at the limit", 10, []int{10}, perProxy, perProxy},
		{"above it", 10, []int{11}, none, perCluster},
		{"grown above it", 10, []int{10, 11, 12, 1000}, none, perCluster},
		{"somewhat smaller again", 10, []int{11, 10, 9, 8}, none, perCluster},
		{"below 80% of it", 10, []int{11, 7}, none, perProxy},
		{"between the two, from below", 10, []int{11, 7, 8, 10}, none, perProxy},
		{"above it once more", 10, []int{11, 7, 11}, none, perCluster},
		{"80% of one is less than one", 1, []int{2, 1}, none, perCluster},
		{"and nothing is below it", 1, []int{2, 0}, none, perProxy},
		{"no limit at all", 0, nil, perCluster, perCluster},
		{"no limit at all, and no Proxy", 0, []int{0}, perCluster, perCluster},
		{"no limit at all, and many", 0, []int{5000, 0}, perCluster, perCluster},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, reg := with(Options{PerProxyLimit: tc.limit})
			expect := func(when, want string) {
				t.Helper()
				if got := fmt.Sprint(probed(t, reg)); got != want {
					t.Errorf("%s: series of %s, want %s", when, got, want)
				}
			}
			all := []fleet.Key{named("eu", "a"), named("eu", "b"), named("us", "a")}
			fail(m, all...)
			for _, n := range tc.sizes {
				m.Size(n)
			}
			expect("then", tc.then)
			fail(m, all...)
			expect("after probes", tc.again)
			m.Forget(named("eu", "a"))
			expect("a Proxy is gone", strings.Replace(tc.again, "eu/crawl/a ", "", 1))
			m.ForgetSpoke("eu")
			expect("its spoke is", "[us/"+tc.again[strings.LastIndex(tc.again, "us/")+len("us/"):])
			m.ForgetSpoke("us")
			expect("all are", none)
		})
	}
}

func TestSeriesOfAClusterAddUpItsProxies(t *testing.T) {
	m, reg := with(Options{PerProxyLimit: 1})
	m.Size(2)
	fail(m, named("eu", "a"), named("eu", "b"))
	m.Probe(named("eu", "b"), time.Second, "DialFailed")
	m.Probe(named("eu", "b"), time.Second, "")
	if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP proxy_operator_healthcheck_failures_total Probes that failed.
# TYPE proxy_operator_healthcheck_failures_total counter
proxy_operator_healthcheck_failures_total{cluster="eu",namespace="",proxy="",reason="DialFailed"} 1
proxy_operator_healthcheck_failures_total{cluster="eu",namespace="",proxy="",reason="Timeout"} 2
`), "proxy_operator_healthcheck_failures_total"); err != nil {
		t.Error(err)
	}
}

// TestASwitchLeavesNoSeriesBehind probes and forgets all the while the fleet
// grows and shrinks. A series that is written as it was before a switch would
// stay: nothing takes it away any more.
func TestASwitchLeavesNoSeriesBehind(t *testing.T) {
	const clusters, proxies, limit = 4, 6, 10
	m, reg := with(Options{PerProxyLimit: limit})
	var probers sync.WaitGroup
	probing, cancel := context.WithCancel(t.Context())
	defer cancel()
	for c := range clusters {
		probers.Go(func() {
			for over := false; !over; {
				over = probing.Err() != nil // one more round, after the last switch
				for i := range proxies {
					fail(m, named(fmt.Sprint("c", c), fmt.Sprint(i)))
				}
				for i := 1; i < proxies; i++ {
					m.Forget(named(fmt.Sprint("c", c), fmt.Sprint(i)))
				}
			}
		})
	}
	expect := func(perCluster bool) {
		t.Helper()
		durations, failures := series(t, reg)
		for _, of := range append(durations, failures...) {
			if strings.HasSuffix(of, "//") != perCluster {
				t.Fatalf("a series of %s, per cluster: %v", of, perCluster)
			}
		}
	}
	for range 100 {
		m.Size(limit + 1)
		m.Size(limit)
		expect(true)
		m.Size(0)
		m.Size(limit)
		expect(false)
	}
	cancel()
	probers.Wait()
	if got := fmt.Sprint(probed(t, reg)); got != "[c0/crawl/0 c1/crawl/0 c2/crawl/0 c3/crawl/0]" {
		t.Errorf("series of %s in the end", got)
	}
	m.Size(limit + 1)
	for c := range clusters {
		fail(m, named(fmt.Sprint("c", c), "0"))
	}
	if got := fmt.Sprint(probed(t, reg)); got != "[c0// c1// c2// c3//]" {
		t.Errorf("series of %s in the end", got)
	}
}
