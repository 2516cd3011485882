package apiserver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	toolsevents "k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const helmType = "helm.sh/release.v1"

var (
	ours    = labels.SelectorFromSet(labels.Set{"hub": "h"})
	notHelm = fields.OneTermNotEqualSelector("type", helmType)
)

func pod(name, hub string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "crawl", Name: name, Labels: map[string]string{"hub": hub}}}
}

func secret(name string, kind corev1.SecretType) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "crawl", Name: name}, Type: kind, StringData: map[string]string{"k": "v"}}
}

func bare(kind string) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	return o
}

// namesOf are the names of the kind that the reader has, as metadata.
func namesOf(t *testing.T, from client.Reader, kind string, opts ...client.ListOption) string {
	t.Helper()
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind + "List"))
	if err := from.List(t.Context(), list, opts...); err != nil {
		t.Fatal(err)
	}
	var all []string
	for i := range list.Items {
		all = append(all, list.Items[i].Name)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// metadataCache holds the metadata of pods with label hub=h, and of Secrets that are not helm's,
// in the namespaces, or in all if there are none. It has synced.
func metadataCache(t *testing.T, c *Cluster, namespaces ...string) cache.Cache {
	t.Helper()
	scheme, mapper := knownKinds(t)
	o := cache.Options{
		Scheme: scheme, Mapper: mapper, DefaultNamespaces: map[string]cache.Config{},
		ByObject:                 map[client.Object]cache.ByObject{&corev1.Pod{}: {Label: ours}, &corev1.Secret{}: {Field: notHelm}},
		DefaultWatchErrorHandler: func(context.Context, *toolscache.Reflector, error) {}, // meant to happen
	}
	for _, namespace := range namespaces {
		o.DefaultNamespaces[namespace] = cache.Config{}
	}
	k, err := cache.New(configTo(t, c), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Start(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	for _, kind := range []string{"Pod", "Secret"} {
		if _, err := k.GetInformer(t.Context(), bare(kind), cache.BlockUntilSynced(false)); err != nil {
			t.Fatal(err)
		}
	}
	if !k.WaitForCacheSync(t.Context()) {
		t.Fatal("the cache has not synced")
	}
	return k
}

func TestACacheOfMetadataSeesWhatIsSelected(t *testing.T) {
	for _, namespaces := range [][]string{nil, {"crawl", "empty"}} {
		c := Start(t).Cluster("eu")
		c.PutPod(pod("a", "h"))
		c.PutPod(pod("theirs", "another"))
		c.PutSecret(secret("s", ""))
		c.PutSecret(secret("release", helmType))
		k := metadataCache(t, c, namespaces...)
		sees := func(what, pods, secrets string) {
			t.Helper()
			until(t, what, func() bool { return namesOf(t, k, "Pod") == pods && namesOf(t, k, "Secret") == secrets })
		}
		sees("what is there", "a", "s")
		for _, fault := range []struct {
			name       string
			begin, end func()
		}{
			{"cut", c.CutWatches, func() {}},
			{"muted", func() { c.MuteWatches(true) }, func() { c.MuteWatches(false) }},
			{"away", func() { c.Unavailable(true) }, func() { c.Unavailable(false) }},
			{"another cluster", func() { c.SetUID("another") }, func() { c.SetUID("uid-eu") }}, // a new list
		} {
			fault.begin()
			c.PutPod(pod("theirs", "h")) // selected from now on
			c.PutPod(pod("b", "h"))
			c.RemovePod("crawl", "a")
			c.PutSecret(secret("s-2", "kubernetes.io/tls"))
			c.RemoveSecret("crawl", "s")
			c.PutSecret(secret("release-2", helmType))
			fault.end()
			sees("what came while "+fault.name, "b theirs", "s-2")
			c.PutPod(pod("theirs", "another"))
			c.PutPod(pod("a", "h"))
			c.RemovePod("crawl", "b")
			c.PutSecret(secret("s", ""))
			c.RemoveSecret("crawl", "s-2")
			sees("what came back after "+fault.name, "a", "s")
		}
		var seen metav1.PartialObjectMetadata
		seen.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		if err := k.Get(t.Context(), types.NamespacedName{Namespace: "crawl", Name: "a"}, &seen); err != nil || seen.UID != c.Pod("crawl", "a").UID || seen.Labels["hub"] != "h" {
			t.Errorf("seen %+v, %v", seen, err)
		}
		until(t, "all watched", func() bool { return c.Watches() == 2*max(1, len(namespaces)) })
	}
}

func TestListsAreOfWhatIsSelected(t *testing.T) {
	c := Start(t).Cluster("eu")
	cl := direct(t, c)
	for i := range 5 {
		c.PutPod(pod(fmt.Sprint("p-", i), []string{"h", "another"}[i%2]))
	}
	c.PutSecret(secret("s", ""))
	c.PutSecret(secret("release", helmType))
	label := client.MatchingLabelsSelector{Selector: ours}
	if got := namesOf(t, cl, "Pod", label); got != "p-0 p-2 p-4" {
		t.Errorf("metadata of %s", got)
	}
	if got := namesOf(t, cl, "Secret", client.MatchingFieldsSelector{Selector: notHelm}); got != "s" {
		t.Errorf("metadata of Secrets %s", got)
	}
	if got := namesOf(t, cl, "Secret", label); got != "" {
		t.Errorf("labelled are %s", got)
	}
	var page corev1.PodList
	if err := cl.List(t.Context(), &page, label, client.InNamespace("crawl"), client.Limit(2)); err != nil || len(page.Items) != 2 || page.Items[1].Name != "p-2" {
		t.Fatalf("%+v, %v", page, err)
	}
	if err := cl.List(t.Context(), &page, label, client.Limit(2), client.Continue(page.Continue)); err != nil || len(page.Items) != 1 || page.Items[0].Name != "p-4" || page.Continue != "" {
		t.Errorf("%+v, %v", page, err)
	}
	for what, opt := range map[string]client.ListOption{
		"status.phase":      client.MatchingFields{"status.phase": "Running"}, // of pods: not played
		"metadata.name=foo": client.MatchingFields{"metadata.name": "foo"},
	} {
		if err := cl.List(t.Context(), &corev1.PodList{}, opt); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v", what, err)
		}
		if err := cl.List(t.Context(), &corev1.SecretList{}, opt); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestAPodRunsOnceItIsCreated(t *testing.T) {
	c := Start(t).Cluster("eu")
	cl := direct(t, c)
	c.RunPods(func(p *corev1.Pod) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", Message: string(c.Pod(p.Namespace, p.Name).UID)}
	})
	p := pod("a", "h")
	if err := cl.Create(t.Context(), p); err != nil || p.Status.Phase != corev1.PodPending {
		t.Fatalf("%+v, %v", p.Status, err)
	}
	if err := cl.Get(t.Context(), keyOf(p), p); err != nil || p.Status.PodIP != "10.0.0.1" || p.Status.Message != string(p.UID) {
		t.Errorf("%+v, %v", p.Status, err)
	}
	if !c.SetPodStatus("crawl", "a", corev1.PodStatus{Phase: corev1.PodFailed}) || c.SetPodStatus("crawl", "b", corev1.PodStatus{}) {
		t.Error("the status of another pod was set")
	}
	c.RunPods(nil)
	if err := cl.Create(t.Context(), pod("b", "h")); err != nil || c.Pod("crawl", "b").Status.Phase != corev1.PodPending {
		t.Errorf("%v", err)
	}
	base := c.Pod("crawl", "a")
	next := base.DeepCopy()
	next.Status.Message, next.Labels = "says the node", nil
	if err := cl.Status().Patch(t.Context(), next, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
	if got := c.Pod("crawl", "a"); got.Status.Message != "says the node" || got.Status.Phase != corev1.PodFailed || got.Labels["hub"] != "h" || len(c.Pods("crawl")) != 2 {
		t.Errorf("%+v", got)
	}
}

// TestMetadataIsPatchedUnderALock is how a hub lets an instance go.
func TestMetadataIsPatchedUnderALock(t *testing.T) {
	c := Start(t).Cluster("eu")
	cl := direct(t, c)
	p := pod("a", "h")
	p.OwnerReferences, p.Finalizers = []metav1.OwnerReference{{Kind: "Proxy", UID: "u"}}, []string{"example.com/held"}
	c.PutPod(p)
	c.PutSecret(secret("a", ""))
	for _, kind := range []string{"Pod", "Secret"} {
		o := bare(kind)
		if err := cl.Get(t.Context(), types.NamespacedName{Namespace: "crawl", Name: "a"}, o); err != nil {
			t.Fatal(err)
		}
		base := o.DeepCopy()
		o.OwnerReferences, o.Labels = nil, map[string]string{"hub": "h", "more": "x"}
		lock := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
		if err := cl.Patch(t.Context(), o.DeepCopy(), lock); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		o.Labels["more"] = "y"
		if err := cl.Patch(t.Context(), o, lock); !apierrors.IsConflict(err) {
			t.Errorf("%s: a stale patch: %v", kind, err)
		}
		stranger := fmt.Appendf(nil, `{"metadata":{"uid":"other","labels":{"more":"z"}}}`)
		if err := cl.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, stranger)); !apierrors.IsConflict(err) {
			t.Errorf("%s: a patch of another: %v", kind, err)
		}
	}
	if got := c.Pod("crawl", "a"); got.Labels["more"] != "x" || got.OwnerReferences != nil {
		t.Errorf("patched to %+v", got)
	}
	if got := c.Secret("crawl", "a"); got.Labels["more"] != "x" || string(got.Data["k"]) != "v" {
		t.Errorf("patched to %+v", got)
	}
	held := c.Pod("crawl", "a")
	if err := cl.Delete(t.Context(), held, client.Preconditions{ResourceVersion: new(string)}); err != nil {
		t.Fatal(err)
	}
	if got := c.Pod("crawl", "a"); got == nil || got.DeletionTimestamp == nil {
		t.Fatalf("not held: %+v", got)
	}
	if err := cl.Patch(t.Context(), held, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))); err != nil || c.Pod("crawl", "a") != nil {
		t.Errorf("still held: %v", err)
	}
	if err := cl.Patch(t.Context(), pod("a", "h"), client.RawPatch(types.MergePatchType, []byte(`{}`))); !apierrors.IsNotFound(err) {
		t.Errorf("a patch of none: %v", err)
	}
}

