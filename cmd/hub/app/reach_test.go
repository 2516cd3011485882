package app_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/elazarl/goproxy"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// TestReach runs the whole hub against real API servers, with proxies that write
// down who has called them and with what.
func TestReach(t *testing.T) {
	w := bareWorld(t)
	for _, s := range w.spokes {
		s.prepare(t, "crd/crawl.proxyfleet.dev_proxies.yaml")
	}
	w.names = &names{of: map[string][]string{}, asked: map[string]int{}}
	w.startHub()
	run(w, w, []step[*world]{
		{"two spokes are registered", bothSpokes},
		{"of two overlapping pod networks only the one that is said to be routable is dialled", overlappingNetworks},
		{"a name that moves is followed, and asked for once a probe", movingName},
		{"addresses that no proxy can have are told, and nobody is dialled there", forbiddenEndpoints},
	})
}

// names is a resolver that the test writes.
type names struct {
	mu    sync.Mutex
	of    map[string][]string
	asked map[string]int
}

// LookupNetIP implements health.Resolver.
func (n *names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked[host]++
	var found []netip.Addr
	for _, a := range n.of[host] {
		found = append(found, netip.MustParseAddr(a))
	}
	if found == nil {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return found, nil
}

func (n *names) set(host string, addresses ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.of[host] = addresses
}

func (n *names) count(host string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[host]
}

// witness is a real forward proxy that writes down who has called it.
type witness struct {
	port int32

	mu    sync.Mutex
	calls int
	shown map[string]bool // what clients proved themselves with, "" for nothing
}

// witness runs one at the address, on a port of its own where none is given.
func (w *world) witness(address string, port int32) *witness {
	w.t.Helper()
	seen := &witness{shown: map[string]bool{}}
	within := goproxy.NewProxyHttpServer()
	listener := must[net.Listener](w.t)(net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(int(port)))))
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		seen.mu.Lock()
		seen.calls++
		seen.shown[r.Header.Get("Proxy-Authorization")] = true
		seen.mu.Unlock()
		r.Header.Del("Proxy-Authorization")
		within.ServeHTTP(rw, r)
	})}}
	server.Start()
	w.root.Cleanup(server.Close)
	seen.port = int32(listener.Addr().(*net.TCPAddr).Port)
	return seen
}

func (s *witness) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *witness) passwords() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.shown))
}

// again waits for another call.
func (s *witness) again(w *world) {
	w.t.Helper()
	before := s.count()
	w.eventually("it is called again", func() error {
		if s.count() == before {
			return errors.New("not yet")
		}
		return nil
	})
}

// routable annotates the spoke's Secret, or takes that back.
func (w *world) routable(name string, is bool) {
	w.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}}
	if err := w.get(w.hub, secret); err != nil {
		w.t.Fatal(err)
	}
	base := secret.DeepCopy()
	delete(secret.Annotations, v1alpha1.AnnotationPodNetwork)
	if is {
		secret.Annotations = map[string]string{v1alpha1.AnnotationPodNetwork: v1alpha1.PodNetworkRoutable}
	}
	if err := w.hub.Patch(w.t.Context(), secret, client.MergeFrom(base)); err != nil {
		w.t.Fatal(err)
	}
}

// healthIs waits for condition Healthy of the Proxy.
func (w *world) healthIs(s *spokeWorld, p *v1alpha1.Proxy, begins string, parts ...string) {
	w.t.Helper()
	w.eventually(p.Name+" shows "+begins, func() error {
		if err := w.get(s, p); err != nil {
			return err
		}
		got := condition(p.Status.Conditions, v1alpha1.ConditionHealthy)
		for _, part := range append(parts, begins) {
			if !strings.HasPrefix(got, begins) || !strings.Contains(got, part) {
				return fmt.Errorf("Healthy is %s, without %q", got, part)
			}
		}
		return nil
	})
}

