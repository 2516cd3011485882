package registry

import (
	"context"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/test/controlplane"
)

const system = "proxy-operator-system"

// shown is what a real hub cluster shows, which is its own spoke as well.
type shown struct {
	*testing.T
	client.Client
	config     *rest.Config
	kubeconfig []byte
}

func showing(t *testing.T) shown {
	t.Helper()
	cl, kubeconfig := realSpoke(t)
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := controlplane.Apply(t.Context(), config, "../../config/crd/crawl.proxyfleet.dev_spokes.yaml"); err != nil {
		t.Fatal(err)
	}
	h := shown{t, cl, config, kubeconfig}
	for _, namespace := range []string{system, "crawl"} {
		h.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	}
	return h
}

func (h shown) create(o client.Object) {
	h.Helper()
	if err := h.Create(h.Context(), o); err != nil {
		h.Fatal(err)
	}
}

// hub runs a registry with its controller until it is stopped.
func (h shown) hub() (r *Registry, stop func()) {
	h.Helper()
	r, lead, stop := h.replica()
	lead()
	return r, stop
}

// replica is a hub that leads when it is told to.
func (h shown) replica() (r *Registry, lead, stop func()) {
	h.Helper()
	r = New(options(h.T))
	mgr, err := ctrl.NewManager(h.config, ctrl.Options{
		Scheme: r.Scheme, Metrics: metricsserver.Options{BindAddress: "0"}, Cache: cache.Options{
			DefaultNamespaces: map[string]cache.Config{system: {}},
			ByObject:          map[client.Object]cache.ByObject{&corev1.Secret{}: {Label: labels.SelectorFromSet(SecretSelector())}},
		},
	})
	if err != nil {
		h.Fatal(err)
	}
	if err := r.SetUp(mgr, system); err != nil {
		h.Fatal(err)
	}
	elected := make(chan struct{})
	// As multicluster-runtime's manager does it.
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		select {
		case <-elected:
			return r.Start(ctx, &engagements{})
		case <-ctx.Done():
			return nil
		}
	})); err != nil {
		h.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		for range cap(ended) {
			if err := <-ended; err != nil {
				h.Error(err)
			}
		}
	})
	h.Cleanup(stop)
	return r, sync.OnceFunc(func() { close(elected) }), stop
}

func (h shown) secret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "spoke", Labels: map[string]string{v1alpha1.LabelKubeconfig: "true"}}}
}

// register makes the Secret and waits for what comes of it.
func (h shown) register() {
	h.Helper()
	secret := h.secret()
	secret.Data = map[string][]byte{v1alpha1.KubeconfigKey: h.kubeconfig}
	h.create(secret)
	h.condition(v1alpha1.ConditionReady, "Connected", isTrue)
}

// spoke is as it is shown; empty: there is none.
func (h shown) spoke() *v1alpha1.Spoke {
	h.Helper()
	spoke := &v1alpha1.Spoke{}
	if err := h.Get(h.Context(), client.ObjectKeyFromObject(h.secret()), spoke); err != nil && !apierrors.IsNotFound(err) {
		h.Fatal(err)
	}
	return spoke
}

// condition waits for what the Spoke shows of it; nil: it is not there.
func (h shown) condition(kind, what string, wanted func(*metav1.Condition) bool) (found *metav1.Condition) {
	h.Helper()
	eventually(h.T, kind+" "+what, func() bool {
		spoke := h.spoke()
		found = meta.FindStatusCondition(spoke.Status.Conditions, kind)
		return len(spoke.Status.Conditions) > 0 && wanted(found)
	}, func() any { return h.spoke().Status })
	return found
}

// event waits for an Event on the Spoke.
func (h shown) event(reason string) (found eventsv1.Event) {
	h.Helper()
	var all eventsv1.EventList
	eventually(h.T, reason+" is told", func() bool {
		if err := h.List(h.Context(), &all, client.InNamespace(system)); err != nil {
			h.Fatal(err)
		}
		for _, e := range all.Items {
			if e.Reason == reason && e.Regarding.Kind == "Spoke" && e.Regarding.Name == "spoke" {
				found = e
			}
		}
		return found.Reason != ""
	}, func() any { return all.Items })
	return found
}