func TestSecretsAreKept(t *testing.T) {
	c := Start(t).Cluster("eu")
	cl := direct(t, c)
	s := secret("s", "")
	s.Immutable = new(bool)
	if err := cl.Create(t.Context(), s.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	if err := cl.Create(t.Context(), s.DeepCopy()); !apierrors.IsAlreadyExists(err) {
		t.Errorf("created twice: %v", err)
	}
	if err := cl.Get(t.Context(), keyOf(s), s); err != nil || string(s.Data["k"]) != "v" || s.Type != corev1.SecretTypeOpaque || s.UID == "" {
		t.Fatalf("%+v, %v", s, err)
	}
	freeze := client.RawPatch(types.MergePatchType, []byte(`{"immutable":true,"data":{"k":"dw=="}}`))
	if err := cl.Patch(t.Context(), s, freeze); err != nil || string(c.Secret("crawl", "s").Data["k"]) != "w" {
		t.Errorf("%v", err)
	}
	for _, patch := range []string{`{"data":{"k":"dg=="}}`, `{"type":"x"}`, `{"immutable":false}`} {
		if err := cl.Patch(t.Context(), s, client.RawPatch(types.MergePatchType, []byte(patch))); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", patch, err)
		}
	}
	other := types.UID("other")
	if err := cl.Delete(t.Context(), s, client.Preconditions{UID: &other}); !apierrors.IsConflict(err) {
		t.Errorf("another was deleted: %v", err)
	}
	if err := cl.Delete(t.Context(), s); err != nil || len(c.Secrets("")) != 0 {
		t.Errorf("%v", err)
	}
}

