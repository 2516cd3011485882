package app_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
)

// TestHub runs the whole hub against three real API servers. The test plays
// the kubelet, so that it decides when a pod runs and when it is gone.
func TestHub(t *testing.T) {
	w := newWorld(t)
	run(w, w, []step[*world]{
		{"two spokes are registered", bothSpokes},
		{"a Managed Proxy is brought up, leased and let go", managedLife},
		{"an External Proxy is probed and leased without an instance", externalLife},
		{"an edited spec replaces the instance, one at a time", replacement},
		{"a deletion that is begun under a crash leaves nothing", deletionWithoutRecord},
		{"what is not ours is left alone", notOurs},
		{"a healthy fleet at rest is not written to", quiet},
		{"a spoke that hangs delays no other", hang},
	})
}

// up applies p and plays the kubelet until it is Ready.
func (w *world) up(s *spokeWorld, p *v1alpha1.Proxy) *corev1.Pod {
	w.t.Helper()
	w.create(s, p)
	pod := w.podOf(s, p, "")
	w.bind(s, pod)
	w.run(s, pod)
	w.proxyShows(s, p, v1alpha1.PhaseReady)
	return pod
}

func managedLife(t *testing.T, w *world) {
	eu := w.spokes["eu"]
	p := managed("life", w.forwardProxy())
	pod := w.up(eu, p)
	uid, err := eu.plane.UID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{v1alpha1.LabelUID: string(p.UID), v1alpha1.LabelCluster: uid, v1alpha1.LabelSpecHash: p.Annotations[v1alpha1.AnnotationSpecHash], v1alpha1.LabelHub: p.Annotations[v1alpha1.AnnotationHub]}
	for k, v := range want {
		if v == "" || pod.Labels[k] != v {
			t.Errorf("label %s is %q, want %q", k, pod.Labels[k], v)
		}
	}
	if owner := metav1.GetControllerOf(pod); owner == nil || owner.UID != p.UID {
		t.Errorf("controller owner %+v", owner)
	}
	if got := p.Status.Endpoint; got != fmt.Sprintf("127.0.0.1:%d", p.Spec.Port) || p.Status.LatencyMillis < 0 || !strings.Contains(p.Status.ProviderID, string(pod.UID)) {
		t.Errorf("status %+v", p.Status)
	}
	if item := w.listed("?attr.test=life")["eu/life"]; !item.Healthy || item.Phase != "Ready" {
		t.Errorf("listed as %+v", item)
	}

	var granted leaseReply
	if status := w.call("POST", "/v1/leases", `{"selector":{"test":"life"},"cluster":"eu","target":"127.0.0.1"}`, &granted); status != http.StatusCreated {
		t.Fatalf("lease: %d %+v", status, granted)
	}
	w.fetchThrough(granted.Proxy.URL)
	if status := w.call("POST", "/v1/leases/"+granted.LeaseID+"/report", `{"result":"ok"}`, nil); status != http.StatusNoContent {
		t.Errorf("report: %d", status)
	}
	if status := w.call("DELETE", "/v1/leases/"+granted.LeaseID, "", nil); status != http.StatusNoContent {
		t.Errorf("release: %d", status)
	}

	if err := eu.Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.proxyShows(eu, p, v1alpha1.PhaseDeleting)
	if status := w.call("POST", "/v1/leases", `{"selector":{"test":"life"}}`, &granted); status != http.StatusConflict || granted.Considered != 0 {
		t.Errorf("a Proxy that is going: lease answered %d, %+v", status, granted)
	}
	w.eventually("the pod is being deleted", func() error {
		if err := w.get(eu, pod); err != nil {
			return err
		}
		if pod.DeletionTimestamp == nil {
			return errors.New("it is not")
		}
		return nil
	})
	w.vanish(eu, pod)
	w.gone(eu, p)
}

