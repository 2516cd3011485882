package registry

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/spoke/kubeconfig"
)

// settleTimeout is how long a starting hub waits for spokes that do not answer
// before it serves leases without them.
const settleTimeout = 30 * time.Second

// completeTimeout is how long spokes wait for the others of a starting hub to be
// registered, which takes milliseconds unless the hub's own cluster hangs.
const completeTimeout = 5 * time.Second

// lastPass is when no pass over a Proxy can be under way any more that began
// before.
const lastPass = time.Minute

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
	// Allowed is what kubeconfigs may hold beside what all may.
	Allowed kubeconfig.Options
	// LocalSpoke registers the cluster that Local leads to, the hub's own, under
	// this name; empty: it is not registered.
	LocalSpoke string
	Local      *rest.Config
	// Fence is put before all that goes to a spoke: it lets no write out that is not
	// this hub's to make. Nil: there is none.
	Fence func(http.RoundTripper) http.RoundTripper
	// Scheme knows Proxy and the core kinds.
	Scheme *runtime.Scheme
	Log    logr.Logger

	most map[*kind]int // of one spoke; 0: the kind's own
}

// Registry holds the registered spokes. It implements multicluster.Provider
// and multicluster.ProviderRunnable.
type Registry struct {
	Options
	checkInterval time.Duration // checkInterval, but for tests

	mu     sync.Mutex
	spokes map[string]*spoke
	// engaged answers Get: only spokes whose informers are synced are in it.
	engaged map[string]*connection
	// wake puts a spoke's name before the controller; nil until that runs.
	wake func(name string)
	// catchUp has the controller look at every Spoke; nil: there is no controller.
	catchUp func(context.Context) error
	// began is when Run ran, expected the spokes registered at that moment.
	began    time.Time
	expected []string

	// running is closed when Run has begun, complete when all expected spokes are
	// registered.
	running, complete chan struct{}
	isComplete        bool
	// ctx is what connections live in; it ends with the last of those who need them.
	ctx    context.Context
	end    context.CancelFunc
	needed int
	// aware are the controllers; nil: this hub does not lead.
	aware multicluster.Aware
}

var (
	_ multicluster.Provider         = (*Registry)(nil)
	_ multicluster.ProviderRunnable = (*Registry)(nil)
)

// New returns a Registry without spokes.
func New(o Options) *Registry {
	r := &Registry{Options: o, checkInterval: checkInterval, spokes: map[string]*spoke{}, engaged: map[string]*connection{}, running: make(chan struct{}), complete: make(chan struct{})}
	r.ctx, r.end = context.WithCancel(context.Background())
	return r
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
	return known.conn.identity.clusterUID, true
}

// identified is a cluster that knows which it is.
type identified struct {
	cluster.Cluster
	conn *connection
}

// GetEventRecorder implements cluster.Cluster. A pass that holds the cluster may
// outlive the connection, and what it has to say then goes through the next one.
func (i *identified) GetEventRecorder(name string) events.EventRecorder {
	if s := i.conn.standing.Load(); s != nil {
		return s.GetEventRecorder(name)
	}
	return &recorder{name, func() *connection { return i.conn }}
}

// GetEventRecorderFor implements cluster.Cluster.
func (i *identified) GetEventRecorderFor(name string) record.EventRecorder {
	return formerRecorder{i.GetEventRecorder(name)}
}

// IndexField implements multicluster.Provider. Nothing here reads by index, and
// an index per spoke would cost memory per Proxy.
func (r *Registry) IndexField(context.Context, client.Object, string, client.IndexerFunc) error {
	return fmt.Errorf("registry keeps no indexes")
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
		r.completeLocked()
	}
}

// completeLocked lets the spokes connect when all that are expected are
// registered: of two that lead to one cluster, the first that is looked at is
// not always the one that has it.
func (r *Registry) completeLocked() {
	if r.expected == nil || r.isComplete {
		return
	}
	for _, name := range r.expected {
		if r.spokes[name] == nil {
			return
		}
	}
	r.isComplete = true
	close(r.complete)
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

// PathsBroken are the registered spokes of which the hub has found that no Proxy that
// counts is reached, in order.
func (r *Registry) PathsBroken() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var broken []string
	for name, s := range r.spokes {
		if s.State().Path == pathBroken {
			broken = append(broken, name)
		}
	}
	slices.Sort(broken)
	return broken
}