func TestEventsAreRecorded(t *testing.T) {
	c := Start(t).Cluster("eu")
	cs := clientset(t, c, "")
	ctx, cancel := context.WithCancel(t.Context())
	b := toolsevents.NewBroadcaster(&toolsevents.EventSinkImpl{Interface: cs.EventsV1()})
	if err := b.StartRecordingToSinkWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); b.Shutdown() })
	scheme, _ := knownKinds(t)
	recorder, about := b.NewRecorder(scheme, "me"), proxy("a")
	c.Put(about)
	recorder.Eventf(c.Get("crawl", "a"), nil, corev1.EventTypeNormal, "Created", "Create", "it %s", "is")
	last := func() *eventsv1.Event {
		if all := c.Events("crawl"); len(all) == 1 {
			return all[0]
		}
		return &eventsv1.Event{}
	}
	until(t, "recorded", func() bool { return last().Note == "it is" })
	recorder.Eventf(c.Get("crawl", "a"), nil, corev1.EventTypeNormal, "Created", "Create", "it %s", "still is")
	until(t, "counted", func() bool { return last().Series != nil && last().Series.Count == 2 })
	if e := last(); e.Regarding.Name != "a" || e.Regarding.UID != c.Get("crawl", "a").UID || e.Note != "it is" {
		t.Errorf("%+v", e)
	}
}

func TestWritesAreCounted(t *testing.T) {
	c := Start(t).Cluster("eu")
	cl := direct(t, c)
	c.Put(proxy("a"))
	p := c.Get("crawl", "a")
	base := p.DeepCopy()
	p.Status.LatencyMillis = 7
	if err := cl.Status().Patch(t.Context(), p, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_ = cl.Create(t.Context(), pod("a", "h")) // the second is refused, and was asked for
	}
	if err := cl.Delete(t.Context(), pod("a", "h")); err != nil {
		t.Fatal(err)
	}
	before := c.Requests()
	if err := cl.List(t.Context(), &corev1.PodList{}); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(c.Writes()); got != "map[DELETE pods:1 PATCH proxies/status:1 POST pods:2]" {
		t.Errorf("counted %s", got)
	}
	if after := c.Requests(); len(before) != 4 || len(after) != 5 || after[4] != "GET "+PodsPath {
		t.Errorf("asked %v, then %v", before, after)
	}
}

func TestWatchesAreAnsweredApart(t *testing.T) {
	c := Start(t).Cluster("eu")
	cl := direct(t, c)
	c.AnswerWatches(SecretsPath, Status(403, "Forbidden", "no watch today"))
	if _, err := cl.Watch(t.Context(), &corev1.SecretList{}); !apierrors.IsForbidden(err) {
		t.Errorf("%v", err)
	}
	if err := cl.List(t.Context(), &corev1.SecretList{}); err != nil {
		t.Error(err)
	}
	c.AnswerWatches(SecretsPath, Answer{})
	w, err := cl.Watch(t.Context(), &corev1.SecretList{})
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()
}
