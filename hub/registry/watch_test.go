package registry

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elazarl/goproxy"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/testkit/apiserver"
)

// often is an interval of contacts that a test can wait for.
const often = 50 * time.Millisecond

func proxyNamed(name string) *v1alpha1.Proxy {
	return &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "crawl", Name: name},
		Spec:       v1alpha1.ProxySpec{Mode: v1alpha1.ModeExternal, Endpoint: &v1alpha1.Endpoint{Host: "192.0.2.1", Port: 3128}},
	}
}

func (r *Registry) knows(name string) bool {
	return r.Fleet.Get(fleet.Key{Cluster: "spoke", Namespace: "crawl", Name: name}) != nil
}

// connected is a registry with one spoke, which is connected to c.
func connected(t *testing.T, c *apiserver.Cluster) (*Registry, *engagements, *spoke) {
	t.Helper()
	r, e := startedWith(t, often)
	s := put(r, "spoke", c.Kubeconfig(theToken))
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
	return r, e, s
}

func TestWhatGoesWrongWithAConnectedSpokeIsFoundAndComesBackByItself(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	c.Put(proxyNamed("a"))
	r, _, s := connected(t, c)
	for _, fault := range []struct {
		reason, says string
		begin, end   func()
	}{
		{v1alpha1.ReasonForbidden, "create pods", func() { c.Deny("create", "pods") }, func() { c.Allow("create", "pods") }},
		{v1alpha1.ReasonCRDOutdated, "schema version 0", func() { c.SetCRD("0", true) }, func() { c.SetCRD(strconv.Itoa(v1alpha1.SchemaVersion), true) }},
		{v1alpha1.ReasonCRDMissing, "config/crd", func() { c.Answer(apiserver.CRDPath, apiserver.Status(404, "NotFound", "x")) },
			func() { c.Answer(apiserver.CRDPath, apiserver.Answer{}) }},
		{v1alpha1.ReasonUnauthorized, "credential", func() { c.Answer(apiserver.KubeSystemPath, apiserver.Status(401, "Unauthorized", "x")) },
			func() { c.Answer(apiserver.KubeSystemPath, apiserver.Answer{}) }},
		{v1alpha1.ReasonIdentityChanged, "UID another instead of uid-c", func() { c.SetUID("another") }, func() { c.SetUID("uid-c") }},
		{v1alpha1.ReasonUnreachable, "", func() { c.Unavailable(true) }, func() { c.Unavailable(false) }},
	} {
		fault.begin()
		st := until(t, s, fault.reason, reason(fault.reason))
		if st.Ready || !strings.Contains(st.Message, fault.says) || st.Since.IsZero() || r.Answers("spoke") {
			t.Errorf("%s: %+v, reconciled: %v", fault.reason, st, r.Answers("spoke"))
		}
		if !r.knows("a") {
			t.Errorf("%s took the Proxies away", fault.reason)
		}
		fault.end()
		until(t, s, "back after "+fault.reason, reason(v1alpha1.ReasonConnected))
		eventually(t, "reconciled again after "+fault.reason, func() bool { return r.Answers("spoke") }, func() any { return s.State() })
	}
}

func TestWhatHappensWhileNobodyWatchesIsSeenAfterwards(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	c.Put(proxyNamed("stays"))
	c.Put(proxyNamed("goes"))
	r, _, _ := connected(t, c)
	c.Unavailable(true)
	eventually(t, "the broken watch is noticed", func() bool { return !r.Answers("spoke") }, func() any { return nil })
	c.Remove("crawl", "goes")
	c.Put(proxyNamed("comes"))
	c.Unavailable(false)
	eventually(t, "the fleet is what the spoke is", func() bool { return r.knows("comes") && !r.knows("goes") && r.knows("stays") },
		func() any { return len(r.Fleet.All()) })
}

func TestAWatchThatIsCutIsTakenUpAgainWithoutARenewal(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	r, _, s := connected(t, c)
	first := s.connected()
	for i := range 3 { // as a load balancer does with what is idle
		eventually(t, "watched", func() bool { return c.Watches() == len(kinds) }, func() any { return c.Watches() })
		c.CutWatches()
		name := fmt.Sprint("p-", i)
		c.Put(proxyNamed(name))
		eventually(t, "the next one is seen", func() bool { return r.knows(name) }, func() any { return s.State() })
	}
	if s.connected() != first {
		t.Error("all was listed anew for a watch that could go on")
	}
}

func TestNothingGoesToASpokeThatIsDeregistered(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	r, _, _ := connected(t, c)
	cl, err := r.Get(t.Context(), "spoke")
	if err != nil {
		t.Fatal(err)
	}
	s := r.spokes["spoke"]
	rotate(t, s, c.Kubeconfig("another-token")) // the pass is on the connection before
	r.deregister("spoke")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "crawl", Name: "late"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}}}
	if err := cl.GetClient().Create(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "not registered any more") {
		t.Errorf("a pass under way could still create a pod: %v", err)
	}
	for _, request := range c.Requests() {
		if strings.HasPrefix(request, "POST /api/v1/namespaces/crawl/pods") {
			t.Error("the pod was asked for")
		}
	}
}

