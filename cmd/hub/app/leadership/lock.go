package leadership

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

var (
	errOver = errors.New("another replica has led meanwhile, or this one has given the Lease up: it does not take it again")
	errBusy = errors.New("writes are still under way: the Lease is left to run out")
)

// lock is a resource lock that notes when each renewal began. One elector uses it, from
// one goroutine.
type lock struct {
	resourcelock.Interface
	of *Leadership

	asked *instant                           // when what a renewal is made from was read
	mine  *resourcelock.LeaderElectionRecord // as it was written last; nil: never
}

// Lock returns the lock by which an elector keeps l up to date.
func (l *Leadership) Lock(within resourcelock.Interface) resourcelock.Interface {
	return &lock{Interface: within, of: l}
}

// Get implements resourcelock.Interface. The elector takes a Lease up again that
// somebody else has held and given up while this process stood still, and does not
// find it worth telling. But its leases and cooldowns are long past by then.
func (k *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	at := k.of.now()
	record, raw, err := k.Interface.Get(ctx)
	switch {
	case err == nil:
		k.asked = &at
		if k.mine != nil && !sameTerm(k.mine, record) {
			k.of.End()
		}
	case apierrors.IsNotFound(err) && k.mine != nil:
		k.of.End() // whoever makes it anew leads, and may have
	}
	return record, raw, err
}

// sameTerm says that nobody else has held the Lease between the two.
func sameTerm(a, b *resourcelock.LeaderElectionRecord) bool {
	const stored = time.Microsecond // as precisely as the API server has it
	return a.HolderIdentity == b.HolderIdentity && a.LeaderTransitions == b.LeaderTransitions &&
		a.AcquireTime.Truncate(stored).Equal(b.AcquireTime.Truncate(stored))
}

// Create implements resourcelock.Interface.
func (k *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return k.renew(ctx, record, k.Interface.Create)
}

// Update implements resourcelock.Interface. An elector writes no holder to give the
// Lease up.
func (k *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" {
		return k.release(ctx, record)
	}
	return k.renew(ctx, record, k.Interface.Update)
}

func (k *lock) renew(ctx context.Context, record resourcelock.LeaderElectionRecord, write func(context.Context, resourcelock.LeaderElectionRecord) error) error {
	if k.of.over.Load() {
		return errOver
	}
	began := k.of.now()
	if k.asked != nil {
		began, k.asked = *k.asked, nil // the time in the record is older than that
	}
	if err := write(ctx, record); err != nil {
		return err
	}
	k.mine = &record
	k.of.renewed.Store(&began)
	return nil
}

// release gives the Lease up when nothing acts on it any more. The elector also does
// so when it could not renew, with everything still running, and after a stop that
// took too long.
func (k *lock) release(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	k.of.End()
	if err := k.of.rest(ctx); err != nil {
		return err
	}
	return k.Interface.Update(ctx, record)
}

// rest waits until no write is under way.
func (l *Leadership) rest(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for l.writes.Load() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errBusy, ctx.Err())
		}
	}
	return nil
}
