package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

func TestACacheSeesWhatIsThereAndEveryChange(t *testing.T) {
	c := Start(t).Cluster("eu")
	c.Put(proxy("a"))
	k := synced(t, c)
	if got := names(t, k); got != "map[a:3128]" {
		t.Errorf("synced with %s", got)
	}
	c.Put(proxy("b"))
	edited := proxy("a")
	edited.Spec.Endpoint.Port = 8080
	c.Put(edited)
	until(t, "both seen", func() bool { return names(t, k) == "map[a:8080 b:3128]" })
	c.Remove("crawl", "a")
	c.Remove("crawl", "never was")
	until(t, "removal seen", func() bool { return names(t, k) == "map[b:3128]" })
	if n := c.Watches(); n != 1 {
		t.Errorf("%d watches", n)
	}
	if got := c.Requests(); !slices.Equal(got, []string{"WATCH " + ProxiesPath}) {
		t.Errorf("asked %v", got)
	}
	if got := c.Tokens(); !slices.Equal(got, []string{"the-token"}) {
		t.Errorf("tokens %v", got)
	}
}

func TestACacheOutlivesWatchesThatAreCut(t *testing.T) {
	c := Start(t).Cluster("eu")
	c.Put(proxy("a"))
	k := synced(t, c)
	c.CutWatches()
	c.Remove("crawl", "a")
	c.Put(proxy("b"))
	until(t, "what happened meanwhile", func() bool { return names(t, k) == "map[b:3128]" })
	if n := c.Watches(); n != 1 {
		t.Errorf("%d watches", n)
	}
}

func TestAWatchThatIsCutSaysNoMore(t *testing.T) {
	c := Start(t).Cluster("eu")
	round, err := c.opened(c.proxies)
	if err != nil {
		t.Fatal(err)
	}
	wa := watcher{resource: c.proxies, position: 1, round: round}
	c.CutWatches()
	c.Put(proxy("a"))
	if lines, _, _ := c.next(&wa); len(lines) != 0 {
		t.Errorf("it says %s", lines)
	}
	c.closed(round)
	if n := c.Watches(); n != 0 {
		t.Errorf("%d watches", n)
	}
}

func TestACacheWithMutedWatchesNeitherSyncsNorHears(t *testing.T) {
	c := Start(t).Cluster("eu")
	c.Put(proxy("a"))
	c.MuteWatches(true)
	k := running(t, c)
	until(t, "watch accepted", func() bool { return c.Watches() == 1 })
	if k.WaitForCacheSync(brief(t)) {
		t.Fatal("synced without a word")
	}
	c.MuteWatches(false)
	until(t, "what was held back", func() bool { return names(t, k) == "map[a:3128]" })
	c.MuteWatches(true)
	c.Put(proxy("b"))
	if got := names(t, k); got != "map[a:3128]" {
		t.Errorf("heard of %s", got)
	}
	c.MuteWatches(false)
	until(t, "what was held back later", func() bool { return names(t, k) == "map[a:3128 b:3128]" })
}

func TestAnotherClusterUnderTheSameAddress(t *testing.T) {
	c := Start(t).Cluster("eu")
	c.Put(proxy("a"))
	k, cl := synced(t, c), direct(t, c)
	if uid := systemUID(t, cl); uid != "uid-eu" {
		t.Errorf("UID %s", uid)
	}
	c.Unavailable(true)
	c.SetUID("other")
	c.Remove("crawl", "a")
	c.Put(proxy("z"))
	c.Unavailable(false)
	if uid := systemUID(t, cl); uid != "other" {
		t.Errorf("UID %s", uid)
	}
	until(t, "the other's Proxies", func() bool { return names(t, k) == "map[z:3128]" })
}

func TestACacheComesBackWithTheCRD(t *testing.T) {
	c := Start(t).Cluster("eu")
	c.Put(proxy("a"))
	k, cl := synced(t, c), direct(t, c)
	c.SetCRD("", false)
	if n := c.Watches(); n != 0 {
		t.Errorf("%d watches are open", n)
	}
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(crdKind)
	if err := cl.Get(t.Context(), client.ObjectKey{Name: v1alpha1.ProxyCRDName}, crd); !apierrors.IsNotFound(err) {
		t.Errorf("the CRD is there: %v", err)
	}
	if err := cl.List(t.Context(), &v1alpha1.ProxyList{}); !apierrors.IsNotFound(err) {
		t.Errorf("Proxies can be listed: %v", err)
	}
	if err := cl.Get(t.Context(), client.ObjectKey{Namespace: "crawl", Name: "a"}, &v1alpha1.Proxy{}); !apierrors.IsNotFound(err) {
		t.Errorf("a Proxy is there: %v", err)
	}
	if _, err := cl.Watch(t.Context(), &v1alpha1.ProxyList{}); !apierrors.IsNotFound(err) {
		t.Errorf("Proxies can be watched: %v", err)
	}
	c.SetCRD("7", true)
	if err := cl.Get(t.Context(), client.ObjectKey{Name: v1alpha1.ProxyCRDName}, crd); err != nil || crd.Annotations[v1alpha1.AnnotationSchemaVersion] != "7" {
		t.Errorf("schema version %q, %v", crd.Annotations[v1alpha1.AnnotationSchemaVersion], err)
	}
	c.Put(proxy("b"))
	until(t, "the cache goes on", func() bool { return names(t, k) == "map[a:3128 b:3128]" })
}

