package app

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"

	"github.com/proxyfleet/proxy-operator/cmd/hub/app/leadership"
)

// electionLease is the name of the Lease by which a hub's replicas elect their leader.
// What concerns the hub as a whole is told in Events about it, since it is there
// whichever replica tells.
const electionLease = "proxy-operator-hub"

// A replica takes over leaseDuration after it has seen the last renewal, a leader gives
// up after renewDeadline without one, and both try every retryPeriod.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// election is how a hub gets to lead.
type election struct {
	*leadership.Leadership // nil: it leads from its start
	lock                   resourcelock.Interface
	events                 *electionEvents
	lease                  string // namespace/name
}

// newElection stands for election in the hub's own cluster, if it is asked to.
func newElection(cfg *rest.Config, o Options) (*election, error) {
	e := &election{lease: o.Namespace + "/" + electionLease}
	if !o.LeaderElect {
		return e, nil
	}
	e.Leadership = leadership.New(renewDeadline)
	if o.elected != nil {
		o.elected(e.Leadership)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name this replica: %w", err)
	}
	cfg = rest.AddUserAgent(rest.CopyConfig(cfg), "leader-election")
	cfg.Timeout = renewDeadline / 2 // one that hangs must not cost the leadership
	client, err := coordinationv1.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("build the election's client: %w", err)
	}
	e.events = &electionEvents{holds: e.Holds}
	within, err := resourcelock.New(resourcelock.LeasesResourceLock, o.Namespace, electionLease, nil, client,
		resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID()), EventRecorder: e.events})
	if err != nil {
		return nil, fmt.Errorf("build the election's lock: %w", err)
	}
	e.lock = e.Lock(within)
	return e, nil
}

// configure has a manager run what needs to lead when this hub does.
func (e *election) configure(options *manager.Options) {
	if e.Leadership == nil {
		return
	}
	lease, renew, retry := leaseDuration, renewDeadline, retryPeriod
	options.LeaderElection, options.LeaderElectionID = true, electionLease
	options.LeaderElectionResourceLockInterface = e.lock
	options.LeaseDuration, options.RenewDeadline, options.RetryPeriod = &lease, &renew, &retry
	// So that an update hands over at once. The lock sees to it that nothing acts by then.
	options.LeaderElectionReleaseOnCancel = true
}

// run runs the manager until ctx ends. Nothing that is left of it by then writes.
func (e *election) run(ctx context.Context, mgr mcmanager.Manager, log logr.Logger) error {
	defer e.End()
	// The elector logs to its context's logger.
	return e.lost(ctx, mgr.Start(logr.NewContext(ctx, log.WithName("election"))))
}

// lost puts it into words that a manager ended with err because leadership was lost,
// if so: whatever else ends it does so while the Lease is held.
func (e *election) lost(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || !e.Held() || e.Holds() {
		return err
	}
	return fmt.Errorf("leadership was lost, so that this replica ends: the Lease %s was not renewed within %s, for want of an answer or since another replica has taken it: %w",
		e.lease, renewDeadline, err)
}

// electionEvents tells who leads in Events about the Lease. The library's own are those
// that were there before events.k8s.io, for which the hub has no right.
type electionEvents struct {
	recorder events.EventRecorder
	holds    func() bool
}

// Eventf implements resourcelock.EventRecorder. Who does not lead writes nothing.
func (e *electionEvents) Eventf(about runtime.Object, kind, reason, message string, args ...any) {
	if e.holds() {
		e.recorder.Eventf(about, nil, kind, reason, "Elect", message, args...)
	}
}

// everywhere is a part of the hub that runs on every replica; others, as
// controller-runtime has it, on the leader alone.
type everywhere func(context.Context) error

// Start implements manager.Runnable.
func (run everywhere) Start(ctx context.Context) error { return run(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (everywhere) NeedLeaderElection() bool { return false }
