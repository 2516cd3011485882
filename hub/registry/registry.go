package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// settleTimeout is how long a starting hub waits for spokes that do not answer
// before it serves leases without them.
const settleTimeout = 30 * time.Second

// Recorder forgets what it recorded about a spoke.
type Recorder interface {
	ForgetSpoke(name string)
}

// Options configure a Registry.
type Options struct {
	// Fleet is fed with the Proxies of every spoke.
	Fleet *fleet.Fleet
	// HubID marks what is this hub's: Proxies marked by another one are not
	// taken into the fleet.
	HubID string
	// Recorder is told of spokes that are gone.
	Recorder Recorder
	// Scheme knows Proxy and the core kinds.
	Scheme *runtime.Scheme
	Log    logr.Logger
}

// Registry holds the registered spokes. It implements multicluster.Provider
// and multicluster.ProviderRunnable.
type Registry struct {
	Options

	mu     sync.Mutex
	spokes map[string]*spoke
	// engaged answers Get: only spokes whose informers are synced are in it.
	engaged map[string]*connection
	// wake puts a spoke's name before the controller; nil until that runs.
	wake func(name string)
	// began is when Start ran, expected the spokes registered at that moment.
	began    time.Time
	expected []string

	// running is closed when Start has set ctx and aware.
	running chan struct{}
	ctx     context.Context
	aware   multicluster.Aware
}

var (
	_ multicluster.Provider         = (*Registry)(nil)
	_ multicluster.ProviderRunnable = (*Registry)(nil)
)

// New returns a Registry without spokes.
func New(o Options) *Registry {
	return &Registry{Options: o, spokes: map[string]*spoke{}, engaged: map[string]*connection{}, running: make(chan struct{})}
}

// Get implements multicluster.Provider: it answers for engaged spokes alone.
func (r *Registry) Get(_ context.Context, name multicluster.ClusterName) (cluster.Cluster, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if conn := r.engaged[name.String()]; conn != nil {
		return conn.cluster, nil
	}
	return nil, fmt.Errorf("spoke %q: %w", name, multicluster.ErrClusterNotFound)
}

// ClusterUID returns the identity of a cluster that Get answered with: of that
// very connection, whatever the spoke's name leads to by now.
func ClusterUID(cl cluster.Cluster) (string, bool) {
	known, ok := cl.(*identified)
	if !ok {
		return "", false
	}
	return known.uid, true
}

// identified is a cluster that knows which it is.
type identified struct {
	cluster.Cluster
	uid string
}

// IndexField implements multicluster.Provider. Nothing here reads by index, and
// an index per spoke would cost memory per Proxy.
func (r *Registry) IndexField(context.Context, client.Object, string, client.IndexerFunc) error {
	return fmt.Errorf("registry keeps no indexes")
}

// Start implements multicluster.ProviderRunnable: spokes connect from here on.
func (r *Registry) Start(ctx context.Context, aware multicluster.Aware) error {
	r.mu.Lock()
	r.ctx, r.aware, r.began = ctx, aware, time.Now()
	r.mu.Unlock()
	close(r.running)
	<-ctx.Done()
	return nil
}

// Settled says that every spoke that was registered when the hub started has
// been connected or refused, or that it has had its time.
func (r *Registry) Settled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.began.IsZero():
		return false
	case time.Since(r.began) >= settleTimeout:
		return true
	case r.expected == nil:
		return false
	}
	for _, name := range r.expected {
		if s := r.spokes[name]; s == nil || !s.isSettled() {
			return false
		}
	}
	return true
}

// expect sets the spokes that Settled waits for, once.
func (r *Registry) expect(names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.expected == nil {
		r.expected = append([]string{}, names...)
	}
}

// Reasons counts the registered spokes by the reason of their Ready condition.
func (r *Registry) Reasons() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := map[string]int{}
	for _, s := range r.spokes {
		counts[s.State().Reason]++
	}
	return counts
}

// register takes what the Secret of a spoke holds. Repeating it is free. It
// must not be called concurrently with itself or deregister.
func (r *Registry) register(name string, kubeconfig []byte) *spoke {
	r.mu.Lock()
	s := r.spokes[name]
	if s == nil {
		s = newSpoke(name, r)
		r.spokes[name] = s
		go s.run()
	}
	r.mu.Unlock()
	s.offer(kubeconfig) // not under the lock: it may tell the controller
	return s
}

// deregister takes a spoke's Proxies out of the fleet at once and forgets it.
// Nothing in the spoke is touched.
func (r *Registry) deregister(name string) {
	r.mu.Lock()
	s := r.spokes[name]
	delete(r.spokes, name)
	delete(r.engaged, name)
	r.expected = slices.DeleteFunc(r.expected, func(n string) bool { return n == name })
	r.mu.Unlock()
	if s != nil {
		s.remove()
	}
}

// publish makes conn the one that Get answers with, unless the spoke has been
// deregistered meanwhile, or its cluster is engaged under another name: each
// Proxy would then be two, and leased twice.
func (r *Registry) publish(s *spoke, conn *connection) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.spokes[s.name] != s {
		return errors.New("the spoke is being removed")
	}
	for name, other := range r.engaged {
		if name != s.name && other.identity.clusterUID == conn.identity.clusterUID {
			return &preflightError{v1alpha1.ReasonDuplicateCluster, fmt.Sprintf("this cluster is registered as spoke %s already: delete one of the two Secrets", name)}
		}
	}
	r.engaged[s.name] = conn
	return nil
}

// Answers says that an engaged spoke is not known to be lost. It says so from
// the moment of engagement, which is just before its Spoke reads Connected.
func (r *Registry) Answers(name string) bool {
	r.mu.Lock()
	s := r.spokes[name]
	r.mu.Unlock()
	return s != nil && !s.State().isLost()
}

// withdraw undoes publish if conn still is the one.
func (r *Registry) withdraw(name string, conn *connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.engaged[name] == conn {
		delete(r.engaged, name)
	}
}

// tell wakes the controller for a spoke whose state has changed.
func (r *Registry) tell(name string) {
	r.mu.Lock()
	wake := r.wake
	r.mu.Unlock()
	if wake != nil {
		wake(name)
	}
}
