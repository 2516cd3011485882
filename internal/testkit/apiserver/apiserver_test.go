package apiserver

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// contentTypes are those in which client-go sends core types.
var contentTypes = []string{"application/json", "application/vnd.kubernetes.protobuf"}

func clientset(t *testing.T, c *Cluster, contentType string) *kubernetes.Clientset {
	t.Helper()
	cfg := configTo(t, c)
	cfg.ContentType = contentType
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// ping asks for the version.
func ping(ctx context.Context, t *testing.T, c *Cluster) error {
	t.Helper()
	return clientset(t, c, "").Discovery().RESTClient().Get().AbsPath(VersionPath).Do(ctx).Error()
}

func systemUID(t *testing.T, cl client.Reader) types.UID {
	t.Helper()
	system := &metav1.PartialObjectMetadata{}
	system.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := cl.Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, system); err != nil {
		t.Fatal(err)
	}
	return system.UID
}

func TestClustersDoNotKnowEachOther(t *testing.T) {
	s := Start(t)
	eu, us := s.Cluster("eu"), s.Cluster("us")
	if s.Cluster("eu") != eu {
		t.Error("another cluster at second use")
	}
	eu.SetVersion("v1.35.0")
	eu.Put(proxy("a"))
	us.Deny("list", "proxies")
	for c, want := range map[*Cluster]string{eu: "v1.35.0", us: "v1.36.3"} {
		v, err := clientset(t, c, "").Discovery().ServerVersion()
		if err != nil || v.GitVersion != want {
			t.Errorf("version %v, %v", v, err)
		}
		system, err := clientset(t, c, contentTypes[1]).CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
		if err != nil || system.UID != types.UID("uid-"+c.name) || system.Status.Phase != corev1.NamespaceActive {
			t.Errorf("kube-system %v, %v", system, err)
		}
	}
	if got := names(t, direct(t, us)); got != "map[]" {
		t.Errorf("us has %s", got)
	}
	if got := us.Requests(); got[len(got)-1] != "GET "+ProxiesPath {
		t.Errorf("asked %v", got)
	}
	stranger := configTo(t, eu)
	stranger.Host = s.http.URL + "/never-made"
	if _, err := kubernetes.NewForConfigOrDie(stranger).Discovery().ServerVersion(); !apierrors.IsNotFound(err) {
		t.Errorf("a cluster that was never made answers: %v", err)
	}
}

func TestAccessReviewsTellWhatIsDenied(t *testing.T) {
	c := Start(t).Cluster("eu")
	c.Deny("create", "pods")
	c.Deny("patch", "proxies/status")
	for _, contentType := range contentTypes {
		reviews := clientset(t, c, contentType).AuthorizationV1().SelfSubjectAccessReviews()
		for _, review := range []struct {
			attributes authorizationv1.ResourceAttributes
			allowed    bool
		}{
			{authorizationv1.ResourceAttributes{Verb: "create", Resource: "pods", Namespace: "crawl"}, false},
			{authorizationv1.ResourceAttributes{Verb: "create", Resource: "pods"}, false},
			{authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods"}, true},
			{authorizationv1.ResourceAttributes{Verb: "patch", Group: "crawl.proxyfleet.dev", Resource: "proxies", Subresource: "status"}, false},
			{authorizationv1.ResourceAttributes{Verb: "patch", Group: "crawl.proxyfleet.dev", Resource: "proxies"}, true},
		} {
			got, err := reviews.Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &review.attributes},
			}, metav1.CreateOptions{})
			if err != nil || got.Status.Allowed != review.allowed {
				t.Errorf("%s: %+v: allowed %t, %v", contentType, review.attributes, got.Status.Allowed, err)
			}
		}
	}
	c.Allow("create", "pods")
	got, err := clientset(t, c, "").AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "create", Resource: "pods"}},
	}, metav1.CreateOptions{})
	if err != nil || !got.Status.Allowed {
		t.Errorf("still denied: %v, %v", got, err)
	}
}

func TestAStaleWriteConflicts(t *testing.T) {
	c := Start(t).Cluster("eu")
	c.Put(proxy("a"))
	cl := direct(t, c)
	stale := c.Get("crawl", "a")
	c.Put(proxy("a"))
	if err := patch(t, cl, stale, func(p *v1alpha1.Proxy) { p.Labels = map[string]string{"x": "y"} }); !apierrors.IsConflict(err) {
		t.Errorf("the patch: %v", err)
	}
	if err := cl.Update(t.Context(), stale.DeepCopy()); !apierrors.IsConflict(err) {
		t.Errorf("the update: %v", err)
	}
	gone := proxy("gone")
	gone.UID, gone.ResourceVersion = "u", "1"
	if err := patch(t, cl, gone, func(p *v1alpha1.Proxy) { p.Labels = map[string]string{"x": "y"} }); !apierrors.IsNotFound(err) {
		t.Errorf("the patch of none: %v", err)
	}
	if got := c.Get("crawl", "a"); got.Labels != nil || got.UID != stale.UID {
		t.Errorf("written nevertheless: %+v", got)
	}
}

