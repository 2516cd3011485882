package registry

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/testkit/apiserver"
)

func podNamed(name, hub string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "crawl", Name: name, Labels: map[string]string{v1alpha1.LabelHub: hub}, Annotations: map[string]string{"long": "story"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Proxy", Name: name, UID: "u"}},
	}}
}

func secretNamed(name string, kind corev1.SecretType) *corev1.Secret {
	return &corev1.Secret{Type: kind, ObjectMeta: metav1.ObjectMeta{
		Namespace: "crawl", Name: name, Labels: map[string]string{"app": "x"}, Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: "all that is in it"},
	}}
}

// model is what a handler makes of what it is told.
type model struct {
	cl      cluster.Cluster
	mu      sync.Mutex
	objects map[string]client.Object
	deleted map[string]int
}

// watching is a model of the engaged cluster's objects of a kind.
func watching(t *testing.T, e *engagements, k *kind) *model {
	t.Helper()
	ctx, cl := e.last()
	m := &model{cl: cl, objects: map[string]client.Object{}, deleted: map[string]int{}}
	informer, err := cl.GetCache().GetInformer(ctx, k.object)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := informer.AddEventHandlerWithResyncPeriod(m, 0); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *model) OnAdd(object any, _ bool) { m.OnUpdate(nil, object) }

func (m *model) OnUpdate(_, object any) {
	m.cl.GetClient() // as a handler may
	m.mu.Lock()
	defer m.mu.Unlock()
	o := object.(client.Object)
	m.objects[o.GetName()] = o
}

func (m *model) OnDelete(object any) {
	m.cl.GetClient()
	if tombstone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	name := object.(client.Object).GetName()
	delete(m.objects, name)
	m.deleted[name]++
}

func (m *model) names() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(m.objects)), " ")
}

// gone is how often it was told that the object is gone.
func (m *model) gone(name string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.deleted[name]
}

func (m *model) get(name string) client.Object {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects[name]
}

// shows waits until the model has these and no others.
func (m *model) shows(t *testing.T, what, names string) {
	t.Helper()
	eventually(t, what+" are shown", func() bool { return m.names() == names }, func() any { return m.names() })
}

func TestOfPodsAndSecretsNoMoreIsKeptThanIsUsed(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	c.PutPod(podNamed("mine", "this-hub"))
	c.PutPod(podNamed("theirs", "that-hub"))
	c.PutSecret(secretNamed("used", ""))
	c.PutSecret(secretNamed("token", corev1.SecretTypeServiceAccountToken))
	c.PutSecret(secretNamed("release", "helm.sh/release.v1"))
	r, e, _ := connected(t, c)
	pods, secrets := watching(t, e, podKind), watching(t, e, secretKind)
	pods.shows(t, "pods", "mine")
	secrets.shows(t, "Secrets", "used")
	pod := pods.get("mine").(*metav1.PartialObjectMetadata)
	if pod.UID == "" || pod.Labels[v1alpha1.LabelHub] != "this-hub" || len(pod.OwnerReferences) != 1 || pod.Annotations != nil || pod.Kind != "Pod" {
		t.Errorf("kept of a pod: %+v", pod)
	}
	was := c.Secret("crawl", "used")
	if got, want := secrets.get("used").(*metav1.PartialObjectMetadata).ObjectMeta, (metav1.ObjectMeta{
		Namespace: "crawl", Name: "used", UID: was.UID, ResourceVersion: was.ResourceVersion,
	}); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("kept of a Secret: %+v", got)
	}
	held := podNamed("mine", "this-hub")
	held.Finalizers = []string{"example.com/held"}
	c.PutPod(held)
	if err := pods.cl.GetClient().Delete(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the deletion is seen", func() bool { return pods.get("mine").GetDeletionTimestamp() != nil }, func() any { return pods.get("mine") })
	cl, err := r.Get(t.Context(), "spoke")
	if err != nil {
		t.Fatal(err)
	}
	read := bare(corev1.SchemeGroupVersion.WithKind("Secret"))
	asked := countOf(c.Requests(), "GET /api/v1/namespaces/crawl/secrets/used")
	if err := cl.GetClient().Get(t.Context(), types.NamespacedName{Namespace: "crawl", Name: "used"}, read); err != nil || read.UID != was.UID {
		t.Errorf("read %+v, %v", read, err)
	}
	if countOf(c.Requests(), "GET /api/v1/namespaces/crawl/secrets/used") != asked {
		t.Error("metadata is not read from the cache")
	}
}

func TestAnInformerThatNobodyHasSyncedIsRefused(t *testing.T) {
	_, e, _ := connected(t, apiserver.Start(t).Cluster("c"))
	ctx, cl := e.last()
	for _, object := range []client.Object{
		&corev1.Pod{}, &corev1.Secret{}, &corev1.Namespace{},
		bare(v1alpha1.GroupVersion.WithKind("Proxy")), bare(corev1.SchemeGroupVersion.WithKind("Namespace")), bare(schema.GroupVersionKind{}),
	} {
		if _, err := cl.GetCache().GetInformer(ctx, object); err == nil {
			t.Errorf("%T of kind %s: it would hold all spokes up", object, object.GetObjectKind().GroupVersionKind())
		}
	}
}

