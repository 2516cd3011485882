// Package leadership knows at every instant whether this process leads.
//
// client-go's elector finds out that leadership is lost when it next looks, and ends
// the process then. What grants leases cannot wait for that: a goroutine that was not
// scheduled, or a machine that was suspended, would grant what another replica grants
// as well. So the instant at which each renewal of the Lease began is noted (lock.go),
// and whoever asks compares it with the clocks of that very moment. No timer has to
// fire, and no goroutine to run, for leadership to end in time.
//
// A replica may take the Lease over one lease duration after it has seen the last
// renewal, which it cannot see before it began. Leadership here ends a renew deadline
// after that beginning, which is shorter. The rest is for clocks that run unevenly.
//
// Nothing here can call a request back that is on its way. Those that write pass a
// fence (fence.go), which lets none out afterwards, and the Lease is given up only when
// none is under way.
package leadership

import (
	"sync/atomic"
	"time"
)

// Leadership of one process. A nil one is that of a hub that elects nobody: it leads
// from its start to its end. All methods may be called from any goroutine.
type Leadership struct {
	deadline time.Duration
	now      func() instant

	renewed atomic.Pointer[instant] // when the last renewal that worked began; nil: none has
	taken   atomic.Bool             // TakeUp was called
	over    atomic.Bool             // for good
	writes  atomic.Int64            // that are under way
}

// New returns a Leadership that lasts for a deadline from the beginning of each renewal.
func New(deadline time.Duration) *Leadership {
	started := time.Now()
	return &Leadership{deadline: deadline, now: func() instant {
		t := time.Now()
		return instant{ran: t.Sub(started), wall: t.Round(0)}
	}}
}

// instant is a moment by both clocks. The monotonic one stands still while a machine
// is suspended; the wall clock may be set back.
type instant struct {
	ran  time.Duration
	wall time.Time
}

// since is how much later i is than o, by the clock that says more.
func (i instant) since(o instant) time.Duration { return max(i.ran-o.ran, i.wall.Sub(o.wall)) }

// Holds says that the Lease is this process's, and no other can have taken it yet.
func (l *Leadership) Holds() bool {
	if l == nil {
		return true
	}
	began := l.renewed.Load()
	return began != nil && !l.over.Load() && l.now().since(*began) < l.deadline
}

// Leading says that this process leads: it holds the Lease, and has taken over what
// the leader before it has left.
func (l *Leadership) Leading() bool { return l == nil || l.taken.Load() && l.Holds() }

// TakeUp says that what the leader before has left is taken over.
func (l *Leadership) TakeUp() {
	if l != nil {
		l.taken.Store(true)
	}
}

// Held says that this process has held the Lease at some time.
func (l *Leadership) Held() bool { return l != nil && l.renewed.Load() != nil }

// End ends leadership for good: this process does not lead again.
func (l *Leadership) End() {
	if l != nil {
		l.over.Store(true)
	}
}
