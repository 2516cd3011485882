package registry

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"weak"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/testkit/apiserver"
)

func TestWhatControllersListenToOutlivesConnections(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	_, e, s := connected(t, c)
	ctx, cl := e.last()
	informer, err := cl.GetCache().GetInformer(ctx, &v1alpha1.Proxy{})
	if err != nil {
		t.Fatal(err)
	}
	var heard, unheard atomic.Int64
	counting := func(n *atomic.Int64) toolscache.ResourceEventHandler {
		return toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { n.Add(1) }}
	}
	handle, err := informer.AddEventHandlerWithResyncPeriod(counting(&heard), 0)
	if err != nil {
		t.Fatal(err)
	}
	removed, err := informer.AddEventHandler(counting(&unheard))
	if err != nil {
		t.Fatal(err)
	}
	if err := informer.RemoveEventHandler(removed); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		rotate(t, s, c.Kubeconfig(fmt.Sprintf("token-%d", i)))
		before := heard.Load()
		c.Put(proxyNamed(fmt.Sprintf("p-%d", i)))
		eventually(t, "the new Proxy is heard of", func() bool { return heard.Load() > before }, func() any { return heard.Load() })
	}
	if !handle.HasSynced() || unheard.Load() != 0 {
		t.Errorf("synced %v, %d heard by one that was removed", handle.HasSynced(), unheard.Load())
	}
	if n := e.count(); n != 1 {
		t.Errorf("%d engagements, want one for all connections", n)
	}
	if err := informer.RemoveEventHandler(handle); err != nil {
		t.Error(err)
	}
	if _, err := cl.GetCache().GetInformer(ctx, &corev1.Pod{}); err == nil {
		t.Error("an informer that is not synced beforehand was handed out: it would hold all spokes up")
	}
	eventually(t, "one watch of each kind is left", func() bool { return c.Watches() == len(kinds) }, func() any { return c.Watches() })
}

func (s *spoke) serving() *credential {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serves == nil {
		return &credential{}
	}
	return s.serves
}

// rotate gives the spoke's Secret another kubeconfig and waits until that serves.
func rotate(t *testing.T, s *spoke, kubeconfig []byte) {
	t.Helper()
	put(s.registry, s.name, kubeconfig)
	until(t, s, "rotated", func(st State) bool { return s.serving().hash == hashOf(kubeconfig) && st.CredentialReason == "" })
}

func TestACacheIsLetGoWithItsConnection(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	c.Put(proxyNamed("a"))
	_, e, s := connected(t, c)
	ctx, cl := e.last()
	informer, err := cl.GetCache().GetInformer(ctx, &v1alpha1.Proxy{}) // as a controller keeps it
	if err != nil {
		t.Fatal(err)
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{}); err != nil {
		t.Fatal(err)
	}
	first := weak.Make(s.connected())
	rotate(t, s, c.Kubeconfig("another-token"))
	eventually(t, "let go", func() bool { runtime.GC(); return first.Value() == nil }, func() any { return nil })
	if !informer.HasSynced() || informer.IsStopped() {
		t.Error("what the controller keeps does not speak of the present connection")
	}
}

func (s *spoke) connected() *connection {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	return s.registry.engaged[s.name]
}