// patch sends the edit as a merge patch with optimistic lock.
func patch(t *testing.T, cl client.Client, base *v1alpha1.Proxy, edit func(*v1alpha1.Proxy)) error {
	t.Helper()
	p := base.DeepCopy()
	edit(p)
	return cl.Patch(t.Context(), p, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
}

func TestAWriteChangesWhatItMay(t *testing.T) {
	c := Start(t).Cluster("eu")
	first := proxy("a")
	first.Finalizers, first.Annotations = []string{v1alpha1.Finalizer}, map[string]string{"old": "x", "kept": "y"}
	c.Put(first)
	if first.UID != "" || first.ResourceVersion != "" {
		t.Errorf("Put changed what is the caller's: %+v", first)
	}
	cl := direct(t, c)
	p := c.Get("crawl", "a")
	if p.UID == "" || p.Generation != 1 || p.CreationTimestamp.IsZero() {
		t.Errorf("put as %+v", p)
	}
	edit := func(p *v1alpha1.Proxy) {
		p.Annotations = map[string]string{"kept": "y", "new": "z"}
		p.Spec.Endpoint.Port, p.Status.Phase, p.Generation = 8080, v1alpha1.PhaseReady, 99
	}
	if err := patch(t, cl, p, edit); err != nil {
		t.Fatal(err)
	}
	p = c.Get("crawl", "a")
	if p.Spec.Endpoint.Port != 8080 || p.Spec.Endpoint.Host != "a.example.com" || p.Status.Phase != "" || p.Generation != 2 ||
		len(p.Annotations) != 2 || p.Annotations["new"] != "z" {
		t.Errorf("patched to %+v", p)
	}
	base := p.DeepCopy()
	p.Spec.Endpoint.Port, p.Status.Phase, p.Status.LatencyMillis = 1, v1alpha1.PhaseReady, 12
	if err := cl.Status().Patch(t.Context(), p, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		t.Fatal(err)
	}
	p = c.Get("crawl", "a")
	if p.Spec.Endpoint.Port != 8080 || p.Status.Phase != v1alpha1.PhaseReady || p.Status.LatencyMillis != 12 || p.Generation != 2 {
		t.Errorf("status patched to %+v", p)
	}
	before := p.ResourceVersion
	if err := cl.Update(t.Context(), p.DeepCopy()); err != nil || c.Get("crawl", "a").ResourceVersion != before {
		t.Errorf("a write that changes nothing: %v", err)
	}
	p.Spec.Endpoint.Port = 9090
	if err := cl.Update(t.Context(), p); err != nil || c.Get("crawl", "a").Spec.Endpoint.Port != 9090 {
		t.Errorf("the update: %v", err)
	}
	if last := c.Requests(); last[len(last)-1] != "PUT /apis/crawl.proxyfleet.dev/v1alpha1/namespaces/crawl/proxies/a" {
		t.Errorf("asked %v", last)
	}
}

func TestTheLastFinalizerEndsADeletedProxy(t *testing.T) {
	c := Start(t).Cluster("eu")
	p, now := proxy("a"), metav1.Now()
	p.Finalizers, p.DeletionTimestamp = []string{v1alpha1.Finalizer}, &now
	c.Put(p)
	k := synced(t, c)
	if err := patch(t, direct(t, c), c.Get("crawl", "a"), func(p *v1alpha1.Proxy) { p.Finalizers = nil }); err != nil {
		t.Fatal(err)
	}
	if c.Get("crawl", "a") != nil {
		t.Error("it is still there")
	}
	until(t, "its end seen", func() bool { return names(t, k) == "map[]" })
}

func TestAListComesInPages(t *testing.T) {
	c := Start(t).Cluster("eu")
	for _, name := range []string{"a", "b", "c"} {
		c.Put(proxy(name))
	}
	cl := direct(t, c)
	var page v1alpha1.ProxyList
	if err := cl.List(t.Context(), &page, client.Limit(2)); err != nil || len(page.Items) != 2 || page.Continue == "" {
		t.Fatalf("%d Proxies, continue %q, %v", len(page.Items), page.Continue, err)
	}
	if got := names(t, cl, client.Limit(2), client.Continue(page.Continue)); got != "map[c:3128]" {
		t.Errorf("the second page is %s", got)
	}
	if got := names(t, cl, client.InNamespace("crawl"), client.Limit(3)); got != "map[a:3128 b:3128 c:3128]" {
		t.Errorf("all are %s", got)
	}
	if got := names(t, cl, client.InNamespace("other")); got != "map[]" {
		t.Errorf("elsewhere is %s", got)
	}
}

func TestAnAnswerStandsForAllThatAPathWouldSay(t *testing.T) {
	c := Start(t).Cluster("eu")
	cl := direct(t, c)
	c.Answer(ProxiesPath, Status(http.StatusForbidden, "Forbidden", "proxies is forbidden: cannot list"))
	if err := cl.List(t.Context(), &v1alpha1.ProxyList{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "cannot list") {
		t.Errorf("the list: %v", err)
	}
	synced(t, c) // watches are apart
	c.Answer(VersionPath, Answer{Body: "<html>hello</html>"})
	if _, err := clientset(t, c, "").Discovery().ServerVersion(); err == nil {
		t.Error("a page is a version")
	}
	c.Answer(VersionPath, Answer{Hang: true})
	if err := ping(brief(t), t, c); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the request that hangs: %v", err)
	}
	c.Answer(AccessReviewsPath, Answer{Hang: true}) // one with a body
	_, err := clientset(t, c, "").AuthorizationV1().SelfSubjectAccessReviews().Create(brief(t), &authorizationv1.SelfSubjectAccessReview{}, metav1.CreateOptions{})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the review that hangs: %v", err)
	}
	if uid := systemUID(t, cl); uid != "uid-eu" {
		t.Errorf("other paths say %s", uid)
	}
	c.Answer(VersionPath, Answer{})
	if err := ping(t.Context(), t, c); err != nil {
		t.Errorf("taken back: %v", err)
	}
}

