package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

func TestGaugesAreReadFromLiveStateAndSeriesGoWithTheirProxy(t *testing.T) {
	f := fleet.New(fleet.Options{AllowLocal: true})
	reg := prometheus.NewPedanticRegistry()
	m := New(reg, Sources{
		Proxies:         f.All,
		SpokeReasons:    func() map[string]int { return map[string]int{"Connected": 2} },
		LeasesByCluster: func() map[string]int { return map[string]int{"eu": 3} },
		Cooldowns:       func() int { return 1 },
	})
	key := fleet.Key{Cluster: "eu", Namespace: "crawl", Name: "a"}
	f.Upsert(fleet.Proxy{Key: key, UID: "u", Instance: "i", Provisioned: true, Host: "10.0.0.1"})
	m.Probe(key, time.Second, "")
	m.Probe(key, time.Second, "Timeout")
	m.LeaseRequest("granted")
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
# HELP proxy_operator_lease_requests_total Requests for a lease by outcome.
# TYPE proxy_operator_lease_requests_total counter
proxy_operator_lease_requests_total{outcome="granted"} 1
# HELP proxy_operator_provider_requests_total Calls to a provider of instances.
# TYPE proxy_operator_provider_requests_total counter
proxy_operator_provider_requests_total{cluster="eu",op="create",provider="kubernetes",result="ok"} 1
`, "proxy_operator_cooldowns_active", "proxy_operator_leases_active", "proxy_operator_proxies", "proxy_operator_spokes",
		"proxy_operator_healthcheck_failures_total", "proxy_operator_lease_requests_total", "proxy_operator_provider_requests_total")
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