func TestASpokeOfSomeNamespacesIsLookedAtInTheseAlone(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	r, e := startedWith(t, often)
	in := func(namespaces string) *spoke {
		return r.register("spoke", registration{secret: "spoke", kubeconfig: c.Kubeconfig(theToken), namespaces: &namespaces})
	}
	for _, namespace := range []string{"crawl", "other", "elsewhere"} {
		p, pod, secret := proxyNamed("proxy-"+namespace), podNamed("pod-"+namespace, "this-hub"), secretNamed("secret-"+namespace, "")
		p.Namespace, pod.Namespace, secret.Namespace = namespace, namespace, namespace
		c.Put(p)
		c.PutPod(pod)
		c.PutSecret(secret)
	}
	s := in("crawl,other")
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
	models := map[string]*model{}
	for _, k := range kinds {
		m, name := watching(t, e, k), strings.ToLower(k.object.GetObjectKind().GroupVersionKind().Kind)
		if name == "" {
			name = "proxy"
		}
		models[name] = m
		m.shows(t, k.plural, name+"-crawl "+name+"-other")
	}
	for _, request := range c.Requests() {
		for _, k := range kinds {
			if strings.HasSuffix(request, "/v1/"+k.resource) || strings.HasSuffix(request, "v1alpha1/proxies") && !strings.Contains(request, "namespaces") || strings.Contains(request, "elsewhere") {
				t.Fatalf("asked %s", request)
			}
		}
	}
	c.RemoveSecret("other", "secret-other")
	models["secret"].shows(t, "Secrets", "secret-crawl")
	s = in("crawl,elsewhere")
	until(t, s, "rotated", func(st State) bool { return st.Namespaces == "crawl, elsewhere" })
	for name, m := range models {
		eventually(t, "the other namespace's are shown", func() bool { return m.get(name+"-elsewhere") != nil }, func() any { return m.names() })
		if m.gone(name+"-other") > 0 && name != "secret" {
			t.Errorf("%s of a namespace that is not looked at is called gone", name)
		}
	}
	c.Put(proxyNamed("proxy-crawl"))
	c.RemovePod("crawl", "pod-crawl")
	eventually(t, "the pod's end is seen", func() bool { return models["pod"].get("pod-crawl") == nil }, func() any { return models["pod"].names() })
}

// TestARotationLosesNoEvent changes pods and Secrets all the time while the
// connection is exchanged, and holds what the handlers made of it against what is there.
func TestARotationLosesNoEvent(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	_, e, s := connected(t, c)
	models := map[*kind]*model{}
	for _, k := range kinds {
		models[k] = watching(t, e, k)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			name := fmt.Sprintf("x-%d", i)
			c.PutPod(podNamed(name, "this-hub"))
			c.PutSecret(secretNamed(name, ""))
			c.Put(proxyNamed(name))
			if i >= 20 { // twenty are there at any time
				gone := fmt.Sprintf("x-%d", i-20)
				c.RemovePod("crawl", gone)
				c.RemoveSecret("crawl", gone)
				c.Remove("crawl", gone)
			}
		}
	}()
	for i := range 6 {
		rotate(t, s, c.Kubeconfig(fmt.Sprintf("token-%d", i)))
	}
	close(stop)
	<-stopped
	var there []string
	for _, p := range c.Pods("") {
		there = append(there, p.Name)
	}
	slices.Sort(there)
	for k, m := range models {
		m.shows(t, k.plural, strings.Join(there, " "))
	}
}

func TestWhatGoesWhileNothingIsHeardIsToldAsGone(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	for _, name := range []string{"goes", "stays"} {
		c.PutPod(podNamed(name, "this-hub"))
		c.PutSecret(secretNamed(name, ""))
		c.Put(proxyNamed(name))
	}
	_, e, s := connected(t, c)
	models := map[*kind]*model{}
	for _, k := range kinds {
		models[k] = watching(t, e, k)
		models[k].shows(t, k.plural, "goes stays")
	}
	c.MuteWatches(true) // the connection hears of nothing, and the next one lists
	for _, path := range []string{apiserver.ProxiesPath, apiserver.PodsPath, apiserver.SecretsPath} {
		c.AnswerWatches(path, apiserver.Status(500, "InternalError", "no watch today"))
	}
	c.RemovePod("crawl", "goes")
	c.RemoveSecret("crawl", "goes")
	c.Remove("crawl", "goes")
	rotate(t, s, c.Kubeconfig("another-token"))
	for k, m := range models {
		m.shows(t, k.plural, "stays")
		if m.gone("goes") != 1 || m.gone("stays") != 0 {
			t.Errorf("%s: one that is gone was told of %d times, one that is there %d times", k.plural, m.gone("goes"), m.gone("stays"))
		}
	}
}

