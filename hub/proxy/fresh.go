package proxy

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// fresh knows what this hub has written last. A pass that a cache brings sooner
// than that write is not made from what was there before it: it would only
// conflict. And the echo of a write wakes nobody.
type fresh struct {
	mu      sync.Mutex
	written map[types.UID]string // resource versions
}

func newFresh() *fresh { return &fresh{written: map[types.UID]string{}} }

// behind says that p is older than this hub's last write to it.
func (f *fresh) behind(p *v1alpha1.Proxy) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	last, ok := f.written[p.UID]
	if !ok {
		return false
	}
	// Versions that cannot be compared are an API server's right; then a
	// conflict tells.
	if order, err := resourceversion.CompareResourceVersion(p.ResourceVersion, last); err == nil && order < 0 {
		return true
	}
	return false
}

// echo says that p is this hub's last write to it, or was there before: writes
// carry the resource version that they are made from, so there is nothing in p
// that the pass which wrote has not seen.
func (f *fresh) echo(p client.Object) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	last, ok := f.written[p.GetUID()]
	if !ok {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(p.GetResourceVersion(), last)
	return err == nil && order <= 0
}

// wrote records what a pass has made of p.
func (f *fresh) wrote(p *v1alpha1.Proxy) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written[p.UID] = p.ResourceVersion
}

// released records that p has been let go: whatever a cache still shows of it
// is older.
func (f *fresh) released(p *v1alpha1.Proxy) {
	const newest = "99999999999999999999"
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written[p.UID] = newest
}

// forget drops what is known of a Proxy that is gone.
func (f *fresh) forget(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.written, uid)
}
