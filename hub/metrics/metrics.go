// Package metrics holds the hub's Prometheus metrics, prefix proxy_operator_.
//
// Every package that has something to report declares the recorder that it
// needs; Metrics satisfies them all, and only cmd knows this package. Gauges
// are read from live state at scrape time (Collect), since gauges that are
// counted up and down drift; what happens is fed (the Recorder methods). It
// registers with the Registerer it is given, so that tests have their own.
//
// What is fed about probes has a series for each Proxy. In a fleet of more than
// Options.PerProxyLimit it has one for each cluster instead.
package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// Options are where the scrape-time metrics are read, and how many series the
// others may have.
type Options struct {
	// Proxies are all in the fleet.
	Proxies func() []*fleet.Proxy
	// SpokeReasons counts registered spokes by the reason of their Ready condition.
	SpokeReasons func() map[string]int
	// LeasesByCluster counts active leases, Cooldowns active cooldowns.
	LeasesByCluster func() map[string]int
	Cooldowns       func() int
	// PathsBroken are the spokes of which no Proxy that counts is reached; nil: none.
	PathsBroken func() []string
	// VerdictsHeld says that the health engine holds verdicts; nil: it never does.
	VerdictsHeld func() bool
	// PerProxyLimit is how many Proxies the fleet may have before the series of
	// probes are those of clusters; 0: they always are.
	PerProxyLimit int
}

// Metrics is a collector of the scrape-time metrics and holds the fed ones.
type Metrics struct {
	options                                          Options
	proxies, spokes, broken, leases, cooldowns, held *prometheus.Desc
	probeSeconds                                     *prometheus.HistogramVec
	scheduleLag, leaseWaits                          prometheus.Histogram
	probeFailures, leaseReqs, providerRs             *prometheus.CounterVec

	// reasons are those for which any probe has failed, so that the series of one Proxy
	// can be named without a look at all the others'.
	reasons sync.Map

	// mu is held to read while a series of probes is written, and to write while
	// perCluster changes: none is written as it was before.
	mu         sync.RWMutex
	perCluster bool
}

// New registers the metrics with reg. It panics if they are registered already.
func New(reg prometheus.Registerer, o Options) *Metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("proxy_operator_"+name, help, labels, nil)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "proxy_operator_" + name, Help: help}, labels)
	}
	m := &Metrics{
		options:    o,
		perCluster: o.PerProxyLimit <= 0,
		proxies:    desc("proxies", "Proxies in the fleet.", "cluster", "phase"),
		spokes:     desc("spokes", "Registered spokes by the reason of their Ready condition.", "reason"),
		broken:     desc("spoke_path_broken", "1 for each spoke whose Proxies all fail at the dial.", "cluster"),
		leases:     desc("leases_active", "Active leases.", "cluster"),
		cooldowns:  desc("cooldowns_active", "Active cooldowns of a proxy for a target."),
		held:       desc("healthcheck_verdicts_held", "1 while verdicts on Proxies are held back."),
		probeSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "proxy_operator_healthcheck_duration_seconds",
			Help:    "How long probes through a proxy take, failed ones too.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"cluster", "namespace", "proxy"}),
		scheduleLag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "proxy_operator_healthcheck_schedule_lag_seconds",
			Help:    "How much later than due probes begin.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
		leaseWaits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "proxy_operator_lease_wait_seconds",
			Help:    "How long requests with waitSeconds wait, those that are granted nothing too.",
			Buckets: []float64{.001, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 50},
		}),
		probeFailures: counter("healthcheck_failures_total", "Probes that failed.", "cluster", "namespace", "proxy", "reason"),
		leaseReqs:     counter("lease_requests_total", "Requests for a lease by outcome.", "outcome"),
		providerRs:    counter("provider_requests_total", "Calls to a provider of instances.", "provider", "cluster", "op", "result"),
	}
	reg.MustRegister(m, m.probeSeconds, m.scheduleLag, m.leaseWaits, m.probeFailures, m.leaseReqs, m.providerRs)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.proxies
	ch <- m.spokes
	ch <- m.broken
	ch <- m.leases
	ch <- m.cooldowns
	ch <- m.held
}

