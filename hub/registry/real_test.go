package registry

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/test/controlplane"
)

// TestARealAPIServerShowsAndTakesAllThatIsAskedOfIt is what the stand-in cannot
// vouch for: that selectors, bare metadata and Events are as an API server has them.
func TestARealAPIServerShowsAndTakesAllThatIsAskedOfIt(t *testing.T) {
	cl, kubeconfig := realSpoke(t)
	create := func(objects ...client.Object) {
		t.Helper()
		for _, o := range objects {
			if pod, ok := o.(*corev1.Pod); ok {
				pod.Spec.Containers = []corev1.Container{{Name: "x", Image: "x"}}
			}
			if err := cl.Create(t.Context(), o); err != nil {
				t.Fatalf("%T %s: %v", o, o.GetName(), err)
			}
		}
	}
	token, about := secretNamed("token", corev1.SecretTypeServiceAccountToken), proxyNamed("a")
	token.Annotations[corev1.ServiceAccountNameKey] = "default"
	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "crawl"}}, about,
		podNamed("mine", "this-hub"), podNamed("theirs", "that-hub"), secretNamed("used", ""), token, secretNamed("release", "helm.sh/release.v1"))
	r, e := startedWith(t, often)
	s := put(r, "spoke", kubeconfig)
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
	pods, secrets := watching(t, e, podKind), watching(t, e, secretKind)
	pods.shows(t, "pods", "mine")
	eventually(t, "Secrets are shown", func() bool {
		return secrets.get("used") != nil && secrets.get("token") == nil && secrets.get("release") == nil
	}, func() any { return secrets.names() })
	if got := secrets.get("used"); got.GetAnnotations() != nil || got.GetManagedFields() != nil || got.GetUID() == "" || got.GetResourceVersion() == "" {
		t.Errorf("kept of a Secret: %+v", got)
	}
	if got := pods.get("mine"); len(got.GetOwnerReferences()) != 1 || got.GetAnnotations() != nil || got.GetManagedFields() != nil {
		t.Errorf("kept of a pod: %+v", got)
	}
	namespaces := "crawl"
	r.register("spoke", registration{secret: "spoke", kubeconfig: kubeconfig, namespaces: &namespaces})
	until(t, s, "rotated", func(st State) bool { return st.Namespaces == "crawl" })
	if err := cl.Delete(t.Context(), secretNamed("used", "")); err != nil {
		t.Fatal(err)
	}
	create(podNamed("late", "this-hub"), secretNamed("late", ""))
	pods.shows(t, "pods", "late mine")
	eventually(t, "Secrets are shown", func() bool { return secrets.get("late") != nil && secrets.get("used") == nil }, func() any { return secrets.names() })
	_, engaged := e.last()
	takesEvents(t, cl, engaged.GetEventRecorder("me"), about)
}

// realSpoke is an API server with the Proxy CRD, and what leads to it.
func realSpoke(t *testing.T) (client.Client, []byte) {
	t.Helper()
	plane := controlplane.StartForTest(t, 1)[0]
	if err := plane.Apply(t.Context(), "../../config/crd/crawl.proxyfleet.dev_proxies.yaml"); err != nil {
		t.Fatal(err)
	}
	cl, err := client.New(plane.Admin(), client.Options{Scheme: options(t).Scheme})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := controlplane.Kubeconfig(controlplane.Context{Name: "x", Config: plane.Admin()})
	if err != nil {
		t.Fatal(err)
	}
	return cl, kubeconfig
}

// takesEvents says the same twice and finds it as one Event.
func takesEvents(t *testing.T, cl client.Reader, recorder events.EventRecorder, about *v1alpha1.Proxy) {
	t.Helper()
	recorded := func() *eventsv1.Event {
		var all eventsv1.EventList
		if err := cl.List(t.Context(), &all, client.InNamespace(about.Namespace)); err != nil {
			t.Fatal(err)
		}
		if len(all.Items) != 1 {
			return &eventsv1.Event{}
		}
		return &all.Items[0]
	}
	say(recorder, about, "Said", "once")
	eventually(t, "recorded", func() bool { e := recorded(); return e.Note == "once" && e.Regarding.UID == about.UID }, func() any { return recorded() })
	say(recorder, about, "Said", "twice")
	eventually(t, "counted", func() bool { e := recorded(); return e.Series != nil && e.Series.Count == 2 }, func() any { return recorded() })
}
