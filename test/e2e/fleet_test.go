package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"

	"k8s.io/utils/ptr"
)

// TestFleet is a life of a fleet. Each step says what its users lose when it fails.
func TestFleet(t *testing.T) {
	w := newWorld(t)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"all Proxies of both spokes come up and are listed", samplesServe},
		{"a crawler fetches pages through leased proxies", leasedPages},
		{"a proxy is not leased to more clients than it may have", capacity},
		{"operators see the fleet in the metrics", metrics},
		{"admins see what each spoke has", spokesCount},
		{"a hanging proxy is found out in time and leased to nobody until it is back", hangingProxy},
		{"a proxy process that dies comes back in the same pod", killedProxy},
		{"a deleted Proxy leaves nothing behind", deletedProxy},
		{"a bad kubeconfig is explained, never executed, and harms nobody", badKubeconfigs},
		{"a bad request is refused with its reason", badRequests},
		{"a hub that is stopped and started again knows its fleet and creates nothing twice", stoppedHub},
		{"an edit made while the hub was dead is carried out, once", killedHub},
		{"no program has panicked or told a secret", cleanLogs},
		{"Ctrl-C stops and removes everything", interrupted},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, w) }) {
			return // the next steps build on this one
		}
	}
}

// samples are what the demo applies.
var samples = []string{
	"eu-west/crawl/eu-1", "eu-west/crawl/eu-2", "eu-west/crawl/eu-3",
	"us-east/crawl/us-1", "us-east/crawl/us-2", "us-east/crawl/us-external",
}

const externalSample = "us-external"

// wantSamples fails unless exactly the samples are listed, and all of them as healthy.
func (w *world) wantSamples(t *testing.T) []leasedProxy {
	t.Helper()
	listed := w.api.list(t, "")
	var keys []string
	for _, p := range listed {
		keys = append(keys, p.key())
		if !p.Healthy || p.Phase != "Ready" {
			t.Errorf("%s is %s, healthy %v", p.key(), p.Phase, p.Healthy)
		}
		if p.URL != "" {
			t.Errorf("%s is listed with the URL %s, which belongs in leases alone", p.key(), p.URL)
		}
	}
	if !slices.Equal(keys, samples) {
		t.Fatalf("listed are %v, want %v", keys, samples)
	}
	return listed
}

func samplesServe(t *testing.T, w *world) {
	w.wantNamed(t)
	for _, listed := range w.wantSamples(t) {
		spoke := w.spokes[listed.Cluster]
		p := spoke.proxy(t, listed.Name)
		for _, kind := range []string{v1alpha1.ConditionProvisioned, v1alpha1.ConditionHealthy, v1alpha1.ConditionReady} {
			if got := condition(p.Status.Conditions, kind); !strings.HasPrefix(got, "True/") {
				t.Errorf("%s: %s is %s", p.Name, kind, got)
			}
		}
		endpoint := fmt.Sprintf("%s:%d", listed.Host, listed.Port)
		if p.Status.Phase != v1alpha1.PhaseReady || p.Status.Endpoint != endpoint || string(p.UID) != listed.UID {
			t.Errorf("%s is listed as %+v, its status is %+v", p.Name, listed, p.Status)
		}
		if p.Name == externalSample {
			continue
		}
		if pod := spoke.onlyPod(t, p); pod.Status.PodIP != listed.Host || pod.Namespace != p.Namespace {
			t.Errorf("%s is listed at %s, its pod %s/%s has %s", p.Name, listed.Host, pod.Namespace, pod.Name, pod.Status.PodIP)
		}
	}
	if pods := w.podsOfFleet(t); len(pods) != len(samples)-1 {
		t.Errorf("pods run for %v", pods)
	}
	for name, spoke := range w.spokes {
		s := w.spoke(t, name)
		if got := condition(s.Status.Conditions, v1alpha1.ConditionReady); got != "True/Connected: connected" {
			t.Errorf("spoke %s: Ready is %s", name, got)
		}
		if s.Status.Server != strings.TrimSuffix(spoke.config.Host, "/") || s.Status.Version == "-" || s.Status.ClusterUID == "" {
			t.Errorf("spoke %s at %s: %+v", name, spoke.config.Host, s.Status)
		}
	}
}

func (w *world) spoke(t *testing.T, name string) *v1alpha1.Spoke {
	t.Helper()
	s := &v1alpha1.Spoke{}
	if err := w.hub.Get(t.Context(), client.ObjectKey{Namespace: system, Name: name}, s); err != nil {
		t.Fatal(err)
	}
	return s
}

// leasedPages leases in each spoke, and the External one, and uses what it gets.
func leasedPages(t *testing.T, w *world) {
	for _, ask := range []struct{ body, cluster, name string }{
		{`{"cluster":"eu-west","target":"127.0.0.1","ttlSeconds":60}`, euWest, ""},
		{`{"cluster":"us-east","selector":{"tier":"datacenter"}}`, usEast, ""},
		{`{"selector":{"region":"us","tier":"residential"}}`, usEast, externalSample},
	} {
		l := w.api.mustAcquire(t, ask.body)
		if p := l.Proxy; p.Cluster != ask.cluster || ask.name != "" && p.Name != ask.name || !p.Healthy || p.ActiveLeases != 1 {
			t.Fatalf("asked for %s, got %+v", ask.body, p)
		}
		if err := w.fetch(t, l); err != nil {
			t.Fatalf("through %s: %v", l.Proxy.key(), err)
		}
		w.wantLeases(t, l, 1)
		if r := w.api.call(t, http.MethodPost, "/v1/leases/"+l.LeaseID+"/report", `{"result":"ok"}`); r.status != http.StatusNoContent {
			t.Fatalf("report: %s", r)
		}
		w.api.release(t, l)
		w.wantLeases(t, l, 0)
		w.api.release(t, l) // of a client that did not hear the first answer
		w.wantLeases(t, l, 0)
	}
}