// Collect implements prometheus.Collector: it reads live state.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	type bucket struct{ cluster, phase string }
	phases := map[bucket]int{}
	for _, p := range m.options.Proxies() {
		phases[bucket{p.Cluster, p.Phase()}]++
	}
	for b, n := range phases {
		gauge(m.proxies, n, b.cluster, b.phase)
	}
	for reason, n := range m.options.SpokeReasons() {
		gauge(m.spokes, n, reason)
	}
	if m.options.PathsBroken != nil {
		for _, cluster := range m.options.PathsBroken() {
			gauge(m.broken, 1, cluster)
		}
	}
	for cluster, n := range m.options.LeasesByCluster() {
		gauge(m.leases, n, cluster)
	}
	gauge(m.cooldowns, m.options.Cooldowns())
	held := 0
	if m.options.VerdictsHeld != nil && m.options.VerdictsHeld() {
		held = 1
	}
	gauge(m.held, held)
}

// Size records how many Proxies are in the fleet now: with more than the limit
// the series of probes become those of clusters, with less than 80% of it those of
// Proxies again. The series that there were go at that moment; otherwise it is quick.
func (m *Metrics) Size(n int) {
	m.mu.RLock()
	settled := m.perCluster == m.perClusterWith(n)
	m.mu.RUnlock()
	if settled {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.perClusterWith(n); now != m.perCluster {
		m.perCluster = now
		m.probeSeconds.Reset()
		m.probeFailures.Reset()
	}
}

// perClusterWith says what the series are with n Proxies. In between it stays.
func (m *Metrics) perClusterWith(n int) bool {
	switch limit := m.options.PerProxyLimit; {
	case limit <= 0 || n > limit:
		return true
	case n*5 < limit*4:
		return false
	default:
		return m.perCluster
	}
}

// Started records how much later than due a probe began.
func (m *Metrics) Started(lag time.Duration) { m.scheduleLag.Observe(lag.Seconds()) }

// Probe records one probe; failure is its reason, empty for one that passed.
func (m *Metrics) Probe(key fleet.Key, took time.Duration, failure string) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.perCluster {
		key.Namespace, key.Name = "", ""
	}
	m.probeSeconds.WithLabelValues(key.Cluster, key.Namespace, key.Name).Observe(took.Seconds())
	if failure != "" {
		m.reasons.LoadOrStore(failure, nil) // before there is a series of it
		m.probeFailures.WithLabelValues(key.Cluster, key.Namespace, key.Name, failure).Inc()
	}
}

// Forget drops the series of a Proxy that is no longer probed. Those of its
// cluster stay. It is called under the fleet's lock, and takes as long however many
// Proxies there are.
func (m *Metrics) Forget(key fleet.Key) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.perCluster {
		return
	}
	m.probeSeconds.DeleteLabelValues(key.Cluster, key.Namespace, key.Name)
	for reason := range m.reasons.Range {
		m.probeFailures.DeleteLabelValues(key.Cluster, key.Namespace, key.Name, reason.(string))
	}
}

// ForgetSpoke drops the series of a spoke that is deregistered.
func (m *Metrics) ForgetSpoke(name string) {
	of := prometheus.Labels{"cluster": name}
	m.probeSeconds.DeletePartialMatch(of)
	m.probeFailures.DeletePartialMatch(of)
	m.providerRs.DeletePartialMatch(of)
}

// LeaseRequest records one request for a lease.
func (m *Metrics) LeaseRequest(outcome string) { m.leaseReqs.WithLabelValues(outcome).Inc() }

// LeaseWait records how long a request waited that was ready to.
func (m *Metrics) LeaseWait(d time.Duration) { m.leaseWaits.Observe(d.Seconds()) }

// ProviderRequest records one call to a provider.
func (m *Metrics) ProviderRequest(provider, cluster, op, result string) {
	m.providerRs.WithLabelValues(provider, cluster, op, result).Inc()
}
