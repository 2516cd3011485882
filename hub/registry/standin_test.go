package registry

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
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

// answer is what a stand-in API server says on a path.
type answer struct {
	status int
	body   string
}

// answers go by path; a path that is not there hangs until the client gives up.
type answers map[string]answer

const (
	proxiesPath = "/apis/crawl.proxyfleet.dev/v1alpha1/proxies"
	crdPath     = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/proxies.crawl.proxyfleet.dev"
)

// listedAll is the bookmark that ends the list in a watch that began with one.
const listedAll = `{"type":"BOOKMARK","object":{"kind":"Proxy","apiVersion":"crawl.proxyfleet.dev/v1alpha1",` +
	`"metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}` + "\n"

func status(code int, reason, message string) answer {
	return answer{code, fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":%q}`, code, reason, message)}
}

func ok(body string) answer { return answer{http.StatusOK, body} }

// good are the answers of a cluster without Proxies.
func good(edits answers) answers {
	a := answers{
		"/version":                       ok(`{"gitVersion":"v1.36.3"}`),
		"/api/v1/namespaces/kube-system": ok(`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"kube-system","uid":"cluster-uid"}}`),
		crdPath:                          ok(`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"proxies.crawl.proxyfleet.dev","annotations":{"crawl.proxyfleet.dev/schema-version":"1"}}}`),
		proxiesPath:                      ok(`{"kind":"ProxyList","apiVersion":"crawl.proxyfleet.dev/v1alpha1","metadata":{"resourceVersion":"1"},"items":[]}`),
	}
	for path, answer := range edits {
		a[path] = answer
	}
	return a
}

func standIn(t *testing.T, a answers) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, there := a[r.URL.Path]
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") != "" {
			if _, mute := a["mute watches"]; !mute {
				fmt.Fprint(w, listedAll)
				w.(http.Flusher).Flush()
			}
			there = false
		}
		if !there {
			<-r.Context().Done()
			return
		}
		w.WriteHeader(answer.status)
		fmt.Fprint(w, answer.body)
	}))
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

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
	c.AuthInfos["x"] = &api.AuthInfo{Token: "the-token"}
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
	mu    sync.Mutex
	names []string
	ctxs  []context.Context
	fail  error
}

func (e *engagements) Engage(ctx context.Context, name multicluster.ClusterName, _ cluster.Cluster) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.names, e.ctxs = append(e.names, name.String()), append(e.ctxs, ctx)
	return e.fail
}

// started is a registry that runs until the test ends, and its engagements.
func started(t *testing.T) (*Registry, *engagements) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	r := New(Options{Fleet: fleet.New(), Recorder: forgetful{}, Scheme: scheme, Log: logr.Discard()})
	r.expect(nil)
	e := &engagements{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Start(ctx, e) }()
	t.Cleanup(func() { cancel(); <-done })
	return r, e
}

// until waits for the spoke's state.
func until(t *testing.T, s *spoke, what string, wanted func(State) bool) State {
	t.Helper()
	deadline := time.After(60 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if st := s.State(); wanted(st) {
			return st
		}
		select {
		case <-deadline:
			t.Fatalf("not %s in time: %+v", what, s.State())
		case <-tick.C:
		}
	}
}

func reason(r string) func(State) bool { return func(s State) bool { return s.Reason == r } }
