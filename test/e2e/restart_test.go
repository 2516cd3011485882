package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/test/process"
)

func stoppedHub(t *testing.T, w *world) {
	fleet, pods, events := w.wantSamples(t), w.podsOfFleet(t), w.watchPods(t)
	pid := w.pid(t, "HUB")
	w.endHub(t, pid, syscall.SIGTERM)
	lost := fmt.Sprintf("lost hub, PID %d: exit status 0", pid)
	eventually(t, patience, "the demo goes on and tells of the loss", func() error {
		if output := w.process.LogTail(50); !strings.Contains(output, lost) {
			return fmt.Errorf("%q is not in its output", lost)
		}
		return nil
	})
	// A hub that starts waits for its spokes, and must not wait for one that will never do.
	w.register(t, "unreadable", []byte("\x00"))
	w.startHub(t)
	w.knowsItsFleet(t)
	w.wantSpoke(t, "unreadable", "False/KubeconfigInvalid: ", []string{"not a kubeconfig"})
	w.deregister(t, "unreadable")
	w.hasLookedAtAll(t)
	series := w.metrics(t)
	for _, op := range []string{"create", "delete"} {
		if n := sum(series, "proxy_operator_provider_requests_total", `op="`+op+`"`); n != 0 {
			t.Errorf("it has called %s %v times", op, n)
		}
	}
	if now := w.wantSamples(t); !reflect.DeepEqual(now, fleet) {
		t.Errorf("the fleet was %+v and is %+v", fleet, now)
	}
	if now := w.podsOfFleet(t); !reflect.DeepEqual(now, pods) {
		t.Errorf("the pods were %v and are %v", pods, now)
	}
	events.want(t, nil, nil)
	w.wantUnchanged(t, func() { w.wantCounts(t, patience) })
}

