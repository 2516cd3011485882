package app_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
	"github.com/proxyfleet/proxy-operator/test/controlplane"
)

// A thousand Ready Proxies of one cluster, half of them Managed and half of those
// with a Secret, are looked at every minute and not written to. They are probed once: what a latency that moves costs is the
// health engine's, and bounded there.
func TestAThousandAtRest(t *testing.T) {
	const proxies = 1000
	plane := controlplane.StartForTest(t, 1)[0]
	if err := plane.Apply(t.Context(), config("crd"), config("rbac/hub"), config("rbac/spoke"), config("rbac/local-spoke")); err != nil {
		t.Fatal(err)
	}
	admin := plane.Admin()
	admin.QPS = -1
	w := &world{root: t, t: t, plane: plane, site: origin.Start(t)}
	home := &spokeWorld{WithWatch: newClient(t, admin), name: "home", plane: plane}
	w.hub = home
	w.create(home, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	port, at := w.forwardProxies()
	stop := w.kubelet(home, at)
	w.startHub("--local-spoke", "home")
	w.spokeShows("home", v1alpha1.ConditionReady, "True/Connected", "")
	w.secret(home, "rest", map[string]string{"user-data": "#!"})
	began := time.Now()
	for i := range proxies {
		w.create(home, managed(fmt.Sprintf("rest-%04d", i), port, func(p *v1alpha1.Proxy) {
			p.Spec.HealthCheck = v1alpha1.HealthCheck{IntervalSeconds: 3600, TimeoutSeconds: 30}
			if i%4 == 1 {
				p.Spec.CloudInit = &v1alpha1.CloudInit{SecretRef: &v1alpha1.SecretKeyReference{Name: "rest"}}
			}
			if i%2 == 0 {
				p.Spec.Mode, p.Spec.Provider, p.Spec.Port = v1alpha1.ModeExternal, "", 0
				p.Spec.Endpoint = &v1alpha1.Endpoint{Host: "127.0.0.1", Port: port}
			}
		}))
	}
	within(t, 10*time.Minute, "all are Ready", func() error {
		var list v1alpha1.ProxyList
		if err := home.List(t.Context(), &list); err != nil {
			return err
		}
		phases := map[v1alpha1.Phase]int{}
		for i := range list.Items {
			phases[list.Items[i].Status.Phase]++
		}
		if phases[v1alpha1.PhaseReady] < proxies {
			return fmt.Errorf("%v", phases)
		}
		return nil
	})
	t.Logf("%d Proxies Ready after %s", proxies, time.Since(began).Round(time.Second))
	stop()

	versions := func() map[string]string { return versionsIn(t, home) }
	// Events are written behind; when nothing has come for a while, all have.
	before, since := versions(), time.Now()
	within(t, 5*time.Minute, "the Events are through", func() error {
		if now := versions(); !maps.Equal(now, before) {
			before, since = now, time.Now()
		}
		if time.Since(since) < 5*time.Second {
			return errors.New("they keep coming")
		}
		return nil
	})
	// Each is looked at once a minute, give or take a fifth.
	timer := time.NewTimer(75 * time.Second)
	defer timer.Stop()
	<-timer.C
	after, written := versions(), 0
	for name, version := range after {
		if before[name] != version {
			if written++; written < 10 {
				t.Errorf("%s was written to", name)
			}
		}
	}
	t.Logf("%d objects watched over for 75 s: %d writes", len(after), written)
}

// versionsIn are the resource versions of all that a hub writes in a spoke.
func versionsIn(t *testing.T, s *spokeWorld) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, list := range []client.ObjectList{&v1alpha1.ProxyList{}, &corev1.PodList{}, &corev1.SecretList{}, &eventsv1.EventList{}} {
		if err := s.List(t.Context(), list, client.InNamespace(ns)); err != nil {
			t.Fatal(err)
		}
		err := meta.EachListItem(list, func(o runtime.Object) error {
			object := o.(client.Object)
			found[fmt.Sprintf("%T %s", o, object.GetName())] = object.GetResourceVersion()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}
