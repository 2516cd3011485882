package app_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/elazarl/goproxy"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/cmd/hub/app"
	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
	"github.com/proxyfleet/proxy-operator/test/controlplane"
)

const (
	system = "proxy-operator-system"
	ns     = "crawl"
	token  = "integration-token"
	// patience is a generous deadline for what takes seconds.
	patience = 60 * time.Second
)

// world is a running hub with its cluster and spokes, as an admin sets them up:
// the hub holds the generated roles and nothing more.
type world struct {
	root   *testing.T // of the whole world
	t      *testing.T // of the step under way
	hub    client.WithWatch
	plane  *controlplane.ControlPlane // of the hub's own cluster
	spokes map[string]*spokeWorld
	site   *origin.Server
	names  *names             // what a hub that starts resolves; nil: what the system does
	adjust func(*app.Options) // what else is different about a hub that starts; nil: nothing
	runningHub
}

// spokeWorld is one spoke with its admin's client.
type spokeWorld struct {
	client.WithWatch
	name  string
	plane *controlplane.ControlPlane
	// kubeconfig is what the hub is given.
	kubeconfig []byte
}

func newClient(t *testing.T, cfg *rest.Config) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// newWorld starts a hub cluster and the spokes eu and us, prepares them from
// config/, and starts the hub.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := bareWorld(t)
	for _, s := range w.spokes {
		s.prepare(t, "crd/crawl.proxyfleet.dev_proxies.yaml")
	}
	w.startHub("--zap-log-level", "info")
	return w
}

// bareWorld starts the same clusters, with the spokes prepared but for their
// CRD, and no hub.
func bareWorld(t *testing.T) *world {
	t.Helper()
	planes := controlplane.StartForTest(t, 3)
	w := &world{root: t, t: t, plane: planes[0], site: origin.Start(t), spokes: map[string]*spokeWorld{}}
	if err := planes[0].Apply(t.Context(), config("crd"), config("rbac/hub")); err != nil {
		t.Fatal(err)
	}
	w.hub = newClient(t, planes[0].Admin())
	for i, name := range []string{"eu", "us"} {
		s := &spokeWorld{WithWatch: newClient(t, planes[i+1].Admin()), name: name, plane: planes[i+1]}
		s.prepare(t, "rbac/spoke")
		s.kubeconfig = s.hubKubeconfig(t)
		w.create(s, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
		w.spokes[name] = s
	}
	return w
}

func config(path string) string { return filepath.Join("..", "..", "..", "config", path) }

// prepare applies what is below config/ to the spoke.
func (s *spokeWorld) prepare(t *testing.T, paths ...string) {
	t.Helper()
	for i := range paths {
		paths[i] = config(paths[i])
	}
	if err := s.plane.Apply(t.Context(), paths...); err != nil {
		t.Fatal(err)
	}
}

// hubKubeconfig holds a fresh token of the ServiceAccount that config/rbac/spoke makes.
func (s *spokeWorld) hubKubeconfig(t *testing.T) []byte {
	t.Helper()
	cfg := must[*rest.Config](t)(s.plane.ServiceAccount(t.Context(), system, "proxy-operator-hub"))
	return must[[]byte](t)(controlplane.Kubeconfig(controlplane.Context{Name: s.name, Config: cfg}))
}

// register makes the Secret that an admin would.
func (w *world) register(name string, kubeconfig []byte) {
	w.t.Helper()
	w.create(w.hub, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: system, Name: name, Labels: map[string]string{v1alpha1.LabelKubeconfig: "true"},
			Annotations: map[string]string{v1alpha1.AnnotationPodNetwork: v1alpha1.PodNetworkRoutable},
		},
		Data: map[string][]byte{v1alpha1.KubeconfigKey: kubeconfig},
	})
}

func (w *world) create(c client.Client, o client.Object) {
	w.t.Helper()
	if err := c.Create(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

// eventually tries until check is content. Its last complaint is shown.
func (w *world) eventually(what string, check func() error) {
	w.t.Helper()
	eventually(w.t, what, check)
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	within(t, patience, what, check)
}

func within(t *testing.T, patience time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(patience / 1200)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s: not within %s: %v", what, patience, err)
		case <-tick.C:
		}
	}
}

// get reads o anew.
func (w *world) get(c client.Client, o client.Object) error {
	return c.Get(w.t.Context(), client.ObjectKeyFromObject(o), o)
}

// condition is status/reason of a Proxy's or Spoke's condition.
func condition(conditions []metav1.Condition, kind string) string {
	for _, c := range conditions {
		if c.Type == kind {
			return string(c.Status) + "/" + c.Reason + ": " + c.Message
		}
	}
	return "absent"
}

// spokeShows waits until the Spoke's condition begins with want and contains text.
func (w *world) spokeShows(name, kind, want, text string) *v1alpha1.Spoke {
	w.t.Helper()
	spoke := &v1alpha1.Spoke{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}}
	w.eventually("spoke "+name+" shows "+want, func() error {
		if err := w.get(w.hub, spoke); err != nil {
			return err
		}
		if got := condition(spoke.Status.Conditions, kind); !strings.HasPrefix(got, want) || !strings.Contains(got, text) {
			return fmt.Errorf("%s is %s", kind, got)
		}
		return nil
	})
	return spoke
}

