package registry

import (
	"context"
	"encoding/pem"
	"errors"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard()) // or controller-runtime complains that there is none
	os.Exit(m.Run())
}

const theToken = "the-token"

// kubeconfigOf leads to the server; trusting says whether with its CA.
func kubeconfigOf(t *testing.T, s *httptest.Server, trusting bool) []byte {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if !trusting {
		ca = nil // the system's authorities did not sign it
	}
	return kubeconfigTo(t, s.URL, ca)
}

func kubeconfigTo(t *testing.T, server string, ca []byte) []byte {
	t.Helper()
	c := api.NewConfig()
	c.CurrentContext = "x"
	c.Contexts["x"] = &api.Context{Cluster: "x", AuthInfo: "x"}
	c.Clusters["x"] = &api.Cluster{Server: server, CertificateAuthorityData: ca}
	c.AuthInfos["x"] = &api.AuthInfo{Token: theToken}
	raw, err := clientcmd.Write(*c)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// forgetful records nothing.
type forgetful struct{}

func (forgetful) ForgetSpoke(string) {}

// engagements records what the controllers would be told.
type engagements struct {
	mu       sync.Mutex
	names    []string
	ctxs     []context.Context
	clusters []cluster.Cluster
	fail     error
	during   func() // runs in each
}

func (e *engagements) Engage(ctx context.Context, name multicluster.ClusterName, cl cluster.Cluster) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.during != nil {
		e.during()
	}
	e.names, e.ctxs, e.clusters = append(e.names, name.String()), append(e.ctxs, ctx), append(e.clusters, cl)
	return e.fail
}

// last is the engagement that was made last.
func (e *engagements) last() (context.Context, cluster.Cluster) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ctxs[len(e.ctxs)-1], e.clusters[len(e.clusters)-1]
}

func (e *engagements) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.names)
}

func options(t *testing.T) Options {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return Options{Fleet: fleet.New(fleet.Options{AllowLocal: true}), HubID: "this-hub", Recorder: forgetful{}, Scheme: scheme, Log: logr.Discard()}
}

// started is a registry that runs until the test ends, and its engagements.
func started(t *testing.T) (*Registry, *engagements) {
	t.Helper()
	return startedWith(t, checkInterval)
}

// startedWith is started, with contacts every interval.
func startedWith(t *testing.T, interval time.Duration) (*Registry, *engagements) {
	t.Helper()
	r, _ := following(t, interval)
	e := &engagements{}
	leading(t, r, e)
	return r, e
}

// following is a registry of a hub that does not lead. It runs until it is stopped, or
// the test ends.
func following(t *testing.T, interval time.Duration) (r *Registry, stop func()) {
	t.Helper()
	r = New(options(t))
	r.checkInterval = interval
	r.expect(nil)
	return r, running(t, r.Run)
}

// leading has it lead.
func leading(t *testing.T, r *Registry, e *engagements) (stop func()) {
	t.Helper()
	return running(t, func(ctx context.Context) error { return r.Start(ctx, e) })
}

func running(t *testing.T, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

// put registers a kubeconfig as that of the Secret with the spoke's name.
func put(r *Registry, name string, kubeconfig []byte) *spoke {
	return r.register(name, registration{secret: name, kubeconfig: kubeconfig})
}

// until waits for the spoke's state.
func until(t *testing.T, s *spoke, what string, wanted func(State) bool) State {
	t.Helper()
	var st State
	eventually(t, what, func() bool { st = s.State(); return wanted(st) }, func() any { return st })
	return st
}

func eventually(t *testing.T, what string, wanted func() bool, show func() any) {
	t.Helper()
	deadline := time.After(60 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !wanted() {
		select {
		case <-deadline:
			t.Fatalf("not %s in time: %+v", what, show())
		case <-tick.C:
		}
	}
}

func reason(r string) func(State) bool { return func(s State) bool { return s.Reason == r } }