// overlappingNetworks has pods of both spokes at one address, where that of us is.
func overlappingNetworks(t *testing.T, w *world) {
	eu, us := w.spokes["eu"], w.spokes["us"]
	w.routable("eu", false)
	there := w.witness("127.0.0.1", 0)
	proxies := map[*spokeWorld]*v1alpha1.Proxy{}
	for _, s := range []*spokeWorld{eu, us} {
		w.secret(s, "overlap", map[string]string{"username": "crawler", "password": "of-" + s.name})
		p := managed("overlap", there.port, func(p *v1alpha1.Proxy) { p.Spec.AuthSecretRef = &v1alpha1.SecretReference{Name: "overlap"} })
		w.create(s, p)
		pod := w.podOf(s, p, "")
		w.bind(s, pod)
		w.run(s, pod)
		proxies[s] = p
	}
	w.proxyShows(us, proxies[us], v1alpha1.PhaseReady)
	w.healthIs(eu, proxies[eu], "Unknown/NotRoutable", "crawl.proxyfleet.dev/pod-network=routable", "HostPort or LoadBalancer")
	there.again(w)
	var granted leaseReply
	if status := w.call("POST", "/v1/leases", `{"selector":{"test":"overlap"},"cluster":"eu"}`, &granted); status != http.StatusConflict || granted.Unhealthy != 1 {
		t.Errorf("a Proxy that is not dialled: lease answered %d, %+v", status, granted)
	}
	ours := "Basic " + base64.StdEncoding.EncodeToString([]byte("crawler:of-us"))
	if shown := there.passwords(); !slices.Equal(shown, []string{ours}) {
		t.Errorf("the pod of us was shown %q", shown)
	}

	w.routable("eu", true)
	w.healthIs(eu, proxies[eu], "Unknown/EndpointConflict", "us/crawl/overlap", proxies[eu].Status.Endpoint)
	w.healthIs(us, proxies[us], "Unknown/EndpointConflict", "eu/crawl/overlap")
	if status := w.call("POST", "/v1/leases", `{"selector":{"test":"overlap"}}`, &granted); status != http.StatusConflict || granted.Considered != 2 || granted.Unhealthy != 2 {
		t.Errorf("two with one endpoint: lease answered %d, %+v", status, granted)
	}
	w.routable("eu", false)
	w.proxyShows(us, proxies[us], v1alpha1.PhaseReady)
	if shown := there.passwords(); !slices.Equal(shown, []string{ours}) {
		t.Errorf("the pod of us was shown %q", shown)
	}
	// What an edit asks for is not what the pod is: it stays where it is until it goes.
	w.eventually("edited", func() error {
		if err := w.get(eu, proxies[eu]); err != nil {
			return err
		}
		proxies[eu].Spec.Kubernetes = &v1alpha1.KubernetesSpec{Expose: v1alpha1.ExposeLoadBalancer}
		return eu.Update(t.Context(), proxies[eu])
	})
	w.proxyShows(eu, proxies[eu], v1alpha1.PhaseReplacing)
	there.again(w)
	if shown := there.passwords(); !slices.Equal(shown, []string{ours}) {
		t.Errorf("the pod of us was shown %q", shown)
	}
	w.routable("eu", true)
}

func movingName(t *testing.T, w *world) {
	us := w.spokes["us"]
	first := w.witness("127.0.0.21", 0)
	second := w.witness("127.0.0.22", first.port)
	w.names.set("proxy.example", "127.0.0.21")
	p := managed("named", 0, func(p *v1alpha1.Proxy) {
		p.Spec.Mode, p.Spec.Provider = v1alpha1.ModeExternal, ""
		p.Spec.Endpoint = &v1alpha1.Endpoint{Host: "proxy.example", Port: first.port}
	})
	w.create(us, p)
	w.proxyShows(us, p, v1alpha1.PhaseReady)
	asked, called := w.names.count("proxy.example"), first.count()
	first.again(w)
	first.again(w)
	if probes, lookups := first.count()-called, w.names.count("proxy.example")-asked; lookups > probes+1 {
		t.Errorf("%d lookups for %d probes", lookups, probes)
	}
	w.names.set("proxy.example", "127.0.0.22")
	second.again(w)
	if err := w.get(us, p); err != nil || p.Status.Phase != v1alpha1.PhaseReady || p.Status.Endpoint != fmt.Sprintf("proxy.example:%d", first.port) {
		t.Errorf("it is %s at %s (%v)", p.Status.Phase, p.Status.Endpoint, err)
	}
	w.names.set("proxy.example")
	w.healthIs(us, p, "False/DialFailed", "no such host")
}

func forbiddenEndpoints(t *testing.T, w *world) {
	us := w.spokes["us"]
	here := w.witness("127.0.0.1", 0)
	w.stopHub()
	w.startHub("--allow-local-endpoints=false")
	w.spokeShows("us", v1alpha1.ConditionReady, "True/Connected", "")
	w.names.set("turns.example", "127.0.0.1", "169.254.169.254")
	for name, tc := range map[string]struct{ host, says string }{
		"loopback": {"127.0.0.1", "127.0.0.1 is a loopback address"},
		"metadata": {"169.254.169.254", "169.254.169.254 is a link-local address"},
		"mapped":   {"64:ff9b::a9fe:a9fe", "64:ff9b::a9fe:a9fe is a link-local address"},
		"disguise": {"2130706433", "some clients take for an address"},
		"by-name":  {"turns.example", "turns.example leads to 127.0.0.1, a loopback address"},
	} {
		p := managed(name, 0, func(p *v1alpha1.Proxy) {
			p.Spec.Mode, p.Spec.Provider = v1alpha1.ModeExternal, ""
			p.Spec.Endpoint = &v1alpha1.Endpoint{Host: tc.host, Port: here.port}
		})
		w.create(us, p)
		w.healthIs(us, p, "False/EndpointForbidden", tc.says)
		w.proxyShows(us, p, v1alpha1.PhaseUnhealthy)
	}
	if n := here.count(); n > 0 {
		t.Errorf("the proxy on loopback was called %d times", n)
	}
}