// wantLeases fails unless the leased Proxy is listed with so many active leases.
func (w *world) wantLeases(t *testing.T, l lease, want int) {
	t.Helper()
	for _, p := range w.api.list(t, "?cluster="+l.Proxy.Cluster) {
		if p.UID == l.Proxy.UID && p.ActiveLeases == want {
			return
		}
	}
	t.Fatalf("%s is not listed with %d leases", l.Proxy.key(), want)
}

// capacity uses the sample that only one client may have at a time.
func capacity(t *testing.T, w *world) {
	const premium = `{"selector":{"tier":"premium"}}`
	l := w.api.mustAcquire(t, premium)
	_, r := w.api.acquire(t, premium)
	got := decode[refusal](t, r)
	want := refusal{Error: "no_match", Message: got.Message, Considered: 1, AtCapacity: 1}
	if r.status != http.StatusConflict || got != want || r.header.Get("Retry-After") == "" {
		t.Fatalf("a second lease: %s, Retry-After %q", r, r.header.Get("Retry-After"))
	}
	w.api.release(t, l)
	w.api.release(t, w.api.mustAcquire(t, premium))
}

func metrics(t *testing.T, w *world) {
	l := w.api.mustAcquire(t, `{"cluster":"us-east"}`)
	defer w.api.release(t, l)
	series := w.metrics(t)
	for name, want := range map[string]float64{
		`proxy_operator_proxies{cluster="eu-west",phase="Ready"}`: 3,
		`proxy_operator_proxies{cluster="us-east",phase="Ready"}`: 3,
		`proxy_operator_spokes{reason="Connected"}`:               2,
		`proxy_operator_leases_active{cluster="us-east"}`:         1,
	} {
		if series[name] != want {
			t.Errorf("%s is %v, want %v", name, series[name], want)
		}
	}
	for _, key := range w.wantSamples(t) {
		probes := fmt.Sprintf(`proxy_operator_healthcheck_duration_seconds_count{cluster=%q,namespace=%q,proxy=%q}`, key.Cluster, key.Namespace, key.Name)
		if series[probes] < 1 {
			t.Errorf("%s is %v, want at least 1", probes, series[probes])
		}
	}
	for _, counter := range []struct {
		name   string
		labels []string
		least  float64
	}{
		{"proxy_operator_lease_requests_total", []string{`outcome="granted"`}, 5},
		{"proxy_operator_lease_requests_total", []string{`outcome="no_match"`}, 1},
		{"proxy_operator_provider_requests_total", []string{`provider="kubernetes"`, `cluster="eu-west"`, `op="create"`, `result="ok"`}, 3},
		{"proxy_operator_provider_requests_total", []string{`provider="kubernetes"`, `cluster="us-east"`, `op="create"`, `result="ok"`}, 2},
	} {
		if got := sum(series, counter.name, counter.labels...); got < counter.least {
			t.Errorf("%s with %v is %v, want at least %v", counter.name, counter.labels, got, counter.least)
		}
	}
}

// spokesCount waits for the counts; those that change again may be written a minute later.
func spokesCount(t *testing.T, w *world) {
	w.wantCounts(t, time.Minute+patience)
}

// wantCounts waits until each Spoke shows its three samples, and the External one without an
// instance.
func (w *world) wantCounts(t *testing.T, within time.Duration) {
	t.Helper()
	for name, instances := range map[string]int32{euWest: 3, usEast: 2} {
		eventually(t, within, "spoke "+name+" counts 3 Proxies", func() error {
			if s := w.spoke(t, name).Status; ptr.Deref(s.Proxies, 0) != 3 || ptr.Deref(s.Instances, 0) != instances {
				return fmt.Errorf("it shows %d Proxies and %d instances", ptr.Deref(s.Proxies, -1), ptr.Deref(s.Instances, -1))
			}
			return nil
		})
	}
}

// wantUnchanged fails unless the fleet is what it was, still serves, and runs in the same pods.
func (w *world) wantUnchanged(t *testing.T, change func()) {
	t.Helper()
	fleet, pods := w.wantSamples(t), w.podsOfFleet(t)
	change()
	if now := w.wantSamples(t); !reflect.DeepEqual(now, fleet) {
		t.Errorf("the fleet was %+v and is %+v", fleet, now)
	}
	if now := w.podsOfFleet(t); !reflect.DeepEqual(now, pods) {
		t.Errorf("the pods were %v and are %v", pods, now)
	}
	for name := range w.spokes {
		l := w.api.mustAcquire(t, fmt.Sprintf(`{"cluster":%q}`, name))
		if err := w.fetch(t, l); err != nil {
			t.Errorf("through %s: %v", l.Proxy.key(), err)
		}
		w.api.release(t, l)
	}
}

// gone turns the error of reading an object into nil if it says that there is none.
func gone(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	default:
		return errors.New("it is still there")
	}
}
