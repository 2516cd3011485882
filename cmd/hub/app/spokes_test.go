package app_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// The steps of TestHub that are about spokes; TestSpokes has more.

func bothSpokes(_ *testing.T, w *world) {
	for name, s := range w.spokes {
		w.register(name, s.kubeconfig)
	}
	for name := range w.spokes {
		w.spokeShows(name, v1alpha1.ConditionReady, "True/Connected", "")
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
