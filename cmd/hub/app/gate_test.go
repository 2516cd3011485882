package app_test

import (
	"context"
	"crypto/sha256"
	"encoding/pem"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/test/controlplane"
)

// gate stands between the hub and a spoke's real API server. It records every
// write, and can cut the hub off at any one of them: for what is in the cluster
// that is the hub's sudden death.
type gate struct {
	server *httptest.Server
	to     *httputil.ReverseProxy

	mu     sync.Mutex
	closed bool
	writes []string
	// cutAt is the number of the write at which the hub is cut off, before or
	// after the API server has it; zero: at none. cut is closed then.
	cutAt    int
	cutAfter bool
	cut      chan struct{}
	// conflicting answers the first write of each kind to each object with a
	// conflict, as if somebody were always faster.
	conflicting bool
	conflicted  map[string]bool
}

// newGate opens a gate to s, whose kubeconfig leads through it from here on.
func newGate(t *testing.T, s *spokeWorld) *gate {
	t.Helper()
	target := must[*url.URL](t)(url.Parse(s.plane.Admin().Host))
	anonymous := rest.AnonymousClientConfig(s.plane.Admin())
	transport := must[http.RoundTripper](t)(rest.TransportFor(anonymous))
	quiet := log.New(io.Discard, "", 0) // connections that are cut on purpose are no news
	g := &gate{to: &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: transport, FlushInterval: -1, ErrorLog: quiet,
	}}
	g.server = httptest.NewUnstartedServer(http.HandlerFunc(g.serve))
	g.server.Config.ErrorLog = quiet
	g.server.StartTLS()
	t.Cleanup(func() {
		g.shut(true)
		g.server.Close()
	})
	cfg := must[*rest.Config](t)(s.plane.ServiceAccount(t.Context(), system, "proxy-operator-hub"))
	cfg.Host, cfg.CAData = g.server.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.server.Certificate().Raw})
	s.kubeconfig = must[[]byte](t)(controlplane.Kubeconfig(controlplane.Context{Name: s.name, Config: cfg}))
	return g
}

// shut closes the gate, or opens it.
func (g *gate) shut(closed bool) {
	g.mu.Lock()
	g.closed = closed
	g.mu.Unlock()
	if closed {
		g.server.CloseClientConnections()
	}
}

// arm cuts the hub off at the n-th write from now on, and says when.
func (g *gate) arm(n int, after bool) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writes, g.cutAt, g.cutAfter, g.cut = nil, n, after, make(chan struct{})
	return g.cut
}

// fired says that the hub is cut off, or about to be.
func (g *gate) fired() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cutAt == 0
}

// written are the writes since arm, as "patch proxies/status".
func (g *gate) written() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.writes)
}

var written = regexp.MustCompile(`/namespaces/[^/]+/(pods|secrets|proxies|events)(?:/[^/]+(/[a-z]+)?)?$`)

// note records a write and says whether it is the one to cut off at.
func (g *gate) note(r *http.Request) (write, here bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		panic(http.ErrAbortHandler)
	}
	parts := written.FindStringSubmatch(r.URL.Path)
	if r.Method == http.MethodGet || parts == nil {
		return false, false
	}
	g.writes = append(g.writes, strings.ToLower(r.Method)+" "+parts[1]+parts[2])
	acts := 0
	for _, w := range g.writes {
		if !strings.HasSuffix(w, "events") {
			acts++
		}
	}
	here = acts == g.cutAt && parts[1] != "events"
	if here {
		g.cutAt = 0
		g.closed = !g.cutAfter // nothing may slip through behind it
	}
	return true, here
}

// conflict lets first writes conflict from now on, or not.
func (g *gate) conflict(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conflicting, g.conflicted = on, map[string]bool{}
}

// conflicts says that this write is to be answered with a conflict. What makes
// an object has none to conflict with.
func (g *gate) conflicts(r *http.Request) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	what := r.Method + " " + r.URL.Path
	if !g.conflicting || r.Method == http.MethodPost || g.conflicted[what] {
		return false
	}
	g.conflicted[what] = true
	return true
}

func (g *gate) serve(w http.ResponseWriter, r *http.Request) {
	write, here := g.note(r)
	switch {
	case !write:
		g.to.ServeHTTP(w, r)
		return
	case g.conflicts(r):
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409,"message":"somebody was faster"}`)
		return
	}
	answer := httptest.NewRecorder()
	if !here || g.cutAfter {
		g.to.ServeHTTP(answer, r)
	}
	if here {
		g.mu.Lock()
		cut := g.cut
		g.mu.Unlock()
		// In a goroutine: it waits for this very connection.
		go func() {
			g.shut(true)
			close(cut)
		}()
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// kubelet runs every pod of the spoke at once, each on an address of its own that
// it tells, and lets it go when it is deleted, until it is stopped or the world
// ends. It leaves those alone that are labelled kubelet=none.
func (w *world) kubelet(s *spokeWorld, at func(address string)) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	stop = func() {
		cancel()
		<-done
	}
	w.root.Cleanup(stop)
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			served(ctx, s, at)
		}
	}()
	return stop
}

// served watches the hub's pods and takes each one step further whenever it
// changes, until the watch ends.
func served(ctx context.Context, s *spokeWorld, at func(string)) {
	w, err := s.Watch(ctx, &corev1.PodList{}, client.InNamespace(ns), client.HasLabels{v1alpha1.LabelHub})
	if err != nil {
		return
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		pod, ok := e.Object.(*corev1.Pod)
		if !ok || e.Type == watch.Deleted || pod.Labels["kubelet"] == "none" {
			continue
		}
		// Somebody else's write in between is an event to come.
		switch {
		case pod.DeletionTimestamp != nil:
			_ = s.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
		case pod.Spec.NodeName == "":
			_ = s.SubResource("binding").Create(ctx, pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "node"}})
		case pod.Status.Phase != corev1.PodRunning && pod.Status.Phase != corev1.PodFailed:
			base := pod.DeepCopy()
			runs(pod)
			setAddress(pod, addressOf(pod))
			at(pod.Status.PodIP)
			_ = s.Status().Patch(ctx, pod, client.MergeFrom(base))
		}
	}
}

// addressOf is a loopback address that no other pod has, in all likelihood.
func addressOf(pod *corev1.Pod) string {
	sum := sha256.Sum256([]byte(pod.UID))
	return net.IPv4(127, 64|sum[0]>>2, sum[1], max(1, sum[2])).String()
}

func setAddress(pod *corev1.Pod, address string) {
	pod.Status.PodIP, pod.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
}

// runs is the status of a pod whose container runs.
func runs(pod *corev1.Pod) {
	pod.Status.Phase = corev1.PodRunning
	setAddress(pod, "127.0.0.1")
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "proxy", Image: "default:image", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}
}
