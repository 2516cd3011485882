package app_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// The steps of TestHub that are about spokes.

func badSpokes(_ *testing.T, w *world) {
	w.register("garbage", []byte("\x00not a kubeconfig"))
	w.register("closed", []byte(strings.Replace(string(w.spokes["eu"].kubeconfig), w.spokes["eu"].plane.Admin().Host, "https://127.0.0.1:1", 1)))
	w.register("plugin", []byte("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"+
		"clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: touch}}}]\n"))
	w.register("not.a.label", w.spokes["eu"].kubeconfig)
	for name, s := range w.spokes {
		w.register(name, s.kubeconfig)
	}
	w.spokeShows("garbage", v1alpha1.ConditionReady, "False/KubeconfigInvalid", "not a kubeconfig")
	w.spokeShows("closed", v1alpha1.ConditionReady, "False/Unreachable", "refused")
	w.spokeShows("plugin", v1alpha1.ConditionReady, "False/KubeconfigForbidden", "exec")
	w.spokeShows("not.a.label", v1alpha1.ConditionReady, "False/KubeconfigInvalid", "name")
	for name, s := range w.spokes {
		spoke := w.spokeShows(name, v1alpha1.ConditionReady, "True/Connected", "")
		uid, err := s.plane.UID(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		if spoke.Status.ClusterUID != uid || spoke.Status.Server != strings.TrimSuffix(s.plane.Admin().Host, "/") || !strings.HasPrefix(spoke.Status.Version, "v1.") {
			w.t.Errorf("status %+v", spoke.Status)
		}
		if strings.Contains(fmt.Sprint(spoke), s.plane.Admin().BearerToken) && s.plane.Admin().BearerToken != "" {
			w.t.Error("the Spoke shows a credential")
		}
	}
	for _, name := range []string{"garbage", "closed", "plugin", "not.a.label"} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}}
		if err := w.hub.Delete(w.t.Context(), secret); err != nil {
			w.t.Fatal(err)
		}
		w.eventually("spoke "+name+" goes with its Secret", func() error {
			err := w.get(w.hub, &v1alpha1.Spoke{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("still there (%w)", err)
		})
	}
}

func hang(t *testing.T, w *world) {
	eu, us := w.spokes["eu"], w.spokes["us"]
	const stuck = 20 // more than there are workers; none of their pods ever runs
	for i := range stuck {
		w.create(us, managed(fmt.Sprintf("stuck-%d", i), 3128))
	}
	w.eventually("pods for the stuck Proxies", func() error {
		var pods corev1.PodList
		if err := us.List(t.Context(), &pods, client.InNamespace(ns)); err != nil || len(pods.Items) < stuck {
			return fmt.Errorf("%d pods (%w)", len(pods.Items), err)
		}
		return nil
	})
	pid := us.plane.APIServerPID()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resumed := false
	resume := func() {
		if !resumed {
			resumed = true
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
	t.Cleanup(resume)
	// Long enough for every stuck Proxy to be due and to take what workers it can.
	timer := time.NewTimer(8 * time.Second)
	defer timer.Stop()
	<-timer.C
	began := time.Now()
	p := managed("beside", w.forwardProxy())
	w.up(eu, p)
	took := time.Since(began)
	t.Logf("Ready after %s beside a spoke that hangs", took.Round(time.Millisecond))
	if took > 30*time.Second {
		t.Errorf("a spoke that hangs delayed another's Proxy by %s", took)
	}
	w.spokeShows("us", v1alpha1.ConditionReady, "False/Unreachable", "")
	resume()
	w.spokeShows("us", v1alpha1.ConditionReady, "True/Connected", "")
}

func rotation(t *testing.T, w *world) {
	eu := w.spokes["eu"]
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "eu"}}
	put := func(kubeconfig []byte) {
		w.eventually("kubeconfig changed", func() error {
			if err := w.get(w.hub, secret); err != nil {
				return err
			}
			secret.Data[v1alpha1.KubeconfigKey] = kubeconfig
			return w.hub.Update(t.Context(), secret)
		})
	}
	before := slices.Sorted(maps.Keys(w.listed("?cluster=eu")))
	hash := w.spokeShows("eu", v1alpha1.ConditionReady, "True/Connected", "").Status.KubeconfigHash
	put([]byte("typo"))
	w.spokeShows("eu", v1alpha1.ConditionCredentialAccepted, "False/KubeconfigInvalid", "")
	w.spokeShows("eu", v1alpha1.ConditionReady, "True/Connected", "")
	put(eu.hubKubeconfig(t))
	w.spokeShows("eu", v1alpha1.ConditionCredentialAccepted, "True/Accepted", "")
	if now := w.spokeShows("eu", v1alpha1.ConditionReady, "True/Connected", "").Status.KubeconfigHash; now == hash {
		t.Error("the hash is still that of the old kubeconfig")
	}
	if after := slices.Sorted(maps.Keys(w.listed("?cluster=eu"))); !slices.Equal(before, after) {
		t.Errorf("listed %v before and %v after", before, after)
	}
	w.up(eu, managed("rotated", w.forwardProxy())) // the new connection is the one that reconciles
}

func outage(t *testing.T, w *world) {
	eu := w.spokes["eu"]
	if err := eu.plane.KillAPIServer(); err != nil {
		t.Fatal(err)
	}
	w.spokeShows("eu", v1alpha1.ConditionReady, "False/Unreachable", "")
	var granted leaseReply
	if status := w.call("POST", "/v1/leases", `{"selector":{"test":"rotated"}}`, &granted); status != http.StatusCreated {
		t.Errorf("lease while the API server is down: %d %+v", status, granted)
	}
	w.fetchThrough(granted.Proxy.URL)
	if err := eu.plane.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.spokeShows("eu", v1alpha1.ConditionReady, "True/Connected", "")
	w.up(eu, managed("after-outage", w.forwardProxy()))
}

func deregistration(t *testing.T, w *world) {
	eu := w.spokes["eu"]
	var before corev1.PodList
	if err := eu.List(t.Context(), &before, client.InNamespace(ns)); err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "eu"}}
	if err := w.get(w.hub, secret); err != nil {
		t.Fatal(err)
	}
	delete(secret.Labels, v1alpha1.LabelKubeconfig) // removing the label is enough
	if err := w.hub.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	w.eventually("eu left the fleet", func() error {
		if left := w.listed("?cluster=eu"); len(left) > 0 {
			return fmt.Errorf("%d Proxies are still listed", len(left))
		}
		return nil
	})
	if status := w.call("POST", "/v1/leases", `{"cluster":"eu"}`, nil); status != http.StatusConflict {
		t.Errorf("lease in a deregistered spoke: %d", status)
	}
	var after corev1.PodList
	if err := eu.List(t.Context(), &after, client.InNamespace(ns)); err != nil {
		t.Fatal(err)
	}
	if len(before.Items) == 0 || len(after.Items) != len(before.Items) {
		t.Errorf("%d pods before, %d after", len(before.Items), len(after.Items))
	}
}
