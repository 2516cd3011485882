package app_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/testkit/apiserver"
)

// lives is a running hub with two spokes whose pods run by themselves, the way
// to one of them through a gate, and a stand-in for a third.
type lives struct {
	*world
	gate    *gate
	eu, us  *spokeWorld
	standIn *apiserver.Server
	port    int32
}

// TestLives runs the whole hub against real API servers, through what may
// happen in the life of a Proxy.
func TestLives(t *testing.T) {
	w := bareWorld(t)
	l := &lives{world: w, eu: w.spokes["eu"], us: w.spokes["us"], standIn: apiserver.Start(t)}
	var at func(string)
	l.port, at = w.forwardProxies()
	for _, s := range w.spokes {
		s.prepare(t, "crd/crawl.proxyfleet.dev_proxies.yaml")
		w.kubelet(s, at)
	}
	l.gate = newGate(t, l.eu)
	w.startHub("--max-unavailable-replacements", "25%")
	run(w, l, []step[*lives]{
		{"two spokes are registered", func(t *testing.T, l *lives) { bothSpokes(t, l.world) }},
		{"so many writes are made for one Proxy, and no more", countedLife},
		{"an edited Secret replaces what refers to it, in that spoke alone, a few at a time", rotatedSecret},
		{"a user who labels and annotates all the time loses nothing and holds nothing up", restlessUser},
		{"a hub that conflicts at every first write gets there all the same", conflictingHub},
		{"an instance that a newer hub has made is left alone", newerInstance},
		{"cloud-init and credentials are where the contract says", deliveredFiles},
		{"a pod that dies is replaced at once", diedPod},
		{"a pod that cannot start is told with the kubelet's reason", stuckPod},
		{"a pod that cannot go is told, and goes by force if annotated", lingeringPod},
		{"an abandoned pod outlives its Proxy, its owner gone before the finalizer", abandonedPod},
		{"what will never work is tried again once its cause is repaired", repairedCauses},
		{"an exceeded quota is told and waits", exceededQuota},
		{"a spoke with a thousand broken Proxies delays no other's single one", brokenCrowd},
		{"a hub that dies at any write leaves one instance of the present spec, or nothing", crashes},
	})
}

// proxy builds a Managed Proxy that listens where the forward proxy does.
func (l *lives) proxy(name string, edits ...func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	return managed(name, l.port, edits...)
}

func initFrom(secret string) func(*v1alpha1.Proxy) {
	return func(p *v1alpha1.Proxy) {
		p.Spec.CloudInit = &v1alpha1.CloudInit{SecretRef: &v1alpha1.SecretKeyReference{Name: secret}}
	}
}

// noKubelet keeps the pod from being run.
func noKubelet(p *v1alpha1.Proxy) {
	pod(p).PodLabels = map[string]v1alpha1.LabelValue{"kubelet": "none"}
}

func pod(p *v1alpha1.Proxy) *v1alpha1.KubernetesSpec {
	if p.Spec.Kubernetes == nil {
		p.Spec.Kubernetes = &v1alpha1.KubernetesSpec{}
	}
	return p.Spec.Kubernetes
}

// secret makes the Secret, or changes it.
func (w *world) secret(s *spokeWorld, name string, data map[string]string) {
	w.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	if err := w.get(s, secret); err != nil {
		secret.StringData = data
		w.create(s, secret)
		return
	}
	secret.StringData = data
	if err := s.Update(w.t.Context(), secret); err != nil {
		w.t.Fatal(err)
	}
}

// change edits the Proxy as a user does, as often as it takes.
func (w *world) change(s *spokeWorld, p *v1alpha1.Proxy, edit func(*v1alpha1.Proxy)) {
	w.t.Helper()
	w.eventually(p.Name+" is edited", func() error {
		if err := w.get(s, p); err != nil {
			return err
		}
		edit(p)
		return s.Update(w.t.Context(), p)
	})
}

func (w *world) remove(s *spokeWorld, p *v1alpha1.Proxy) {
	w.t.Helper()
	if err := s.Delete(w.t.Context(), p); err != nil {
		w.t.Fatal(err)
	}
}

// provisionedSays waits until condition Provisioned begins with want and contains text.
func (w *world) provisionedSays(s *spokeWorld, p *v1alpha1.Proxy, want, text string) {
	w.t.Helper()
	w.eventually(p.Name+" says "+want, func() error {
		if err := w.get(s, p); err != nil {
			return err
		}
		if got := condition(p.Status.Conditions, v1alpha1.ConditionProvisioned); !strings.HasPrefix(got, want) || !strings.Contains(got, text) {
			return fmt.Errorf("Provisioned is %s", got)
		}
		return nil
	})
}

