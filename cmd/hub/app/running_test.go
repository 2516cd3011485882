package app_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/proxyfleet/proxy-operator/cmd/hub/app"
	"github.com/proxyfleet/proxy-operator/test/controlplane"
	"github.com/proxyfleet/proxy-operator/test/process"
)

// runningHub is a hub in this process.
type runningHub struct {
	api, health, metrics string
	log                  *syncBuffer
	cancel               context.CancelFunc
	done                 chan error
}

// startHub runs the hub with ServiceAccount hub's rights until stopHub or the
// end of the world.
func (w *world) startHub(flags ...string) {
	w.t.Helper()
	w.runningHub = w.runHub(w.plane, flags...)
}

// stopHub ends the hub in an orderly way.
func (w *world) stopHub() {
	w.t.Helper()
	w.stop(w.t)
}

func (h *runningHub) stop(t *testing.T) {
	t.Helper()
	h.cancel()
	select {
	case err := <-h.done:
		if err != nil {
			t.Errorf("the hub ended with %v", err)
		}
		h.done <- nil // for the next who asks
	case <-time.After(patience):
		t.Error("the hub does not stop")
	}
}

// runHub runs a hub whose own cluster is plane.
func (w *world) runHub(plane *controlplane.ControlPlane, flags ...string) runningHub {
	t := w.t
	t.Helper()
	cfg := must[*rest.Config](t)(plane.ServiceAccount(t.Context(), system, "hub"))
	dir := t.TempDir()
	kubeconfig, ca := filepath.Join(dir, "hub.kubeconfig"), filepath.Join(dir, "origin.pem")
	content := must[[]byte](t)(controlplane.Kubeconfig(controlplane.Context{Name: "hub", Config: cfg}))
	for file, content := range map[string][]byte{kubeconfig: content, ca: w.site.CAPEM} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var addresses []string
	for range 3 {
		port := must[*process.Port](t)(process.ReservePort(""))
		w.root.Cleanup(port.Release)
		addresses = append(addresses, port.Address())
	}
	options := must[app.Options](t)(app.Parse(append([]string{
		"--kubeconfig", kubeconfig, "--api-bind-address", addresses[0], "--metrics-bind-address", addresses[1],
		"--health-probe-bind-address", addresses[2], "--health-url", w.site.URL + "/generate_204", "--health-ca-file", ca,
		"--default-proxy-image", "default:image", "--allow-local-endpoints",
	}, flags...), func(string) string { return token }))
	h := runningHub{api: "http://" + addresses[0], health: "http://" + addresses[2], metrics: "http://" + addresses[1], log: &syncBuffer{}, done: make(chan error, 2)}
	options.Zap.DestWriter = h.log
	if w.names != nil {
		options.Resolver = w.names
	}
	if w.adjust != nil {
		w.adjust(&options)
	}
	var ctx context.Context
	ctx, h.cancel = context.WithCancel(context.Background())
	go func() { h.done <- app.Run(ctx, options) }()
	w.root.Cleanup(func() {
		h.stop(w.root)
		if w.root.Failed() {
			w.root.Logf("the end of the hub's log:\n%s", h.log.tail(200<<10))
		}
	})
	w.eventually("the hub answers", func() error {
		select {
		case err := <-h.done:
			h.done <- err
			t.Fatalf("the hub ended: %v", err)
		default:
		}
		res, err := http.Get(h.api + "/healthz")
		if err != nil {
			return err
		}
		return res.Body.Close()
	})
	return h
}

// syncBuffer may be written and read by several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// size is what the buffer takes of the heap.
func (s *syncBuffer) size() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return uint64(s.b.Cap())
}

func (s *syncBuffer) tail(most int) string {
	all := s.String()
	return all[max(0, len(all)-most):]
}