func isGone(c *metav1.Condition) bool { return c == nil }
func isTrue(c *metav1.Condition) bool { return c != nil && c.Status == metav1.ConditionTrue }

func TestAnAdminSeesThatNoProxyOfASpokeIsReached(t *testing.T) {
	h, proxy := showing(t), proxyNamed("a")
	h.create(proxy)
	pathIsTold(h)
	nextHubKeepsPath(h)
	if err := h.Delete(t.Context(), proxy); err != nil {
		t.Fatal(err)
	}
	pathGoesWithItsProxiesAndItsSpoke(h)
}

func pathIsTold(h shown) {
	r, stop := h.hub()
	defer stop()
	h.register()
	r.SetPathBroken("nobody", true)
	r.SetPathBroken("spoke", true)
	r.SetPathBroken("spoke", true)
	broken := h.condition(v1alpha1.ConditionPathBroken, "True", isTrue)
	if broken.Reason != v1alpha1.ReasonEveryDialFails || !strings.Contains(broken.Message, "firewall") {
		h.Errorf("condition %+v", broken)
	}
	h.condition(v1alpha1.ConditionReady, "Connected as before", isTrue)
	if e := h.event("PathBroken"); e.Type != corev1.EventTypeWarning || e.Note != broken.Message || e.Series != nil {
		h.Errorf("Event %+v", e)
	}
	r.SetPathBroken("spoke", false)
	h.condition(v1alpha1.ConditionPathBroken, "gone", isGone)
	if e := h.event("PathRestored"); e.Type != corev1.EventTypeNormal {
		h.Errorf("Event %+v", e)
	}
	r.SetPathBroken("spoke", true)
	h.condition(v1alpha1.ConditionPathBroken, "True again", isTrue)
}

func nextHubKeepsPath(h shown) {
	before := meta.FindStatusCondition(h.spoke().Status.Conditions, v1alpha1.ConditionPathBroken)
	// What the next hub writes of this shows that it has looked at the Spoke.
	secret := h.secret()
	secret.Annotations = map[string]string{v1alpha1.AnnotationPodNetwork: v1alpha1.PodNetworkRoutable}
	if err := h.Patch(h.Context(), secret, client.MergeFrom(h.secret())); err != nil {
		h.Fatal(err)
	}
	r, stop := h.hub()
	defer stop()
	h.condition(v1alpha1.ConditionReady, "said by the next hub", func(c *metav1.Condition) bool {
		return isTrue(c) && !strings.Contains(c.Message, "pod network")
	})
	after := meta.FindStatusCondition(h.spoke().Status.Conditions, v1alpha1.ConditionPathBroken)
	if before == nil || after == nil || *after != *before {
		h.Errorf("a hub that does not know yet makes %+v of %+v", after, before)
	}
	r.SetPathBroken("spoke", false)
	h.condition(v1alpha1.ConditionPathBroken, "gone when it knows", isGone)
	r.SetPathBroken("spoke", true)
	h.condition(v1alpha1.ConditionPathBroken, "True when it knows", isTrue)
}

func pathGoesWithItsProxiesAndItsSpoke(h shown) {
	r, stop := h.hub()
	defer stop()
	h.condition(v1alpha1.ConditionPathBroken, "gone with the last Proxy", isGone)
	r.SetPathBroken("spoke", true)
	h.condition(v1alpha1.ConditionPathBroken, "True once more", isTrue)
	if err := h.Delete(h.Context(), h.secret()); err != nil {
		h.Fatal(err)
	}
	eventually(h.T, "the Spoke is gone", func() bool { return h.spoke().UID == "" }, func() any { return h.spoke() })
	r.SetPathBroken("spoke", true) // late
	h.register()
	if c := meta.FindStatusCondition(h.spoke().Status.Conditions, v1alpha1.ConditionPathBroken); c != nil {
		h.Errorf("the next one of the name has %+v", c)
	}
}
