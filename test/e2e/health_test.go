package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/test/process"
)

// The Proxy that these steps break: probed every second, and selected by nobody else.
const (
	watchedName     = "watched"
	watchedManifest = `
apiVersion: crawl.proxyfleet.dev/v1alpha1
kind: Proxy
metadata: {name: watched, namespace: crawl}
spec:
  provider: kubernetes
  attributes: {e2e: watched}
  healthCheck: {intervalSeconds: 1, timeoutSeconds: 1, failureThreshold: 2}
`
	watchedLease = `{"selector":{"e2e":"watched"}}`
	watchedQuery = "?attr.e2e=watched"

	watchedInterval, watchedTimeout   = time.Second, time.Second
	watchedFailures, watchedSuccesses = 2, 1
	watchedTick                       = watchedInterval
	unhealthyWithin                   = watchedFailures*(watchedInterval+watchedTimeout) + watchedTick
	recoveredWithin                   = watchedSuccesses*(watchedInterval+watchedTimeout) + watchedTick
	noise                             = 10 * time.Second // of a machine that does other things
	unhealthyStays                    = 3 * time.Second  // how long to keep asking
	wholeUnhealthyTime                = unhealthyWithin + noise + unhealthyStays
)

// watched is that Proxy in the list, nil when it is not there.
func (w *world) watched(t *testing.T) *leasedProxy {
	t.Helper()
	listed := w.api.list(t, watchedQuery)
	if len(listed) == 0 {
		return nil
	}
	return &listed[0]
}

// bringUpWatched applies the watched Proxy and waits until it serves.
func (w *world) bringUpWatched(t *testing.T) {
	t.Helper()
	eu := w.spokes[euWest]
	if err := eu.Create(t.Context(), manifest(t, watchedManifest)); err != nil {
		t.Fatal(err)
	}
	took := eventually(t, patience, "a new Proxy is Ready", func() error {
		if p := eu.proxy(t, watchedName); p.Status.Phase != v1alpha1.PhaseReady {
			return fmt.Errorf("it is %s: %s", p.Status.Phase, condition(p.Status.Conditions, v1alpha1.ConditionReady))
		}
		return nil
	})
	t.Logf("a new Proxy was Ready %s after it was applied", took.Round(time.Millisecond))
	l := w.api.mustAcquire(t, watchedLease)
	if err := w.fetch(t, l); err != nil {
		t.Fatal(err)
	}
	w.api.release(t, l)
}

// look reads what the API says of the watched Proxy and then asks for it as a crawler does.
func (w *world) look(t *testing.T) (healthy, leased bool) {
	t.Helper()
	listed := w.watched(t)
	if listed == nil {
		t.Fatal("it is not listed any more")
	}
	l, r := w.api.acquire(t, watchedLease)
	if r.status == http.StatusCreated {
		w.api.release(t, l)
		return listed.Healthy, true
	}
	got := decode[refusal](t, r)
	want := refusal{Error: "no_match", Message: got.Message, Considered: 1, Unhealthy: 1}
	if r.status != http.StatusConflict || got != want || !strings.Contains(got.Message, "healthy") {
		t.Fatalf("a lease on it: %s", r)
	}
	return listed.Healthy, false
}

func hangingProxy(t *testing.T, w *world) {
	w.bringUpWatched(t)
	pod := w.spokes[euWest].onlyPod(t, w.spokes[euWest].proxy(t, watchedName))
	pid := pidOf(t, &pod)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) }) // for a step that fails
	w.foundOut(t)
	w.api.release(t, w.api.mustAcquire(t, `{"selector":{"region":"eu"}}`)) // the others serve on
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	w.comesBack(t)
	if now := w.spokes[euWest].onlyPod(t, w.spokes[euWest].proxy(t, watchedName)); now.UID != pod.UID || pidOf(t, &now) != pid {
		t.Errorf("pod %s with PID %d is now %s with %d", pod.UID, pid, now.UID, pidOf(t, &now))
	}
}

// foundOut watches the hanging Proxy from every side until its state has been known for a while.
func (w *world) foundOut(t *testing.T) {
	t.Helper()
	began := time.Now()
	var inAPI, inStatus time.Duration
	refused := 0
	eventually(t, wholeUnhealthyTime, "it is unhealthy in the API and in the status", func() error {
		healthy, leased := w.look(t)
		switch {
		case !healthy && inAPI == 0:
			inAPI = time.Since(began)
		case healthy && inAPI > 0:
			t.Fatal("it hangs, and is healthy again")
		}
		if inAPI > 0 && leased {
			t.Fatal("it was leased after the API had called it unhealthy")
		}
		if !leased {
			refused++
		}
		p := w.spokes[euWest].proxy(t, watchedName)
		if p.Status.Phase == v1alpha1.PhaseUnhealthy && inStatus == 0 {
			inStatus = time.Since(began)
			w.wantUnhealthyStatus(t, p)
		}
		if inAPI == 0 || inStatus == 0 {
			return fmt.Errorf("unhealthy in the API: %v, in the status: %v", inAPI > 0, inStatus > 0)
		}
		if since := time.Since(began) - max(inAPI, inStatus); since < unhealthyStays {
			return fmt.Errorf("for %s only", since)
		}
		return nil
	})
	t.Logf("unhealthy in the API after %s, in the status after %s; the bound is %d × (%s + %s) + %s = %s; %d leases refused",
		inAPI.Round(time.Millisecond), inStatus.Round(time.Millisecond),
		watchedFailures, watchedInterval, watchedTimeout, watchedTick, unhealthyWithin, refused)
	if max(inAPI, inStatus) > unhealthyWithin+noise {
		t.Errorf("that is %s too late, with %s allowed for noise", max(inAPI, inStatus)-unhealthyWithin, noise)
	}
}