func TestACacheOutlivesAServerThatIsAway(t *testing.T) {
	c := Start(t).Cluster("eu")
	k, cl := synced(t, c), direct(t, c)
	c.Unavailable(true)
	if n := c.Watches(); n != 0 {
		t.Errorf("%d watches are open", n)
	}
	if err := cl.List(brief(t), &v1alpha1.ProxyList{}); err == nil {
		t.Error("answers")
	}
	c.Put(proxy("a"))
	c.Unavailable(false)
	until(t, "the cache goes on", func() bool { return names(t, k) == "map[a:3128]" })
}

// watchFrom watches the Proxies of a namespace, or of all.
func watchFrom(t *testing.T, c *Cluster, namespace, resourceVersion string) watch.Interface {
	t.Helper()
	w, err := direct(t, c).Watch(t.Context(), &v1alpha1.ProxyList{}, client.InNamespace(namespace),
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: resourceVersion}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

// heard are the next n events of a watch.
func heard(t *testing.T, w watch.Interface, n int) []string {
	t.Helper()
	var all []string
	for range n {
		select {
		case e, open := <-w.ResultChan():
			switch o := e.Object.(type) {
			case *v1alpha1.Proxy:
				all = append(all, string(e.Type)+" "+o.Name)
			case *metav1.Status:
				all = append(all, fmt.Sprint(e.Type, " ", o.Code, " ", o.Reason))
			default:
				t.Fatalf("open %t: %v", open, e)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("heard %v and no more", all)
		}
	}
	return all
}

func TestAWatchResumesWhereItWas(t *testing.T) {
	c := Start(t).Cluster("eu")
	c.Put(proxy("a"))
	var list v1alpha1.ProxyList
	if err := direct(t, c).List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	from := list.ResourceVersion
	elsewhere := proxy("x")
	elsewhere.Namespace = "other"
	c.Put(elsewhere)
	c.Put(proxy("b"))
	c.Put(proxy("a"))
	successor := proxy("b")
	successor.UID = "another"
	c.Put(successor)
	later := []string{"ADDED b", "MODIFIED a", "DELETED b", "ADDED b"}
	if got := heard(t, watchFrom(t, c, "crawl", from), 4); !slices.Equal(got, later) {
		t.Errorf("heard %v", got)
	}
	if got := heard(t, watchFrom(t, c, "", from), 5); got[0] != "ADDED x" || !slices.Equal(got[1:], later) {
		t.Errorf("heard %v", got)
	}
	if got := heard(t, watchFrom(t, c, "crawl", ""), 2); !slices.Equal(got, []string{"ADDED a", "ADDED b"}) {
		t.Errorf("heard %v", got)
	}
	for range historyLimit {
		c.Put(proxy("a"))
	}
	tooLate := []string{"ERROR 410 Expired"}
	if got := heard(t, watchFrom(t, c, "crawl", from), 1); !slices.Equal(got, tooLate) {
		t.Errorf("heard %v", got)
	}
	from = c.Get("crawl", "a").ResourceVersion
	c.SetUID("other")
	if got := heard(t, watchFrom(t, c, "crawl", from), 1); !slices.Equal(got, tooLate) {
		t.Errorf("heard %v", got)
	}
}

func TestAHundredClustersWithACacheEach(t *testing.T) {
	s := Start(t)
	began := time.Now()
	caches := map[*Cluster]cache.Cache{}
	for i := range 100 {
		c := s.Cluster(fmt.Sprintf("spoke-%d", i))
		c.Put(proxy("early"))
		caches[c] = running(t, c)
	}
	for c, k := range caches {
		if !k.WaitForCacheSync(t.Context()) {
			t.Fatalf("%s has not synced", c.URL())
		}
		c.Put(proxy("late"))
	}
	for c, k := range caches {
		until(t, "both seen", func() bool { return names(t, k) == "map[early:3128 late:3128]" })
		if n := c.Watches(); n != 1 {
			t.Errorf("%s has %d watches", c.URL(), n)
		}
	}
	t.Logf("%d clusters took %s", len(caches), time.Since(began).Round(time.Millisecond))
}

func TestTheEndOfATestWaitsForNobody(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{}, 2)
	var began time.Time
	t.Run("with requests under way", func(t *testing.T) {
		c := Start(t).Cluster("eu")
		c.Answer(VersionPath, Answer{Hang: true})
		for _, path := range []string{VersionPath, ProxiesPath + "?watch=true"} {
			cl, err := rest.HTTPClientFor(configTo(t, c))
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				for ctx.Err() == nil { // comes back at once, even while the server ends
					request(ctx, cl, c.URL()+path)
				}
				ended <- struct{}{}
			}()
		}
		until(t, "both under way", func() bool { return len(c.Requests()) == 2 && c.Watches() == 1 })
		began = time.Now()
	})
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("took %s", took)
	}
	cancel()
	<-ended
	<-ended
}

// request gets what there is.
func request(ctx context.Context, cl *http.Client, url string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		panic(err)
	}
	if res, err := cl.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
}