// killedHub edits the Proxy that one lease finds for sure.
func killedHub(t *testing.T, w *world) {
	const name, premium, port = "eu-3", `{"selector":{"tier":"premium"}}`, 8889
	eu := w.spokes[euWest]
	p := eu.proxy(t, name)
	old, pods, events := eu.onlyPod(t, p), w.podsOfFleet(t), w.watchPods(t)
	w.endHub(t, w.hubPID(t), syscall.SIGKILL)

	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"port":%d}}`, port))
	if err := eu.Patch(t.Context(), p, patch); err != nil {
		t.Fatal(err)
	}
	if pod := eu.onlyPod(t, p); pod.UID != old.UID {
		t.Fatal("somebody replaces pods while there is no hub")
	}
	w.startHub(t)
	took := eventually(t, patience, "the edit is carried out", func() error { return w.replaced(t, name, &old, port) })
	t.Logf("the edited Proxy was Ready on a new pod %s after the hub's start", took.Round(time.Millisecond))
	w.knowsItsFleet(t)
	w.hasLookedAtAll(t)

	l := w.api.mustAcquire(t, premium)
	if l.Proxy.Name != name || l.Proxy.Port != port {
		t.Errorf("leased is %+v", l.Proxy)
	}
	if err := w.fetch(t, l); err != nil {
		t.Errorf("through the new pod: %v", err)
	}
	w.api.release(t, l)
	if pid := pidOf(t, &old); process.Alive(pid) {
		t.Errorf("the old pod's process %d lives", pid)
	}
	replacement := eu.onlyPod(t, p).UID
	pods[euWest+"/"+name] = replacement
	if now := w.podsOfFleet(t); !reflect.DeepEqual(now, pods) {
		t.Errorf("the pods should be %v and are %v", pods, now)
	}
	events.want(t, []types.UID{replacement}, []types.UID{old.UID})
}

// replaced says what is missing until a Proxy is Ready on another pod than old, which listens
// on port. Two pods at once fail the test.
func (w *world) replaced(t *testing.T, name string, old *corev1.Pod, port int) error {
	t.Helper()
	eu := w.spokes[euWest]
	p := eu.proxy(t, name)
	pods := eu.pods(t)[p.UID]
	switch {
	case len(pods) > 1:
		t.Fatalf("%d pods for one Proxy", len(pods))
	case len(pods) == 0 || pods[0].UID == old.UID:
		return errors.New("there is no new pod")
	case p.Status.Phase != v1alpha1.PhaseReady || p.Status.ObservedGeneration != p.Generation:
		return fmt.Errorf("it is %s, generation %d of %d", p.Status.Phase, p.Status.ObservedGeneration, p.Generation)
	}
	if want := fmt.Sprintf("%s:%d", pods[0].Status.PodIP, port); p.Status.Endpoint != want {
		return fmt.Errorf("the endpoint is %s, want %s", p.Status.Endpoint, want)
	}
	return nil
}

// endHub ends a hub with a signal and makes sure that nobody serves in its place.
func (w *world) endHub(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
	took := eventually(t, patience, "the hub ends", func() error {
		if process.Alive(pid) {
			return fmt.Errorf("PID %d lives", pid)
		}
		return nil
	})
	t.Logf("the hub was gone %s after the signal %q", took.Round(time.Millisecond), signal)
	if r, err := w.api.do(t.Context(), http.MethodGet, "/healthz", ""); err == nil {
		t.Fatalf("the hub is gone, and the API answers %s", r)
	}
}

// startHub starts the hub again in the way that the demo tells its user.
func (w *world) startHub(t *testing.T, flags ...string) {
	t.Helper()
	name := "hub-" + strconv.Itoa(len(w.hubs)+2)
	hub, err := process.Start(process.Spec{
		Name: name, Path: "sh", Args: []string{"-c", strings.Join(append([]string{w.env["HUB_COMMAND"]}, flags...), " ")}, Env: w.raceEnv(),
		LogFile: filepath.Join(w.temp, name+".log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.hubs = append(w.hubs, hub)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = hub.WaitReady(ctx, func(ctx context.Context) error {
		r, err := w.api.do(ctx, http.MethodGet, "/healthz", "")
		if err == nil && r.status != http.StatusOK {
			err = errors.New(r.String())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// hubPID is the hub that was started last: the demo's, or what the test's shell has become, or
// its child.
func (w *world) hubPID(t *testing.T) int {
	t.Helper()
	if len(w.hubs) == 0 {
		return w.pid(t, "HUB")
	}
	shell := w.hubs[len(w.hubs)-1].PID()
	for _, pid := range append([]int{shell}, descendants(t, shell)...) {
		if executable, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && executable == filepath.Join(bin, "hub") {
			return pid
		}
	}
	t.Fatal("HUB_COMMAND does not run the hub")
	return 0
}

// readyTimeout is for a hub all of whose spokes answer or are refused. After 30 s it would be
// ready for the sake of spokes that do not answer.
const readyTimeout = 20 * time.Second

// knowsItsFleet waits until a hub that has just started lists all samples as healthy and leases
// them. Before that it may say that it is not ready, and nothing else: a crawler that is told
// that nothing matches goes away.
func (w *world) knowsItsFleet(t *testing.T) {
	t.Helper()
	took := eventually(t, readyTimeout, "the new hub leases", func() error {
		l, r := w.api.acquire(t, `{}`)
		if r.status == http.StatusCreated {
			w.api.release(t, l)
			return nil
		}
		if r.status != http.StatusServiceUnavailable || decode[refusal](t, r).Error != "not_ready" || r.header.Get("Retry-After") == "" {
			t.Fatalf("a hub that has just started answers %s", r)
		}
		return errors.New(r.String())
	})
	t.Logf("it granted a lease %s after it began to answer", took.Round(time.Millisecond))
	// What is in Secrets it has to read first, and until then the Proxy is as it was.
	eventually(t, patience, "it knows all that clients need", func() error {
		for _, p := range w.api.list(t, "") {
			if needsSecret := p.Name == "eu-2" || p.Name == "us-2"; !p.Healthy && !needsSecret || p.Phase == "Unhealthy" {
				t.Fatalf("%s is %s, healthy %v", p.key(), p.Phase, p.Healthy)
			} else if !p.Healthy {
				return fmt.Errorf("%s is %s", p.key(), p.Phase)
			}
		}
		return nil
	})
	w.wantSamples(t)
}

// hasLookedAtAll waits until the new hub has asked for the instance of every Managed sample, so
// that whatever it makes of them has begun.
func (w *world) hasLookedAtAll(t *testing.T) {
	t.Helper()
	eventually(t, patience, "the new hub looks at every instance", func() error {
		series := w.metrics(t)
		for cluster, want := range map[string]float64{euWest: 3, usEast: 2} {
			if n := sum(series, "proxy_operator_provider_requests_total", `cluster="`+cluster+`"`, `op="get"`); n < want {
				return fmt.Errorf("%v of %v in %s", n, want, cluster)
			}
		}
		return nil
	})
}

// podEvents notes what comes and goes in the spokes, so that nothing is missed in between.
type podEvents struct {
	mu               sync.Mutex
	created, deleted []types.UID
	lost             []watch.Event // what a watch must not say
}

// watchPods watches until the end of the step.
func (w *world) watchPods(t *testing.T) *podEvents {
	t.Helper()
	events := &podEvents{}
	for _, spoke := range w.spokes {
		var list corev1.PodList
		if err := spoke.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		pods, err := spoke.Watch(t.Context(), &corev1.PodList{}, &client.ListOptions{
			Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pods.Stop)
		go func() {
			for event := range pods.ResultChan() {
				events.note(event)
			}
		}()
	}
	return events
}

func (e *podEvents) note(event watch.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	pod, ok := event.Object.(*corev1.Pod)
	switch {
	case !ok:
		e.lost = append(e.lost, event)
	case event.Type == watch.Added:
		e.created = append(e.created, pod.UID)
	case event.Type == watch.Deleted:
		e.deleted = append(e.deleted, pod.UID)
	}
}

// want fails unless exactly these pods have come and gone.
func (e *podEvents) want(t *testing.T, created, deleted []types.UID) {
	t.Helper()
	eventually(t, patience, "all events have arrived", func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.lost) > 0 {
			t.Fatalf("the watch broke: %v", e.lost)
		}
		if !slices.Equal(e.created, created) || !slices.Equal(e.deleted, deleted) {
			return fmt.Errorf("created %v, want %v; deleted %v, want %v", e.created, created, e.deleted, deleted)
		}
		return nil
	})
}

// cleanLogs looks for what must not be in the logs of our own programs.
func cleanLogs(t *testing.T, w *world) {
	secrets := []string{w.api.token}
	for name := range maps.Keys(w.spokes) {
		secret := &corev1.Secret{}
		if err := w.hub.Get(t.Context(), client.ObjectKey{Namespace: system, Name: name}, secret); err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, tokenIn(t, secret.Data[v1alpha1.KubeconfigKey]))
	}
	logs := []string{}
	for _, pattern := range []string{"logs/*.log", "logs/pods-*/*.log"} {
		found, err := filepath.Glob(filepath.Join(w.dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		logs = append(logs, found...)
	}
	for _, hub := range w.hubs {
		logs = append(logs, hub.LogFile())
	}
	if len(logs) < 5+len(samples) {
		t.Errorf("there are logs missing: %v", logs)
	}
	for _, path := range logs {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, sign := range []string{"panic:", "fatal error:", "WARNING: DATA RACE"} {
			if strings.Contains(string(content), sign) {
				t.Errorf("%q in %s:\n%s", sign, path, process.Tail(path, 100))
			}
		}
		for _, secret := range secrets {
			if strings.Contains(string(content), secret) {
				t.Errorf("a secret in %s", path)
			}
		}
	}
}