// told waits for an Event on the Proxy.
func (w *world) told(s *spokeWorld, p *v1alpha1.Proxy, reason, text string) {
	w.t.Helper()
	w.eventually("an Event "+reason, func() error {
		var events corev1.EventList // as kubectl describe reads them
		if err := s.List(w.t.Context(), &events, client.InNamespace(ns)); err != nil {
			return err
		}
		var others []string
		for _, e := range events.Items {
			if e.InvolvedObject.UID != p.UID {
				continue
			}
			if e.Reason == reason && strings.Contains(e.Message, text) {
				return nil
			}
			others = append(others, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("there are %q", others)
	})
}

// instancesOf are the pods and Secrets that were made for the Proxy.
func (w *world) instancesOf(s *spokeWorld, p *v1alpha1.Proxy) ([]corev1.Pod, []corev1.Secret, error) {
	var pods corev1.PodList
	var secrets corev1.SecretList
	mine := client.MatchingLabels{v1alpha1.LabelUID: string(p.UID)}
	err := errors.Join(s.List(w.t.Context(), &pods, client.InNamespace(ns), mine), s.List(w.t.Context(), &secrets, client.InNamespace(ns), mine))
	return pods.Items, secrets.Items, err
}

// countedLife holds the number of writes per Proxy to what is known to be
// needed. Whoever makes it grow has to change it here.
func countedLife(_ *testing.T, l *lives) {
	l.secret(l.eu, "counted-init", map[string]string{"user-data": "#!"})
	for _, tc := range []struct {
		name            string
		edits           []func(*v1alpha1.Proxy)
		toReady, toGone []string
	}{
		{"plain", nil,
			[]string{"patch proxies", "post pods", "patch proxies/status", "patch proxies/status", "patch proxies/status"},
			[]string{"delete pods", "patch proxies/status", "patch proxies"}},
		{"with cloud-init", []func(*v1alpha1.Proxy){initFrom("counted-init")},
			[]string{"patch proxies", "post secrets", "post pods", "patch proxies/status", "patch proxies/status", "patch proxies/status"},
			[]string{"delete pods", "patch proxies/status", "delete secrets", "patch proxies"}},
	} {
		p := l.proxy("counted-"+strings.ReplaceAll(tc.name, " ", "-"), tc.edits...)
		l.gate.arm(0, false)
		l.create(l.eu, p)
		l.proxyShows(l.eu, p, v1alpha1.PhaseReady)
		l.told(l.eu, p, v1alpha1.ReasonProbeSucceeded, "") // the last of them is there
		l.wrote(tc.name+": from apply to Ready", tc.toReady)
		l.gate.arm(0, false)
		l.remove(l.eu, p)
		l.gone(l.eu, p)
		l.wrote(tc.name+": from delete to gone", tc.toGone)
	}
}

// wrote holds the writes since the gate was armed to want, Events apart.
func (l *lives) wrote(what string, want []string) {
	l.t.Helper()
	all := l.gate.written()
	acts := slices.DeleteFunc(slices.Clone(all), func(w string) bool { return strings.HasSuffix(w, " events") })
	l.t.Logf("%s: %d writes and %d Events: %s", what, len(acts), len(all)-len(acts), strings.Join(acts, ", "))
	count := func(all []string) map[string]int {
		n := map[string]int{}
		for _, w := range all {
			n[w]++
		}
		return n
	}
	// A pod that runs before its creation is told saves a write.
	if got, most := count(acts), count(want); len(acts) > len(want) || !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(most))) {
		l.t.Errorf("%s: wrote %v, want at most %v", what, acts, want)
	}
}

func rotatedSecret(t *testing.T, l *lives) {
	const many = 12 // 25% of which are 3
	for _, s := range []*spokeWorld{l.eu, l.us} {
		l.secret(s, "rotated", map[string]string{"user-data": "one"})
	}
	var all []*v1alpha1.Proxy
	for i := range many {
		all = append(all, l.proxy(fmt.Sprintf("rotated-%02d", i), initFrom("rotated")))
	}
	bystander, abroad := l.proxy("bystander"), l.proxy("abroad", initFrom("rotated"))
	for _, p := range append(slices.Clone(all), bystander) {
		l.create(l.eu, p)
	}
	l.create(l.us, abroad)
	before := map[string]string{}
	for _, p := range append(slices.Clone(all), bystander) {
		l.proxyShows(l.eu, p, v1alpha1.PhaseReady)
		before[p.Name] = p.Status.ProviderID
	}
	l.proxyShows(l.us, abroad, v1alpha1.PhaseReady)
	before[abroad.Name] = abroad.Status.ProviderID

	began, worst := time.Now(), 0
	l.secret(l.eu, "rotated", map[string]string{"user-data": "two"})
	l.eventually("all are replaced", func() error {
		out, left := 0, 0
		items := l.listed("?cluster=eu")
		for _, p := range all {
			if !items["eu/"+p.Name].Healthy {
				out++
			}
			if err := l.get(l.eu, p); err != nil {
				return err
			}
			if p.Status.ProviderID == before[p.Name] || p.Status.Phase != v1alpha1.PhaseReady {
				left++
			}
		}
		if worst = max(worst, out); out > many/4 {
			t.Fatalf("%d of %d are out of service at once, %d may", out, many, many/4)
		}
		if left > 0 {
			return fmt.Errorf("%d are left", left)
		}
		return nil
	})
	t.Logf("%d replaced within %s, at most %d out of service at once", many, time.Since(began).Round(time.Millisecond), worst)
	for _, p := range all {
		_, secrets, err := l.instancesOf(l.eu, p)
		if err != nil || len(secrets) != 1 || string(secrets[0].Data["user-data"]) != "two" {
			t.Errorf("%s has %d Secrets (%v)", p.Name, len(secrets), err)
		}
	}
	for p, s := range map[*v1alpha1.Proxy]*spokeWorld{bystander: l.eu, abroad: l.us} {
		if err := l.get(s, p); err != nil || p.Status.ProviderID != before[p.Name] {
			t.Errorf("%s was replaced, and does not refer to that Secret (%v)", p.Name, err)
		}
	}
	for _, p := range append(all, bystander) {
		l.remove(l.eu, p)
	}
	l.remove(l.us, abroad)
	for _, p := range all {
		l.gone(l.eu, p)
	}
}