func anybody(string) error { return nil }

func TestFailedAttemptsLeaveNothingBehind(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	o := options(t)
	all, some := registration{kubeconfig: c.Kubeconfig(theToken)}, "crawl,other"
	limited := all
	limited.namespaces = &some
	var creds [2]*credential
	for i, reg := range []registration{all, limited} {
		var err error
		if creds[i], err = vet("c", reg, o.Allowed); err != nil {
			t.Fatal(err)
		}
	}
	attempt := func(i int) {
		try := func(bound context.Context) (*connection, error) {
			return connect(t.Context(), bound, creds[i%2], o, o.Log, nil, anybody)
		}
		c.Deny("create", "pods")
		if _, err := try(t.Context()); err == nil {
			t.Fatal("connected without the rights")
		}
		c.Allow("create", "pods")
		c.MuteWatches(true)
		bound, cancel := context.WithCancel(t.Context())
		go func() {
			defer cancel()
			for c.Watches() == 0 && t.Context().Err() == nil {
				runtime.Gosched()
			}
		}()
		if _, err := try(bound); err == nil {
			t.Fatal("connected without a list")
		}
		c.MuteWatches(false)
		conn, err := try(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conn.close()
		eventually(t, "nothing is watched", func() bool { return c.Watches() == 0 }, func() any { return c.Watches() })
	}
	for i := range 4 {
		attempt(i)
	}
	before := goroutines()
	for i := range 14 {
		attempt(i)
	}
	eventually(t, "as before", func() bool { return goroutines() <= before+5 },
		func() any { return fmt.Sprintf("%d goroutines, %d before", goroutines(), before) })
}

func TestABlindConnectionIsNotCalledConnected(t *testing.T) {
	for name, blind := range map[string]func(*apiserver.Cluster){
		"lists fail": func(c *apiserver.Cluster) {
			c.Answer(apiserver.ProxiesPath, apiserver.Status(500, "InternalError", "no list today"))
		},
		"lists forbidden": func(c *apiserver.Cluster) {
			c.Answer(apiserver.ProxiesPath, apiserver.Status(403, "Forbidden", "no list today"))
		},
	} {
		c := apiserver.Start(t).Cluster("c")
		c.Put(proxyNamed("a"))
		r, _ := startedWith(t, time.Second) // the watch is lost before the contacts find out
		s := put(r, "spoke", c.Kubeconfig(theToken))
		until(t, s, "connected", reason(v1alpha1.ReasonConnected))
		c.Unavailable(true)
		eventually(t, "the broken watch is noticed", func() bool { return !r.Answers("spoke") }, func() any { return s.State() })
		blind(c)
		c.Unavailable(false)
		st := until(t, s, "not ready while "+name, func(st State) bool { return !st.Ready && strings.Contains(st.Message, "list proxies") })
		if !r.knows("a") {
			t.Errorf("%s: %+v, its Proxy known: %v", name, st, r.knows("a"))
		}
		c.Answer(apiserver.ProxiesPath, apiserver.Answer{})
		until(t, s, "connected again", reason(v1alpha1.ReasonConnected))
	}
}

func TestNothingGoesToAClusterThatHasTakenTheAddress(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	r, _, s := connected(t, c)
	cl, err := r.Get(t.Context(), "spoke")
	if err != nil {
		t.Fatal(err)
	}
	c.SetUID("another")
	until(t, s, "another", reason(v1alpha1.ReasonIdentityChanged))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "crawl", Name: "astray"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}}}
	if err := cl.GetClient().Create(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("a pass under way could create a pod there: %v", err)
	}
}

func TestWhatAServerCallsItselfIsNotTakenForAnything(t *testing.T) {
	for name, answer := range map[string]struct{ path, body string }{
		"a version with the token": {apiserver.VersionPath, `{"gitVersion":"v1.` + theToken + `"}`},
		"an endless version":       {apiserver.VersionPath, `{"gitVersion":"v` + strings.Repeat("1", 1<<20) + `"}`},
		"a version with markup":    {apiserver.VersionPath, `{"gitVersion":"v1 <b>"}`},
		"an endless UID":           {apiserver.KubeSystemPath, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"uid":"` + strings.Repeat("1", 64) + `"}}`},
		"a UID that is none":       {apiserver.KubeSystemPath, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"uid":"a/b"}}`},
	} {
		c := apiserver.Start(t).Cluster("c")
		c.Answer(answer.path, apiserver.Answer{Body: answer.body})
		r, _ := startedWith(t, often)
		st := until(t, put(r, "spoke", c.Kubeconfig(theToken)), name, reason(v1alpha1.ReasonUnreachable))
		if !strings.Contains(st.Message, "does not answer as a Kubernetes API server") || st.Version != "" || strings.Contains(st.Message, theToken) {
			t.Errorf("%s: %+v", name, st)
		}
	}
}