// fetchThrough fetches a page of the TLS origin as a crawler would.
func (w *world) fetchThrough(proxyURL string) {
	w.t.Helper()
	crawler, err := origin.Crawler(proxyURL, w.site.CertPool())
	if err != nil {
		w.t.Fatal(err)
	}
	if page, err := origin.Fetch(w.t.Context(), crawler, w.site.URL+"/page"); err != nil || page.Path != "/page" || !page.TLS {
		w.t.Errorf("page through the lease: %+v, %v", page, err)
	}
}

// gone waits until the Proxy is neither in its spoke nor listed.
func (w *world) gone(s *spokeWorld, p *v1alpha1.Proxy) {
	w.t.Helper()
	w.eventually(p.Name+" is gone", func() error {
		if err := w.get(s, p); !apierrors.IsNotFound(err) {
			return fmt.Errorf("still there, finalizers %v (%w)", p.Finalizers, err)
		}
		if _, there := w.listed("")[s.name+"/"+p.Name]; there {
			return errors.New("still listed")
		}
		return nil
	})
}

func externalLife(t *testing.T, w *world) {
	us := w.spokes["us"]
	p := managed("ext", 0, func(p *v1alpha1.Proxy) {
		p.Spec.Mode, p.Spec.Provider = v1alpha1.ModeExternal, ""
		p.Spec.Endpoint = &v1alpha1.Endpoint{Host: "127.0.0.1", Port: w.forwardProxy()}
	})
	w.create(us, p)
	w.proxyShows(us, p, v1alpha1.PhaseReady)
	if len(p.Finalizers) != 0 || p.Status.IP != "127.0.0.1" || p.Annotations[v1alpha1.AnnotationHub] == "" {
		t.Errorf("finalizers %v, ip %q, annotations %v", p.Finalizers, p.Status.IP, p.Annotations)
	}
	var granted leaseReply
	if status := w.call("POST", "/v1/leases", `{"cluster":"us"}`, &granted); status != http.StatusCreated || granted.Proxy.Name != "ext" {
		t.Fatalf("lease: %d %+v", status, granted)
	}
	w.fetchThrough(granted.Proxy.URL)
	p.Spec.Endpoint.Port = 1 // nothing listens there
	if err := us.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.proxyShows(us, p, v1alpha1.PhaseUnhealthy)
	if got := condition(p.Status.Conditions, v1alpha1.ConditionHealthy); !strings.HasPrefix(got, "False/DialFailed") {
		t.Errorf("Healthy is %s", got)
	}
	if status := w.call("POST", "/v1/leases", `{"cluster":"us"}`, &granted); status != http.StatusConflict || granted.Unhealthy != 1 {
		t.Errorf("an unhealthy Proxy: lease answered %d, %+v", status, granted)
	}
	if err := us.Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.gone(us, p)
}

func replacement(t *testing.T, w *world) {
	eu := w.spokes["eu"]
	p := managed("edit", w.forwardProxy())
	first := w.up(eu, p)
	edit := func(change func(*v1alpha1.ProxySpec)) {
		w.eventually("edited", func() error {
			if err := w.get(eu, p); err != nil {
				return err
			}
			change(&p.Spec)
			return eu.Update(t.Context(), p)
		})
	}
	edit(func(s *v1alpha1.ProxySpec) {
		s.Attributes["colour"] = "red"
		s.HealthCheck.FailureThreshold = 3
	})
	w.eventually("attributes follow without a replacement", func() error {
		if _, there := w.listed("?attr.colour=red")["eu/edit"]; !there {
			return errors.New("not listed by the new attribute")
		}
		return nil
	})
	edit(func(s *v1alpha1.ProxySpec) { s.Kubernetes = &v1alpha1.KubernetesSpec{Image: "other:image"} })
	w.proxyShows(eu, p, v1alpha1.PhaseReplacing)
	if item := w.listed("")["eu/edit"]; item.Healthy {
		t.Errorf("an instance on its way out is listed as %+v", item)
	}
	if err := w.get(eu, first); err != nil || first.DeletionTimestamp == nil {
		t.Errorf("the old pod: %v, deleted at %v", err, first.DeletionTimestamp)
	}
	w.vanish(eu, first)
	second := w.podOf(eu, p, string(first.UID))
	if second.Spec.Containers[0].Image != "other:image" || second.Labels[v1alpha1.LabelSpecHash] == first.Labels[v1alpha1.LabelSpecHash] {
		t.Errorf("the new pod runs %q with hash %s", second.Spec.Containers[0].Image, second.Labels[v1alpha1.LabelSpecHash])
	}
	w.bind(eu, second)
	w.run(eu, second)
	w.proxyShows(eu, p, v1alpha1.PhaseReady)
}