func TestAWatchThatFailsIsNamed(t *testing.T) {
	server := apiserver.Start(t)
	paths := map[string]*kind{apiserver.ProxiesPath: proxyKind, apiserver.PodsPath: podKind, apiserver.SecretsPath: secretKind}
	r, _ := startedWith(t, often)
	conns := map[*kind]*connection{}
	for path, k := range paths {
		c := server.Cluster(k.resource)
		s := put(r, label(k.plural), c.Kubeconfig(theToken))
		until(t, s, "connected", reason(v1alpha1.ReasonConnected))
		conns[k] = s.connected()
		c.AnswerWatches(path, apiserver.Status(403, "Forbidden", theToken+" may not"))
		c.CutWatches()
	}
	for path, k := range paths {
		s, conn := r.spokes[label(k.plural)], conns[k]
		eventually(t, "the broken watch is noticed", func() bool { return conn.lastTrouble() != nil }, func() any { return s.State() })
		eventually(t, "nothing is reconciled", func() bool { return !r.Answers(s.name) }, func() any { return s.State() })
		if _, message := explain(conn.lastTrouble()); !strings.Contains(message, "list and watch "+k.resource) || strings.Contains(message, theToken) {
			t.Errorf("%s: %s", k.plural, message)
		}
		server.Cluster(k.resource).AnswerWatches(path, apiserver.Answer{})
	}
	for _, k := range paths {
		s := r.spokes[label(k.plural)]
		eventually(t, "reconciled again", func() bool { return r.Answers(s.name) && s.State().Ready }, func() any { return s.State() })
	}
}

func TestASpokeWithTooManyObjectsIsToldSo(t *testing.T) {
	for _, k := range kinds {
		c := apiserver.Start(t).Cluster("c")
		add := map[*kind]func(string){
			proxyKind: func(name string) { c.Put(proxyNamed(name)) }, podKind: func(name string) { c.PutPod(podNamed(name, "this-hub")) },
			secretKind: func(name string) { c.PutSecret(secretNamed(name, "")) },
		}[k]
		for i := range 10 {
			add(fmt.Sprint("x-", i))
			c.PutPod(podNamed(fmt.Sprint("not-counted-", i), "that-hub"))
			c.PutSecret(secretNamed(fmt.Sprint("not-counted-", i), "helm.sh/release.v1"))
		}
		r, _ := startedWith(t, often)
		r.most = map[*kind]int{k: 10}
		s := put(r, "spoke", c.Kubeconfig(theToken))
		until(t, s, "connected", reason(v1alpha1.ReasonConnected))
		says := fmt.Sprintf("more than 10 %s, ", k.plural)
		tooMany := func(st State) bool { return !st.Ready && strings.Contains(st.Message, says) }
		add("one-more") // by the watch
		until(t, s, "told", tooMany)
		if k == proxyKind && !r.knows("x-0") {
			t.Error("what was known is gone")
		}
		c.Remove("crawl", "one-more")
		c.RemovePod("crawl", "one-more")
		c.RemoveSecret("crawl", "one-more")
		until(t, s, "connected again", reason(v1alpha1.ReasonConnected))
		add("one-more")
		r.deregister("spoke")
		s = put(r, "spoke", c.Kubeconfig(theToken)) // by the list
		until(t, s, "told", tooMany)
		if r.knows("x-0") {
			t.Error("a part of the list was taken")
		}
	}
}

func TestAnOlderSpokeOfSomeNamespacesProvesItselfAsWell(t *testing.T) {
	c := apiserver.Start(t).Cluster("x")
	c.Put(proxyNamed("a"))
	r, _ := startedWith(t, often)
	limited := func(reg *registration) { n := "crawl,other"; reg.namespaces = &n }
	young := aged(r, "young", 1, c.Kubeconfig(theToken), limited)
	until(t, young, "connected", reason(v1alpha1.ReasonConnected))
	old := aged(r, "old", 2, c.Kubeconfig(theToken), limited)
	until(t, old, "connected", reason(v1alpha1.ReasonConnected))
	until(t, young, "a duplicate", reason(v1alpha1.ReasonDuplicateCluster))
}

// TestNothingOfAnotherClusterIsTaken lets another cluster take the address while
// nobody looks: each list and watch asks first.
func TestNothingOfAnotherClusterIsTaken(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	r, e := started(t)
	s := put(r, "spoke", c.Kubeconfig(theToken))
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
	pods, secrets := watching(t, e, podKind), watching(t, e, secretKind)
	before := len(c.Requests())
	c.SetUID("another")
	c.PutPod(podNamed("theirs", "this-hub"))
	c.PutSecret(secretNamed("theirs", ""))
	const question = "GET " + apiserver.KubeSystemPath
	eventually(t, "asked for every kind", func() bool { return countOf(c.Requests()[before:], question) > 2*len(kinds) }, func() any { return c.Requests()[before:] })
	for _, request := range c.Requests()[before:] {
		if request != question {
			t.Errorf("another cluster was asked %s", request)
		}
	}
	if pods.names() != "" || secrets.names() != "" {
		t.Errorf("taken from another cluster: %s %s", pods.names(), secrets.names())
	}
}
