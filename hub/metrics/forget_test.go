package metrics

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

var failures = []string{"DialFailed", "Timeout", "ConnectRefused", "TLSFailed", "UnexpectedStatus", "ProxyAuthRequired"}

func TestTheSeriesOfAProxyGoForEveryReason(t *testing.T) {
	m, reg := with(Options{PerProxyLimit: 10})
	a, b := named("eu", "a"), named("eu", "b")
	// Alike but for one label each, which must not be mistaken for it.
	alike := []fleet.Key{b, named("us", "a"), {Cluster: "eu", Namespace: "other", Name: "a"}}
	for i, reason := range failures {
		m.Probe(a, time.Second, reason)
		m.Probe(alike[i%len(alike)], time.Second, reason)
	}
	m.Forget(a)
	if n := testutil.CollectAndCount(m.probeFailures); n != len(failures) {
		t.Errorf("%d series of failures, want %d", n, len(failures))
	}
	durations, failed := series(t, reg)
	for _, of := range append(durations, failed...) {
		if of == "eu/crawl/a" {
			t.Error("a series of the Proxy that is gone")
		}
	}

	// A reason that was met for the first time before a switch is known after it.
	m.Size(11)
	m.Probe(b, time.Second, "OfACluster")
	m.Size(0)
	for _, reason := range append(failures, "OfACluster") {
		m.Probe(b, time.Second, reason)
	}
	m.Forget(b)
	if n := testutil.CollectAndCount(m.probeFailures) + testutil.CollectAndCount(m.probeSeconds); n != 0 {
		t.Errorf("%d series, and no Proxy", n)
	}
}

// BenchmarkForget is of one Proxy among others, each with failures of two reasons: it
// takes some microseconds among 8000 as among 100.
func BenchmarkForget(b *testing.B) {
	for _, among := range []int{100, 8000} {
		b.Run(fmt.Sprint(among), func(b *testing.B) {
			m, _ := with(Options{PerProxyLimit: among + 1})
			add := func(key fleet.Key) {
				for i := range 2 {
					m.Probe(key, time.Second, failures[i])
				}
			}
			for _, reason := range failures {
				m.Probe(named("us", "a"), time.Second, reason)
			}
			for i := range among {
				add(named("eu", fmt.Sprint(i)))
			}
			for i := 0; b.Loop(); i++ {
				key := named("eu", fmt.Sprint(i%among))
				m.Forget(key)
				b.StopTimer()
				add(key)
				b.StartTimer()
			}
		})
	}
}
