package proxy

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// lag is how far behind this hub's own writes a cache may be. What is known of
// a write counts no longer: a cluster that was restored from a backup counts its
// versions from an earlier one.
const lag = 30 * time.Second

// fresh knows what this hub has written last. A pass that a cache brings sooner
// than that write is not made from what was there before it: it would only
// conflict. And the echo of a write wakes nobody.
type fresh struct {
	now func() time.Time

	mu      sync.Mutex
	written map[object]write
	swept   time.Time
}

// object names an object among those of all spokes: what a spoke calls a UID is
// its own word.
type object struct {
	spoke string
	uid   types.UID
}

type write struct {
	version string
	at      time.Time
}

func newFresh() *fresh { return &fresh{now: time.Now, written: map[object]write{}} }

// behind says that p is older than this hub's last write to it.
func (f *fresh) behind(spoke string, p client.Object) bool {
	order, ok := f.compare(spoke, p)
	return ok && order < 0
}

// echo says that p is this hub's last write to it, or was there before: writes
// carry the resource version that they are made from, so there is nothing in p
// that the pass which wrote has not seen.
func (f *fresh) echo(spoke string, p client.Object) bool {
	order, ok := f.compare(spoke, p)
	return ok && order <= 0
}

// compare compares p with this hub's last write, if one is known. Versions that
// cannot be compared are an API server's right; then a conflict tells.
func (f *fresh) compare(spoke string, p client.Object) (order int, ok bool) {
	f.mu.Lock()
	last, ok := f.written[object{spoke, p.GetUID()}]
	f.mu.Unlock()
	if !ok || f.now().Sub(last.at) > lag {
		return 0, false
	}
	order, err := resourceversion.CompareResourceVersion(p.GetResourceVersion(), last.version)
	return order, err == nil
}

// wrote records what a pass has made of p.
func (f *fresh) wrote(spoke string, p client.Object) {
	f.record(object{spoke, p.GetUID()}, p.GetResourceVersion())
}

// released records that p has been let go: whatever a cache still shows of it
// is older.
func (f *fresh) released(spoke string, p client.Object) {
	const newest = "99999999999999999999"
	f.record(object{spoke, p.GetUID()}, newest)
}

func (f *fresh) record(o object, version string) {
	now := f.now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written[o] = write{version, now}
	if now.Sub(f.swept) < lag {
		return
	}
	f.swept = now
	for o, w := range f.written {
		if now.Sub(w.at) > lag {
			delete(f.written, o)
		}
	}
}
