package leadership

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const (
	duration, deadline, retry = 15 * time.Second, 10 * time.Second, 2 * time.Second
)

var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// shared is the one Lease, as an API server keeps it.
type shared struct {
	mu      sync.Mutex
	version int // 0: there is none
	record  resourcelock.LeaderElectionRecord
}

// candidate is one replica's way to the Lease.
type candidate struct {
	*shared
	name string
	seen int // the version that a write is made from

	mu sync.Mutex
	// before runs before a request goes out, after before its answer is there; an error
	// is the answer. Nil: nothing happens.
	before, after func(ctx context.Context, verb string) error
}

var errCut = errors.New("there is no way to the API server")

func (c *candidate) hooks() (before, after func(context.Context, string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	nothing := func(context.Context, string) error { return nil }
	if before = c.before; before == nil {
		before = nothing
	}
	if after = c.after; after == nil {
		after = nothing
	}
	return before, after
}

// on sets the hooks.
func (c *candidate) on(before, after func(context.Context, string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before, c.after = before, after
}

func (c *candidate) request(ctx context.Context, verb string, serve func() error) error {
	before, after := c.hooks()
	if err := before(ctx, verb); err != nil {
		return err
	}
	c.shared.mu.Lock()
	err := serve()
	c.shared.mu.Unlock()
	return errors.Join(err, after(ctx, verb))
}

func (c *candidate) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	var record resourcelock.LeaderElectionRecord
	err := c.request(ctx, "get", func() error {
		if c.version == 0 {
			return apierrors.NewNotFound(leases, "x")
		}
		record, c.seen = c.record, c.version
		return nil
	})
	if err != nil {
		if apierrors.IsNotFound(err) {
			err = apierrors.NewNotFound(leases, "x") // as the client has it, not joined
		}
		return nil, nil, err
	}
	raw, err := json.Marshal(record)
	return &record, raw, err
}

func (c *candidate) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return c.request(ctx, "create", func() error {
		if c.version != 0 {
			return apierrors.NewAlreadyExists(leases, "x")
		}
		c.store(record)
		return nil
	})
}

func (c *candidate) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return c.request(ctx, "update", func() error {
		if c.version != c.seen {
			return apierrors.NewConflict(leases, "x", errors.New("somebody was faster"))
		}
		c.store(record)
		return nil
	})
}

// store keeps times as precisely as an API server does.
func (c *candidate) store(record resourcelock.LeaderElectionRecord) {
	record.AcquireTime = metav1.NewTime(record.AcquireTime.Truncate(time.Microsecond))
	record.RenewTime = metav1.NewTime(record.RenewTime.Truncate(time.Microsecond))
	c.version++
	c.record, c.seen = record, c.version
}

func (c *candidate) RecordEvent(string) {}
func (c *candidate) Describe() string   { return "x" }
func (c *candidate) Identity() string   { return c.name }

// replica runs client-go's elector by a lock of its Leadership.
type replica struct {
	*candidate
	*Leadership
	cancel context.CancelFunc
	done   chan struct{} // the elector has ended
}

func newReplica(s *shared, name string) *replica {
	return &replica{candidate: &candidate{shared: s, name: name}, Leadership: New(deadline), done: make(chan struct{})}
}

// elect runs until it is cancelled or loses.
func (r *replica) elect(t *testing.T) {
	t.Helper()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: r.Lock(r.candidate), LeaseDuration: duration, RenewDeadline: deadline, RetryPeriod: retry, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { r.TakeUp() }, OnStoppedLeading: func() {}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(t.Context())
	go func() {
		defer close(r.done)
		elector.Run(ctx)
	}()
	t.Cleanup(func() { r.cancel(); <-r.done })
}

// passes waits until so much of the bubble's time has gone by.
func passes(d time.Duration) { <-time.After(d) }