func TestProxiesThatAreTooManyWhileTheyAreTakenOverAreTold(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	r, e := startedWith(t, often)
	r.most = map[*kind]int{proxyKind: 10}
	e.during = func() {
		for i := range 100 {
			c.Put(proxyNamed(fmt.Sprint("p-", i)))
		}
	}
	s := put(r, "spoke", c.Kubeconfig(theToken))
	until(t, s, "told", func(st State) bool { return strings.Contains(st.Message, "more than 10 Proxies") })
}

func TestACorrectedKubeconfigIsTriedAtOnce(t *testing.T) {
	server := apiserver.Start(t)
	slow := server.Cluster("slow")
	slow.MuteWatches(true)
	r, _ := started(t)
	s := put(r, "spoke", slow.Kubeconfig(theToken))
	eventually(t, "the watch is open", func() bool { return slow.Watches() > 0 }, func() any { return s.State() })
	began := time.Now()
	put(r, "spoke", server.Cluster("good").Kubeconfig(theToken))
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
	if took := time.Since(began); took > syncTimeout/2 {
		t.Errorf("a good kubeconfig in the place of one that hangs is connected after %s", took)
	}
}

func TestAFloodIsCutOff(t *testing.T) {
	body := &bounded{ReadCloser: flood{}, most: 1 << 20, rate: 1 << 20, began: time.Now()}
	read, buffer := 0, make([]byte, 64<<10)
	for {
		n, err := body.Read(buffer)
		if read += n; err != nil {
			break
		}
		if read > 1<<30 {
			t.Fatal("it goes on")
		}
	}
	if read < 1<<20 {
		t.Errorf("cut off after %d bytes", read)
	}
}

type flood struct{}

func (flood) Read(p []byte) (int, error) { return len(p), nil }
func (flood) Close() error               { return nil }

func TestAnotherHubsMarksAreTold(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	marked := func(name, hub string) *v1alpha1.Proxy {
		p := proxyNamed(name)
		p.Annotations = map[string]string{v1alpha1.AnnotationHub: hub}
		return p
	}
	c.Put(marked("mine", "this-hub"))
	c.Put(marked("theirs", "that-hub"))
	r, _, s := connected(t, c)
	until(t, s, "contested", func(st State) bool { return st.Others == "that-hub" })
	if !r.knows("mine") || r.knows("theirs") {
		t.Error("the fleet has other Proxies than this hub's")
	}
	c.Put(marked("third", "not an id!"))
	until(t, s, "contested by two", func(st State) bool { return st.Others == "one with an id that is none, that-hub" })
	c.Remove("crawl", "third")
	c.Put(marked("theirs", "this-hub"))
	until(t, s, "not contested", func(st State) bool { return st.Others == "" })
	eventually(t, "taken over", func() bool { return r.knows("theirs") }, func() any { return nil })
}

func TestAnotherSecretOfTheSameNameIsAnotherSpoke(t *testing.T) {
	server := apiserver.Start(t)
	server.Cluster("one").Put(proxyNamed("a"))
	r, _ := startedWith(t, often)
	s := r.register("spoke", registration{secret: "1", kubeconfig: server.Cluster("one").Kubeconfig(theToken)})
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
	s = r.register("spoke", registration{secret: "2", kubeconfig: server.Cluster("two").Kubeconfig(theToken)})
	if r.knows("a") {
		t.Error("the Proxies of the spoke before it are still there")
	}
	if st := until(t, s, "connected", reason(v1alpha1.ReasonConnected)); st.ClusterUID != "uid-two" {
		t.Errorf("%+v", st)
	}
}

// TestSpokesAreReachedThroughTheHubsProxy runs itself again, since Go reads
// HTTPS_PROXY once per process.
func TestSpokesAreReachedThroughTheHubsProxy(t *testing.T) {
	if os.Getenv("TEST_SPOKE_SERVER") != "" {
		r, _ := started(t)
		s := put(r, "spoke", kubeconfigTo(t, os.Getenv("TEST_SPOKE_SERVER"), []byte(os.Getenv("TEST_SPOKE_CA"))))
		until(t, s, "connected", reason(v1alpha1.ReasonConnected))
		return
	}
	server := apiserver.Start(t)
	url := server.Cluster("c").URL()
	address := strings.TrimPrefix(strings.SplitAfterN(url, "/", 4)[2], "https://")
	address = strings.TrimSuffix(address, "/")
	var through atomic.Int64
	forward := goproxy.NewProxyHttpServer()
	forward.OnRequest().HandleConnectFunc(func(_ string, _ *goproxy.ProxyCtx) (*goproxy.ConnectAction, string) {
		through.Add(1)
		return goproxy.OkConnect, address // whatever example.com would be
	})
	proxy := httptest.NewServer(forward)
	t.Cleanup(proxy.Close)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSpokesAreReachedThroughTheHubsProxy$", "-test.v")
	// The stand-in's certificate is for example.com; loopback never goes through a proxy.
	cmd.Env = append(os.Environ(), "HTTPS_PROXY="+proxy.URL, "TEST_SPOKE_CA="+string(server.CAPEM()),
		"TEST_SPOKE_SERVER="+strings.Replace(url, address, "example.com:6443", 1))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if through.Load() == 0 {
		t.Error("the proxy was not asked")
	}
}