func TestPodsAreKept(t *testing.T) {
	for _, contentType := range contentTypes {
		c := Start(t).Cluster("eu")
		pods := clientset(t, c, contentType).CoreV1().Pods("crawl")
		if _, err := pods.Get(t.Context(), "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: it was there: %v", contentType, err)
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"x": "y"}}}
		created, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
		if err != nil || created.UID == "" {
			t.Fatalf("%s: created %v, %v", contentType, created, err)
		}
		if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			t.Errorf("%s: created twice: %v", contentType, err)
		}
		if got, err := pods.Get(t.Context(), "p", metav1.GetOptions{}); err != nil || got.UID != created.UID || got.Labels["x"] != "y" {
			t.Errorf("%s: got %v, %v", contentType, got, err)
		}
		if err := pods.Delete(t.Context(), "p", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")}); !apierrors.IsConflict(err) {
			t.Errorf("%s: deleted in spite of another UID: %v", contentType, err)
		}
		if err := pods.Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
			t.Errorf("%s: delete: %v", contentType, err)
		}
		// The hub's client, which speaks protobuf for pods.
		cl := direct(t, c)
		again := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "crawl", Name: "p"}}
		if err := errors.Join(cl.Create(t.Context(), again), cl.Get(t.Context(), client.ObjectKeyFromObject(again), again)); err != nil {
			t.Errorf("%s: %v", contentType, err)
		}
		if err := cl.Delete(t.Context(), again, client.Preconditions{UID: &again.UID}); err != nil {
			t.Errorf("%s: %v", contentType, err)
		}
	}
}

func TestWhatIsNotPlayedIsRefused(t *testing.T) {
	c := Start(t).Cluster("eu")
	c.Put(proxy("a"))
	cl := direct(t, c)
	said := map[string]error{
		"does not play GET":                         cl.List(t.Context(), &corev1.NamespaceList{}),
		"does not play POST":                        cl.Create(t.Context(), proxy("b")),
		"does not play selectors of proxies":        cl.List(t.Context(), &v1alpha1.ProxyList{}, client.MatchingLabels{"x": "y"}),
		"does not play application/json-patch+json": cl.Patch(t.Context(), proxy("a"), client.RawPatch(types.JSONPatchType, []byte("[]"))),
		"read the body":                             cl.Patch(t.Context(), proxy("a"), client.RawPatch(types.MergePatchType, []byte("[]"))),
	}
	for want, err := range said {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if slices.Contains(c.Tokens(), "") {
		t.Error("an empty token")
	}
}
