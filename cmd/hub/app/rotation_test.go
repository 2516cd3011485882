package app_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// external builds an External Proxy whose endpoint is a proxy on loopback.
func external(name string, port int32) *v1alpha1.Proxy {
	return &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: v1alpha1.ProxySpec{
			Mode: v1alpha1.ModeExternal, Endpoint: &v1alpha1.Endpoint{Host: "127.0.0.1", Port: port},
			Attributes:  map[string]v1alpha1.AttributeValue{"test": v1alpha1.AttributeValue(name)},
			HealthCheck: v1alpha1.HealthCheck{IntervalSeconds: 5, TimeoutSeconds: 5, FailureThreshold: 10},
		},
	}
}

// stream changes Proxies of a spoke without a pause until it is ended.
type stream struct {
	s       *spokeWorld
	changes atomic.Int64
	cancel  context.CancelFunc
	done    sync.WaitGroup
	failed  atomic.Value
}

const steady = 5 // Proxies that are there all the time

func startStream(t *testing.T, s *spokeWorld, port int32) *stream {
	ctx, cancel := context.WithCancel(t.Context())
	st := &stream{s: s, cancel: cancel}
	run := func(f func(context.Context, int) error) {
		st.done.Go(func() {
			pace := time.NewTicker(50 * time.Millisecond) // the machine has more to do
			defer pace.Stop()
			for i := 0; ctx.Err() == nil; i++ {
				<-pace.C
				if err := f(ctx, i); err != nil && ctx.Err() == nil {
					st.failed.Store(err)
					return
				}
				st.changes.Add(1)
			}
		})
	}
	run(func(ctx context.Context, i int) error { // edits of those that stay
		p := external(fmt.Sprintf("steady-%d", i%steady), port)
		patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"attributes":{"edit":"%d"}}}`, i))
		return s.Patch(ctx, p, patch)
	})
	run(func(ctx context.Context, i int) error { // some that come and go
		p := external(fmt.Sprintf("passing-%d", i), port)
		p.Labels = map[string]string{"passing": ""}
		if err := s.Create(ctx, p); err != nil || i%10 == 0 {
			return err
		}
		return s.Delete(ctx, p)
	})
	return st
}

func (st *stream) end(t *testing.T) {
	t.Helper()
	st.cancel()
	st.done.Wait()
	if err := st.failed.Load(); err != nil {
		t.Fatal(err)
	}
}

func rotations(t *testing.T, r *registrations) {
	const times = 100
	eu := r.spokes["eu"]
	port := r.forwardProxy()
	for i := range steady {
		r.create(eu, external(fmt.Sprintf("steady-%d", i), port))
	}
	r.eventually("the steady ones are listed", func() error { return missing(r.listed("?cluster=eu")) })
	turn := func() {
		kubeconfig := eu.hubKubeconfig(t)
		r.rotate("eu", kubeconfig)
		hash := fmt.Sprintf("%x", sha256.Sum256(kubeconfig))
		r.eventually("the new kubeconfig serves", func() error {
			spoke := &v1alpha1.Spoke{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "eu"}}
			if err := r.get(r.hub, spoke); err != nil {
				return err
			}
			if got := condition(spoke.Status.Conditions, v1alpha1.ConditionReady); !strings.HasPrefix(got, "True/Connected") {
				t.Fatalf("rotation made the spoke %s", got)
			}
			if got := condition(spoke.Status.Conditions, v1alpha1.ConditionCredentialAccepted); spoke.Status.KubeconfigHash != hash || !strings.HasPrefix(got, "True/") {
				return fmt.Errorf("it shows %s, %s", spoke.Status.KubeconfigHash, got)
			}
			return nil
		})
	}
	for range 3 {
		turn() // warm: caches of the libraries fill
	}
	goroutines, heap, watches := settled(), r.heapNow(), eu.watches(t)
	st := startStream(t, eu, port)
	gone := r.watchList()
	began := time.Now()
	for range times {
		turn()
	}
	took := time.Since(began)
	st.end(t)
	if holes, looks := gone(); holes != "" {
		t.Errorf("in %d looks at the list: %s", looks, holes)
	} else {
		t.Logf("%d looks at the list, none without a steady Proxy", looks)
	}
	r.nothingLost(eu)
	if err := eu.DeleteAllOf(t.Context(), &v1alpha1.Proxy{}, client.InNamespace(ns), client.HasLabels{"passing"}); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d rotations in %s under %d changes", times, took.Round(time.Second), st.changes.Load())

	r.eventually("watches, goroutines and memory are what they were", func() error {
		g, h, n := settled(), r.heapNow(), eu.watches(t)
		if n > watches || g > goroutines+10 || h > heap+16<<20 {
			return fmt.Errorf("watches %d -> %d, goroutines %d -> %d, heap %d -> %d KiB", watches, n, goroutines, g, heap>>10, h>>10)
		}
		t.Logf("watches of Proxies %d -> %d, goroutines %d -> %d, heap %d -> %d KiB", watches, n, goroutines, g, heap>>10, h>>10)
		return nil
	})
}

// missing names the steady Proxies that are not listed.
func missing(listed map[string]proxyItem) error {
	for i := range steady {
		if name := fmt.Sprintf("eu/steady-%d", i); listed[name].Name == "" {
			return fmt.Errorf("%s is not listed", name)
		}
	}
	return nil
}

// watchList looks at GET /v1/proxies all the time. The function that it returns
// ends that and says what was missing.
func (r *registrations) watchList() func() (holes string, looks int) {
	stop := make(chan struct{})
	var holes string
	var looks int
	var done sync.WaitGroup
	done.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			listed, err := r.list("?cluster=eu&limit=5000")
			if err == nil {
				err = missing(listed)
			}
			if err != nil {
				holes = err.Error()
			}
			looks++
		}
	})
	return func() (string, int) {
		close(stop)
		done.Wait()
		return holes, looks
	}
}

// nothingLost holds the list and every status against what the spoke has.
func (r *registrations) nothingLost(s *spokeWorld) {
	r.t.Helper()
	r.eventually("every change has arrived", func() error {
		var there v1alpha1.ProxyList
		if err := s.List(r.t.Context(), &there, client.InNamespace(ns)); err != nil {
			return err
		}
		listed := r.listed("?cluster=" + s.name + "&limit=5000")
		if len(listed) != len(there.Items) {
			return fmt.Errorf("%d listed, %d in the spoke", len(listed), len(there.Items))
		}
		for i := range there.Items {
			p := &there.Items[i]
			if p.Status.ObservedGeneration != p.Generation {
				return fmt.Errorf("%s: generation %d, observed %d", p.Name, p.Generation, p.Status.ObservedGeneration)
			}
			item := listed[s.name+"/"+p.Name]
			for k, v := range p.Spec.Attributes {
				if item.Attributes[k] != string(v) {
					return fmt.Errorf("%s: %s is listed as %q, is %q", p.Name, k, item.Attributes[k], v)
				}
			}
		}
		return nil
	})
}

var watchGauge = regexp.MustCompile(`apiserver_longrunning_requests\{[^}]*resource="proxies"[^}]*verb="WATCH"[^}]*\} (\d+)`)

// watches asks the API server how many watches of Proxies it serves.
func (s *spokeWorld) watches(t *testing.T) int {
	t.Helper()
	clients := must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(s.plane.Admin()))
	body := must[[]byte](t)(clients.RESTClient().Get().AbsPath("/metrics").Do(t.Context()).Raw())
	total := 0
	for _, found := range watchGauge.FindAllStringSubmatch(string(body), -1) {
		total += must[int](t)(strconv.Atoi(found[1]))
	}
	return total
}

// settled counts goroutines without those of idle connections.
func settled() int {
	http.DefaultClient.CloseIdleConnections()
	return runtime.NumGoroutine()
}

// heapNow is the heap in use, without the logs that the test keeps.
func (r *registrations) heapNow() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc - r.log.size()
}

func minuteAway(t *testing.T, r *registrations) {
	eu := r.spokes["eu"]
	// Deleted, and its pod not gone yet: the deletion has to wait for the server.
	going := managed("going", r.forwardProxy())
	lastPod := r.up(eu, going)
	r.remove(eu, going)
	r.proxyShows(eu, going, v1alpha1.PhaseDeleting)
	if err := eu.plane.KillAPIServer(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	before := len(r.listed("?cluster=eu&limit=5000"))
	spoke := r.spokeShows("eu", v1alpha1.ConditionReady, "False/Unreachable", "")
	t.Logf("Unreachable %s after the end of the API server", time.Since(killed).Round(time.Millisecond))
	lost := readyCondition(spoke).LastTransitionTime
	if lost.Time.Sub(killed) > 12*time.Second {
		t.Errorf("the loss is dated %s after the end, want the first contact that failed", lost.Time.Sub(killed))
	}
	minute := time.After(time.Until(killed.Add(time.Minute)))
	for away := true; away; {
		if now := len(r.listed("?cluster=eu&limit=5000")); now != before {
			t.Fatalf("%d Proxies listed, %d before", now, before)
		}
		var granted leaseReply
		if status := r.call("POST", "/v1/leases", `{"cluster":"eu","selector":{"test":"first"},"ttlSeconds":1}`, &granted); status != http.StatusCreated {
			t.Fatalf("lease while the API server is away: %d %+v", status, granted)
		}
		r.fetchThrough(granted.Proxy.URL)
		select {
		case <-minute:
			away = false
		case <-time.After(time.Second):
		}
	}
	if now := readyCondition(r.spokeShows("eu", v1alpha1.ConditionReady, "False/Unreachable", "")).LastTransitionTime; !now.Equal(&lost) {
		t.Errorf("the first moment of loss moved from %s to %s", lost, now)
	}
	if err := eu.plane.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	r.vanish(eu, lastPod)
	r.gone(eu, going)
	t.Logf("a deletion that had to wait is done %s after it was back", time.Since(back).Round(time.Millisecond))
	r.up(eu, managed("right-after", r.forwardProxy())) // applied right after it is back
	t.Logf("a Proxy applied right after it was back is Ready after %s", time.Since(back).Round(time.Millisecond))
	r.spokeShows("eu", v1alpha1.ConditionReady, "True/Connected", "")
	r.eventHappened("eu", "Warning", "Unreachable")
	r.nothingLost(eu)
}

func readyCondition(spoke *v1alpha1.Spoke) metav1.Condition {
	for _, c := range spoke.Status.Conditions {
		if c.Type == v1alpha1.ConditionReady {
			return c
		}
	}
	return metav1.Condition{}
}