// deletionWithoutRecord plays the crash between Create and the status write.
func deletionWithoutRecord(t *testing.T, w *world) {
	eu := w.spokes["eu"]
	p := managed("crash", w.forwardProxy())
	w.create(eu, p)
	pod := w.podOf(eu, p, "")
	w.eventually("forget the instance", func() error {
		if err := w.get(eu, p); err != nil {
			return err
		}
		p.Status = v1alpha1.ProxyStatus{}
		return eu.Status().Update(t.Context(), p)
	})
	if err := eu.Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.gone(eu, p) // the pod is not bound, so its deletion is immediate
	if err := w.get(eu, pod); !apierrors.IsNotFound(err) {
		t.Errorf("the pod outlived its Proxy: %v", err)
	}
}

func notOurs(t *testing.T, w *world) {
	eu := w.spokes["eu"]
	// Marked by another hub at first, so that its UID is known before this hub acts.
	p := managed("collide", w.forwardProxy(), func(p *v1alpha1.Proxy) {
		p.Annotations = map[string]string{v1alpha1.AnnotationHub: "another-hub"}
	})
	w.create(eu, p)
	squatter := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "proxy-" + string(p.UID)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}},
	}
	w.create(eu, squatter)
	w.up(eu, managed("canary", w.forwardProxy()))
	if err := w.get(eu, p); err != nil || p.Status.Phase != "" || len(p.Finalizers) != 0 {
		t.Errorf("another hub's Proxy was touched: %v %+v", err, p)
	}
	if _, there := w.listed("")["eu/collide"]; there {
		t.Error("another hub's Proxy is in the fleet: both would lease it")
	}
	base := p.DeepCopy()
	p.Annotations = nil
	if err := eu.Patch(t.Context(), p, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
	w.proxyShows(eu, p, v1alpha1.PhaseFailed)
	if got := condition(p.Status.Conditions, v1alpha1.ConditionProvisioned); !strings.HasPrefix(got, "False/PermanentError") || p.Status.ProviderID != "" {
		t.Errorf("Provisioned is %s, providerID %q", got, p.Status.ProviderID)
	}
	if err := eu.Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.gone(eu, p)
	if err := w.get(eu, squatter); err != nil || squatter.DeletionTimestamp != nil {
		t.Errorf("somebody else's pod was deleted: %v", err)
	}
}

func quiet(t *testing.T, w *world) {
	eu := w.spokes["eu"]
	w.spokeShows("eu", v1alpha1.ConditionContested, "absent", "") // the step before has made it so, and it is told late
	versions := func() map[string]string {
		var proxies v1alpha1.ProxyList
		var pods corev1.PodList
		var spokes v1alpha1.SpokeList
		if err := errors.Join(eu.List(t.Context(), &proxies), eu.List(t.Context(), &pods), w.hub.List(t.Context(), &spokes)); err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, p := range proxies.Items {
			all["proxy "+p.Name] = p.ResourceVersion
		}
		for _, p := range pods.Items {
			all["pod "+p.Name] = p.ResourceVersion
		}
		for _, s := range spokes.Items {
			s.Status.Proxies, s.Status.Instances = nil, nil // may follow within a minute
			all["spoke "+s.Name] = fmt.Sprint(s.Status)
		}
		return all
	}
	before := versions()
	if len(before) < 4 {
		t.Fatalf("nothing to watch over: %v", before)
	}
	// Probes come every second: within five, a writer that is not quiet is found.
	timer := time.NewTimer(5 * time.Second)
	defer timer.Stop()
	<-timer.C
	if after := versions(); !maps.Equal(before, after) {
		t.Errorf("written to at rest:\n%v\n%v", before, after)
	}
}
