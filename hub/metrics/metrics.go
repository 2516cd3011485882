// Package metrics holds the hub's Prometheus metrics, prefix proxy_operator_.
//
// Every package that has something to report declares the recorder that it
// needs; Metrics satisfies them all, and only cmd knows this package. Gauges
// are read from live state at scrape time (Collect), since gauges that are
// counted up and down drift; what happens is fed (the Recorder methods). It
// registers with the Registerer it is given, so that tests have their own.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// Sources are where the scrape-time metrics are read.
type Sources struct {
	// Proxies are all in the fleet.
	Proxies func() []*fleet.Proxy
	// SpokeReasons counts registered spokes by the reason of their Ready condition.
	SpokeReasons func() map[string]int
	// LeasesByCluster counts active leases, Cooldowns active cooldowns.
	LeasesByCluster func() map[string]int
	Cooldowns       func() int
}

// Metrics is a collector of the scrape-time metrics and holds the fed ones.
type Metrics struct {
	sources                              Sources
	proxies, spokes, leases, cooldowns   *prometheus.Desc
	probeSeconds                         *prometheus.HistogramVec
	probeFailures, leaseReqs, providerRs *prometheus.CounterVec
}

// New registers the metrics with reg. It panics if they are registered already.
func New(reg prometheus.Registerer, s Sources) *Metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("proxy_operator_"+name, help, labels, nil)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "proxy_operator_" + name, Help: help}, labels)
	}
	m := &Metrics{
		sources:   s,
		proxies:   desc("proxies", "Proxies in the fleet.", "cluster", "phase"),
		spokes:    desc("spokes", "Registered spokes by the reason of their Ready condition.", "reason"),
		leases:    desc("leases_active", "Active leases.", "cluster"),
		cooldowns: desc("cooldowns_active", "Active cooldowns of a proxy for a target."),
		probeSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "proxy_operator_healthcheck_duration_seconds",
			Help:    "How long probes through a proxy take, failed ones too.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"cluster", "namespace", "proxy"}),
		probeFailures: counter("healthcheck_failures_total", "Probes that failed.", "cluster", "namespace", "proxy", "reason"),
		leaseReqs:     counter("lease_requests_total", "Requests for a lease by outcome.", "outcome"),
		providerRs:    counter("provider_requests_total", "Calls to a provider of instances.", "provider", "cluster", "op", "result"),
	}
	reg.MustRegister(m, m.probeSeconds, m.probeFailures, m.leaseReqs, m.providerRs)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.proxies
	ch <- m.spokes
	ch <- m.leases
	ch <- m.cooldowns
}

// Collect implements prometheus.Collector: it reads live state.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	type bucket struct{ cluster, phase string }
	phases := map[bucket]int{}
	for _, p := range m.sources.Proxies() {
		phases[bucket{p.Cluster, p.Phase()}]++
	}
	for b, n := range phases {
		gauge(m.proxies, n, b.cluster, b.phase)
	}
	for reason, n := range m.sources.SpokeReasons() {
		gauge(m.spokes, n, reason)
	}
	for cluster, n := range m.sources.LeasesByCluster() {
		gauge(m.leases, n, cluster)
	}
	gauge(m.cooldowns, m.sources.Cooldowns())
}

// Probe records one probe; failure is its reason, empty for one that passed.
func (m *Metrics) Probe(key fleet.Key, took time.Duration, failure string) {
	m.probeSeconds.WithLabelValues(key.Cluster, key.Namespace, key.Name).Observe(took.Seconds())
	if failure != "" {
		m.probeFailures.WithLabelValues(key.Cluster, key.Namespace, key.Name, failure).Inc()
	}
}

// Forget drops the series of a Proxy that is no longer probed.
func (m *Metrics) Forget(key fleet.Key) {
	m.probeSeconds.DeleteLabelValues(key.Cluster, key.Namespace, key.Name)
	m.probeFailures.DeletePartialMatch(prometheus.Labels{"cluster": key.Cluster, "namespace": key.Namespace, "proxy": key.Name})
}

// ForgetSpoke drops the series of a spoke that is deregistered.
func (m *Metrics) ForgetSpoke(name string) {
	m.providerRs.DeletePartialMatch(prometheus.Labels{"cluster": name})
}

// LeaseRequest records one request for a lease.
func (m *Metrics) LeaseRequest(outcome string) { m.leaseReqs.WithLabelValues(outcome).Inc() }

// ProviderRequest records one call to a provider.
func (m *Metrics) ProviderRequest(provider, cluster, op, result string) {
	m.providerRs.WithLabelValues(provider, cluster, op, result).Inc()
}
