package app_test

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/cmd/hub/app"
	"github.com/proxyfleet/proxy-operator/cmd/hub/app/leadership"
	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
	"github.com/proxyfleet/proxy-operator/test/controlplane"
)

// replica is one of several hubs of one cluster.
type replica struct {
	runningHub
	leadership *leadership.Leadership
}

// replicated is a cluster with several hubs, which is its own spoke "home", and some
// other spokes.
type replicated struct {
	*world
	home *spokeWorld
	port int32 // of a forward proxy
}

// newReplicated starts the clusters and no hub.
func newReplicated(t *testing.T, spokes ...string) *replicated {
	t.Helper()
	planes := controlplane.StartForTest(t, 1+len(spokes))
	w := &world{root: t, t: t, plane: planes[0], site: origin.Start(t), spokes: map[string]*spokeWorld{}}
	if err := planes[0].Apply(t.Context(), config("rbac/hub"), config("rbac/local-spoke")); err != nil {
		t.Fatal(err)
	}
	r := &replicated{world: w, port: w.forwardProxy()}
	for i, name := range append([]string{"home"}, spokes...) {
		s := &spokeWorld{WithWatch: newClient(t, planes[i].Admin()), name: name, plane: planes[i]}
		s.prepare(t, "crd", "rbac/spoke")
		s.kubeconfig = s.hubKubeconfig(t)
		w.create(s, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
		w.spokes[name] = s
	}
	r.home = w.spokes["home"]
	w.hub = r.home
	return r
}

// externalAt builds an External Proxy at a port of this machine.
func externalAt(name string, port int32) *v1alpha1.Proxy {
	return managed(name, 0, func(p *v1alpha1.Proxy) {
		p.Spec.Mode, p.Spec.Provider = v1alpha1.ModeExternal, ""
		p.Spec.Endpoint = &v1alpha1.Endpoint{Host: "127.0.0.1", Port: port}
	})
}

// replica starts a hub that reaches its cluster by what reach makes of the way there.
func (r *replicated) replica(reach func(*rest.Config)) *replica {
	r.t.Helper()
	cfg := must[*rest.Config](r.t)(r.plane.ServiceAccount(r.t.Context(), system, "hub"))
	reach(cfg)
	file := filepath.Join(r.t.TempDir(), "hub.kubeconfig")
	content := must[[]byte](r.t)(controlplane.Kubeconfig(controlplane.Context{Name: "hub", Config: cfg}))
	if err := os.WriteFile(file, content, 0o600); err != nil {
		r.t.Fatal(err)
	}
	one := &replica{}
	r.adjust = func(o *app.Options) {
		o.Elected(func(l *leadership.Leadership) { one.leadership = l })
	}
	one.runningHub = r.runHub(r.plane, "--leader-elect", "--local-spoke", "home", "--kubeconfig", file)
	return one
}

// electionLease reads the Lease of the election.
func (r *replicated) electionLease() *coordinationv1.Lease {
	r.t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "proxy-operator-hub"}}
	if err := r.get(r.hub, lease); err != nil {
		r.t.Fatal(err)
	}
	return lease
}

// way is one hub's way to its cluster's API server. It records what would change
// something there.
type way struct {
	server *httptest.Server

	mu     sync.Mutex
	writes []string
}

func newWay(t *testing.T, plane *controlplane.ControlPlane) *way {
	t.Helper()
	target := must[*url.URL](t)(url.Parse(plane.Admin().Host))
	transport := must[http.RoundTripper](t)(rest.TransportFor(rest.AnonymousClientConfig(plane.Admin())))
	quiet := log.New(io.Discard, "", 0)
	to := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: transport, FlushInterval: -1, ErrorLog: quiet,
	}
	x := &way{}
	x.server = httptest.NewUnstartedServer(http.HandlerFunc(func(res http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet && !strings.HasSuffix(req.URL.Path, "/selfsubjectaccessreviews") {
			x.mu.Lock()
			x.writes = append(x.writes, req.Method+" "+req.URL.Path)
			x.mu.Unlock()
		}
		to.ServeHTTP(res, req)
	}))
	x.server.Config.ErrorLog = quiet
	x.server.StartTLS()
	t.Cleanup(func() {
		x.server.CloseClientConnections()
		x.server.Close()
	})
	return x
}

// reach leads a hub this way.
func (x *way) reach(cfg *rest.Config) {
	cfg.Host = x.server.URL
	cfg.TLSClientConfig = rest.TLSClientConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: x.server.Certificate().Raw})}
}

// wrote is what went this way, Events by the path of all.
func (x *way) wrote() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.writes)
}