// proxyShows waits until the Proxy is in this phase.
func (w *world) proxyShows(s *spokeWorld, p *v1alpha1.Proxy, phase v1alpha1.Phase) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("proxy %s is %s", p.Name, phase), func() error {
		if err := w.get(s, p); err != nil {
			return err
		}
		if p.Status.Phase != phase {
			return fmt.Errorf("it is %s: %s; %s", p.Status.Phase,
				condition(p.Status.Conditions, v1alpha1.ConditionProvisioned), condition(p.Status.Conditions, v1alpha1.ConditionHealthy))
		}
		return nil
	})
}

// forwardProxy runs a real forward proxy until the world ends and returns its
// port on 127.0.0.1.
func (w *world) forwardProxy() int32 {
	t := w.t
	t.Helper()
	s := httptest.NewServer(goproxy.NewProxyHttpServer())
	w.root.Cleanup(s.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(s.URL, "http://"), ":")
	return int32(must[int](t)(strconv.Atoi(port)))
}

// forwardProxies runs a real forward proxy on one port of as many addresses as are
// asked for, until the world ends. One that is taken is answered by whoever has it.
func (w *world) forwardProxies() (port int32, at func(address string)) {
	w.t.Helper()
	port = w.forwardProxy()
	server := &http.Server{Handler: goproxy.NewProxyHttpServer(), ReadHeaderTimeout: patience}
	w.root.Cleanup(func() { _ = server.Close() })
	return port, func(address string) {
		if l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(int(port)))); err == nil {
			go func() { _ = server.Serve(l) }()
		}
	}
}

// managed builds a Managed Proxy that listens on port.
func managed(name string, port int32, edits ...func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	p := &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: v1alpha1.ProxySpec{
			Provider: v1alpha1.ProviderKubernetes, Port: port,
			Attributes:  map[string]v1alpha1.AttributeValue{"test": v1alpha1.AttributeValue(name)},
			HealthCheck: v1alpha1.HealthCheck{IntervalSeconds: 1, TimeoutSeconds: 1, FailureThreshold: 2},
		},
	}
	for _, edit := range edits {
		edit(p)
	}
	return p
}

// podOf waits for a pod of the Proxy other than the one with UID not.
func (w *world) podOf(s *spokeWorld, p *v1alpha1.Proxy, not string) *corev1.Pod {
	w.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "proxy-" + string(p.UID)}}
	w.eventually("a pod for "+p.Name, func() error {
		if err := w.get(s, pod); err != nil {
			return err
		}
		if string(pod.UID) == not {
			return errors.New("still the old one")
		}
		return nil
	})
	return pod
}

// bind gives the pod a node, so that deleting it is graceful, as on a real one.
func (w *world) bind(s *spokeWorld, pod *corev1.Pod) {
	w.t.Helper()
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}
	if err := s.SubResource("binding").Create(w.t.Context(), pod, binding); err != nil {
		w.t.Fatal(err)
	}
}

// run says what a kubelet would say of a pod whose container runs.
func (w *world) run(s *spokeWorld, pod *corev1.Pod) {
	w.t.Helper()
	base := pod.DeepCopy()
	runs(pod)
	if err := s.Status().Patch(w.t.Context(), pod, client.MergeFrom(base)); err != nil {
		w.t.Fatal(err)
	}
}

// vanish finishes a graceful deletion, as a kubelet does.
func (w *world) vanish(s *spokeWorld, pod *corev1.Pod) {
	w.t.Helper()
	if err := s.Delete(w.t.Context(), pod, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
}

// call makes one API request and decodes a JSON answer into out, if out is not nil.
func (w *world) call(method, path, body string, out any) int {
	w.t.Helper()
	req := must[*http.Request](w.t)(http.NewRequestWithContext(w.t.Context(), method, w.api+path, strings.NewReader(body)))
	req.Header.Set("Authorization", "Bearer "+token)
	res := must[*http.Response](w.t)(http.DefaultClient.Do(req))
	defer res.Body.Close()
	content := must[[]byte](w.t)(io.ReadAll(res.Body))
	if out != nil {
		if err := json.Unmarshal(content, out); err != nil {
			w.t.Fatalf("%s %s answered %d with %q: %v", method, path, res.StatusCode, content, err)
		}
	}
	return res.StatusCode
}

// listed says which Proxies GET /v1/proxies shows, as cluster/name.
func (w *world) listed(query string) map[string]proxyItem {
	w.t.Helper()
	return must[map[string]proxyItem](w.t)(w.list(query))
}

// list is listed, from any goroutine.
func (w *world) list(query string) (map[string]proxyItem, error) {
	req, err := http.NewRequest(http.MethodGet, w.api+"/v1/proxies"+query, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var list struct{ Proxies []proxyItem }
	if err := json.NewDecoder(res.Body).Decode(&list); err != nil || res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET /v1/proxies answered %d (%w)", res.StatusCode, err)
	}
	found := map[string]proxyItem{}
	for _, p := range list.Proxies {
		found[p.Cluster+"/"+p.Name] = p
	}
	return found, nil
}

type proxyItem struct {
	Cluster, Namespace, Name, Host, URL, Phase string
	Port                                       int
	Healthy                                    bool
	ActiveLeases                               int
	Attributes                                 map[string]string
}

type leaseReply struct {
	LeaseID, Error string
	Proxy          proxyItem
	Considered     int
	Unhealthy      int
}

// step is a part of a test that builds on the parts before it.
type step[W any] struct {
	name string
	run  func(*testing.T, W)
}

// run runs the steps until one fails.
func run[W any](w *world, with W, steps []step[W]) {
	for _, s := range steps {
		if !w.root.Run(s.name, func(t *testing.T) {
			w.t = t
			s.run(t, with)
			w.t = w.root
		}) {
			return
		}
	}
}