// register takes what an admin says about a spoke. Repeating it is free. It
// must not be called concurrently with itself or deregister.
func (r *Registry) register(name string, reg registration) *spoke {
	r.mu.Lock()
	s := r.spokes[name]
	r.mu.Unlock()
	if s != nil && (s.secret != reg.secret || r.outruled(s, reg)) {
		r.deregister(name) // another Secret has taken the name, or the leader knows better: nothing of the old one holds
		s = nil
	}
	if s == nil {
		s = newSpoke(name, reg, r)
		r.mu.Lock()
		r.spokes[name] = s
		r.completeLocked()
		if _, other := r.engagedLocked(s, reg.pinned); other != nil {
			poke(other.yield) // it finds out whether it has to
		}
		r.mu.Unlock()
		go s.run()
	}
	s.offer(reg) // not under the lock: it may tell the controller
	return s
}

// deregister takes a spoke's Proxies out of the fleet at once and forgets it.
// Nothing in the spoke is touched, and nothing goes there any more.
func (r *Registry) deregister(name string) {
	r.mu.Lock()
	s := r.spokes[name]
	delete(r.spokes, name)
	delete(r.engaged, name)
	if r.expected != nil {
		r.expected = slices.DeleteFunc(r.expected, func(n string) bool { return n == name })
		r.completeLocked()
	}
	uid := ""
	if s != nil {
		uid = s.claim.holds
	}
	r.mu.Unlock()
	if s != nil {
		s.remove()
		r.released(uid)
	}
}

// forget drops what was recorded about a spoke, now and when the last pass
// that was under way has ended.
func (r *Registry) forget(name string) {
	r.Recorder.ForgetSpoke(name)
	time.AfterFunc(lastPass, func() {
		r.mu.Lock()
		_, back := r.spokes[name]
		r.mu.Unlock()
		if !back {
			r.Recorder.ForgetSpoke(name)
		}
	})
}

// Summary is one spoke at a glance.
type Summary struct {
	Name   string
	Ready  bool
	Reason string
	// Proxies are the ones that are known, Instances what runs for them.
	Proxies, Instances int
	// LastContact is when the spoke answered last; zero: never.
	LastContact time.Time
}

// Summaries are those of all registered spokes, in no order.
func (r *Registry) Summaries() []Summary {
	r.mu.Lock()
	spokes := maps.Clone(r.spokes)
	r.mu.Unlock()
	all := make([]Summary, 0, len(spokes))
	for name, s := range spokes {
		st := s.State()
		proxies, instances := r.Fleet.Count(name)
		all = append(all, Summary{name, st.Ready, st.Reason, proxies, instances, st.LastContact})
	}
	return all
}

// Answers says that an engaged spoke is not known to be lost, nor to have lost a
// watch, which is the first sign. It says so from the moment of engagement,
// which is just before its Spoke reads Connected.
func (r *Registry) Answers(name string) bool {
	r.mu.Lock()
	s, conn := r.spokes[name], r.engaged[name]
	r.mu.Unlock()
	return s != nil && conn != nil && !conn.broken.Load() && !s.State().isLost()
}

// Listed says that the fleet shows all that the engaged spoke has listed.
func (r *Registry) Listed(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	conn := r.engaged[name]
	return conn != nil && conn.listed.Load()
}

// SetPathBroken says whether every Proxy of a spoke that counts fails at the dial. A
// name that is not registered is ignored. It must not be called under the fleet's lock.
// Each change writes the Spoke: whoever calls it holds back what comes and goes.
func (r *Registry) SetPathBroken(spoke string, broken bool) {
	r.mu.Lock()
	s := r.spokes[spoke]
	r.mu.Unlock()
	if s != nil {
		s.update(func(st *State) { st.dialled(broken) })
	}
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
