package leadership

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func (r *replica) term(transitions int) resourcelock.LeaderElectionRecord {
	now := metav1.Now()
	return resourcelock.LeaderElectionRecord{HolderIdentity: r.name, LeaseDurationSeconds: 15, AcquireTime: now, RenewTime: now, LeaderTransitions: transitions}
}

func TestAHubThatElectsNobodyLeadsFromItsStartAndAlways(t *testing.T) {
	var l *Leadership
	l.TakeUp()
	l.End()
	if !l.Leading() || !l.Holds() || l.Held() {
		t.Errorf("leading %v, holds %v, held %v", l.Leading(), l.Holds(), l.Held())
	}
}

func TestNobodyGrantsBeforeWhatTheLeaderBeforeHasLeftIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(&shared{}, "a")
		l := r.Lock(r.candidate)
		if r.Leading() || r.Holds() || r.Held() {
			t.Error("leads before it was elected")
		}
		if err := l.Create(t.Context(), r.term(0)); err != nil {
			t.Fatal(err)
		}
		if r.Leading() || !r.Holds() {
			t.Errorf("leading %v, holds %v", r.Leading(), r.Holds())
		}
		if r.TakeUp(); !r.Leading() {
			t.Error("does not lead once it has taken over")
		}
	})
}

// What counts is when the renewal began: the API server may have had it at once, and
// another replica seen it, however late the answer came.
func TestLeadershipEndsADeadlineAfterTheLastRenewalBegan(t *testing.T) {
	slowly := func(d time.Duration) func(context.Context, string) error {
		return func(context.Context, string) error { passes(d); return nil }
	}
	for _, tc := range []struct {
		name          string
		before, after func(context.Context, string) error
		read          bool // what the renewal is made from is read first
		left          time.Duration
	}{
		{name: "an answer that comes at once", left: deadline},
		{name: "a request that is slow to get there", before: slowly(3 * time.Second), left: deadline - 3*time.Second},
		{name: "an answer that is slow to come", after: slowly(4 * time.Second), left: deadline - 4*time.Second},
		{name: "a slow read before it, as the record has its time from before", after: slowly(2 * time.Second), read: true, left: deadline - 4*time.Second},
		{name: "an answer that comes too late", after: slowly(11 * time.Second), left: 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReplica(&shared{}, "a")
				r.TakeUp()
				l := r.Lock(r.candidate)
				if err := l.Create(t.Context(), r.term(0)); err != nil {
					t.Fatal(err)
				}
				mine := r.record
				passes(deadline) // so that only the next renewal counts
				if r.Leading() {
					t.Fatal("leads a deadline after the first renewal")
				}
				r.on(tc.before, tc.after)
				if tc.read {
					if _, _, err := l.Get(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if err := l.Update(t.Context(), mine); err != nil {
					t.Fatal(err)
				}
				if tc.left == 0 {
					if r.Leading() {
						t.Error("leads by a renewal that began a deadline ago")
					}
					return
				}
				if passes(tc.left - time.Nanosecond); !r.Leading() {
					t.Error("does not lead to the end")
				}
				if passes(time.Nanosecond); r.Leading() || r.Holds() {
					t.Error("leads a deadline after the renewal began")
				}
			})
		})
	}
}

func TestARenewalThatFailsProlongsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(&shared{}, "a")
		r.TakeUp()
		l := r.Lock(r.candidate)
		if err := l.Create(t.Context(), r.term(0)); err != nil {
			t.Fatal(err)
		}
		passes(deadline / 2)
		r.on(nil, func(context.Context, string) error { return errCut })
		if err := l.Update(t.Context(), r.record); !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		if passes(deadline/2 - 1); !r.Leading() {
			t.Error("a failed renewal costs what was there")
		}
		if passes(1); r.Leading() {
			t.Error("a failed renewal counts")
		}
	})
}

func TestASuspendedMachineOrAClockThatIsSetProlongsNothing(t *testing.T) {
	for _, tc := range []struct {
		name      string
		ran, wall time.Duration // since the renewal
		leads     bool
	}{
		{"both clocks run", 9 * time.Second, 9 * time.Second, true},
		{"both clocks have run", 10 * time.Second, 10 * time.Second, false},
		{"the machine was suspended, and the monotonic clock with it", time.Second, time.Hour, false},
		{"the wall clock was set back", 10 * time.Second, -time.Hour, false},
		{"the wall clock was set back, and there is time", 9 * time.Second, -time.Hour, true},
		{"the wall clock was set forward", time.Second, 10 * time.Second, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newReplica(&shared{}, "a")
			r.TakeUp()
			at := instant{ran: time.Minute, wall: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
			r.now = func() instant { return at }
			if err := r.Lock(r.candidate).Create(t.Context(), r.term(0)); err != nil {
				t.Fatal(err)
			}
			at.ran, at.wall = at.ran+tc.ran, at.wall.Add(tc.wall)
			if r.Leading() != tc.leads || r.Holds() != tc.leads {
				t.Errorf("leading %v, holds %v, want %v", r.Leading(), r.Holds(), tc.leads)
			}
		})
	}
}

// The elector itself takes such a Lease up again: what this process has in memory would
// be that of a leader long past.
func TestWhoeverStoodStillWhileAnotherLedDoesNotLeadAgain(t *testing.T) {
	for _, tc := range []struct {
		name      string
		meanwhile func(r, other *replica)
		again     bool
	}{
		{"another has led, and given the Lease up", func(r, other *replica) {
			theirs := other.term(1)
			theirs.HolderIdentity = ""
			theirs.LeaseDurationSeconds = 1
			r.store(theirs)
		}, false},
		{"another leads", func(r, other *replica) { r.store(other.term(1)) }, false},
		{"the Lease was deleted", func(r, _ *replica) { r.version, r.record = 0, resourcelock.LeaderElectionRecord{} }, false},
		{"the Lease was deleted, and another has made it and given it up", func(r, other *replica) {
			theirs := other.term(0)
			theirs.HolderIdentity = ""
			r.store(theirs)
		}, false},
		{"nobody has", func(*replica, *replica) {}, true},
		{"nobody has, and a renewal was lost on its way back", func(r, _ *replica) {
			renewed := r.record
			renewed.RenewTime = metav1.Now()
			r.store(renewed)
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &shared{}
				r, other := newReplica(s, "a"), newReplica(s, "b")
				r.TakeUp()
				l := r.Lock(r.candidate)
				if err := l.Create(t.Context(), r.term(0)); err != nil {
					t.Fatal(err)
				}
				passes(time.Hour)
				seen := r.seen
				tc.meanwhile(r, other)
				r.seen = seen
				// As the elector goes about it.
				err := l.Update(t.Context(), r.term(0))
				if err != nil {
					var record *resourcelock.LeaderElectionRecord
					record, _, err = l.Get(t.Context())
					if err == nil {
						mine := r.term(record.LeaderTransitions)
						mine.AcquireTime = record.AcquireTime
						err = l.Update(t.Context(), mine)
					} else {
						err = l.Create(t.Context(), r.term(0))
					}
				}
				if r.Leading() != tc.again || (err == nil) != tc.again {
					t.Errorf("leads %v (%v), want %v", r.Leading(), err, tc.again)
				}
				if !tc.again && !errors.Is(err, errOver) {
					t.Errorf("it says %v", err)
				}
			})
		})
	}
}