func (w *world) wantUnhealthyStatus(t *testing.T, p *v1alpha1.Proxy) {
	t.Helper()
	for kind, want := range map[string]string{
		v1alpha1.ConditionProvisioned: "True/Created: ",
		v1alpha1.ConditionHealthy:     "False/Timeout: ",
		v1alpha1.ConditionReady:       "False/",
	} {
		if got := condition(p.Status.Conditions, kind); !strings.HasPrefix(got, want) {
			t.Errorf("%s is %s, want %s…", kind, got, want)
		}
	}
	if listed := w.api.list(t, watchedQuery+"&healthy=true"); len(listed) != 0 {
		t.Errorf("listed as healthy: %+v", listed)
	}
}

func (w *world) comesBack(t *testing.T) {
	t.Helper()
	inAPI := eventually(t, recoveredWithin+noise, "it is leased again", func() error {
		if _, leased := w.look(t); !leased {
			return errors.New("it is not leased yet")
		}
		return nil
	})
	if healthy, leased := w.look(t); !healthy || !leased {
		t.Errorf("after a lease it is healthy %v, leased %v", healthy, leased)
	}
	inStatus := inAPI + eventually(t, noise, "it is Ready in the status", func() error {
		if p := w.spokes[euWest].proxy(t, watchedName); p.Status.Phase != v1alpha1.PhaseReady {
			return fmt.Errorf("it is %s", p.Status.Phase)
		}
		return nil
	})
	t.Logf("leased again after %s, Ready in the status after %s; the bound is %d × (%s + %s) + %s = %s",
		inAPI.Round(time.Millisecond), inStatus.Round(time.Millisecond),
		watchedSuccesses, watchedInterval, watchedTimeout, watchedTick, recoveredWithin)
	l := w.api.mustAcquire(t, watchedLease)
	if err := w.fetch(t, l); err != nil {
		t.Errorf("through the proxy that is back: %v", err)
	}
	w.api.release(t, l)
}

func killedProxy(t *testing.T, w *world) {
	eu := w.spokes[euWest]
	before := w.podsOfFleet(t)
	pod := eu.onlyPod(t, eu.proxy(t, watchedName))
	pid := pidOf(t, &pod)
	if restarts := pod.Status.ContainerStatuses[0].RestartCount; restarts != 0 {
		t.Fatalf("it has been restarted %d times before", restarts)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	restarted := eventually(t, patience, "the node has restarted it", func() error {
		if err := eu.get(t, pod.Name, &pod); err != nil {
			t.Fatal(err)
		}
		status := pod.Status.ContainerStatuses[0]
		if status.RestartCount != 1 || !status.Ready || pidOf(t, &pod) == pid {
			return fmt.Errorf("restarts %d, ready %v, %s", status.RestartCount, status.Ready, status.ContainerID)
		}
		return nil
	})
	serves := restarted + eventually(t, patience, "it serves again", func() error {
		l, r := w.api.acquire(t, watchedLease)
		if r.status != http.StatusCreated {
			return errors.New(r.String())
		}
		defer w.api.release(t, l)
		return w.fetch(t, l)
	})
	t.Logf("restarted %s after the kill, serving after %s", restarted.Round(time.Millisecond), serves.Round(time.Millisecond))
	eventually(t, patience, "it is Ready", func() error {
		if p := eu.proxy(t, watchedName); p.Status.Phase != v1alpha1.PhaseReady {
			return fmt.Errorf("it is %s", p.Status.Phase)
		}
		return nil
	})
	if now := w.podsOfFleet(t); !reflect.DeepEqual(now, before) {
		t.Errorf("the pods were %v and are %v", before, now)
	}
}

func deletedProxy(t *testing.T, w *world) {
	eu := w.spokes[euWest]
	p := eu.proxy(t, watchedName)
	if !controllerutil.ContainsFinalizer(p, v1alpha1.Finalizer) {
		t.Fatalf("finalizers are %v", p.Finalizers)
	}
	pod := eu.onlyPod(t, p)
	if err := eu.Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	took := eventually(t, patience, "the Proxy is gone", func() error { return gone(eu.get(t, watchedName, &v1alpha1.Proxy{})) })
	t.Logf("the Proxy was gone after %s", took.Round(time.Millisecond))
	// The finalizer has kept it until there was nothing left.
	if err := gone(eu.get(t, pod.Name, &corev1.Pod{})); err != nil {
		t.Errorf("the pod after its Proxy: %v", err)
	}
	if pid := pidOf(t, &pod); process.Alive(pid) {
		t.Errorf("the process %d outlives its Proxy", pid)
	}
	eventually(t, patience, "it is not listed", func() error {
		if listed := w.watched(t); listed != nil {
			return fmt.Errorf("listed is %+v", *listed)
		}
		return nil
	})
	_, r := w.api.acquire(t, watchedLease)
	if got := decode[refusal](t, r); r.status != http.StatusConflict || got.Considered != 0 {
		t.Errorf("a lease on it: %s", r)
	}
	if series := w.metrics(t); sum(series, "proxy_operator_healthcheck_", `proxy="`+watchedName+`"`) != 0 {
		t.Error("its series outlive it")
	}
	w.wantSamples(t)
}
