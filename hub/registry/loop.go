package registry

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// loop is what a spoke's goroutine waits for and has under way.
type loop struct {
	*spoke
	contact  *time.Ticker
	contacts int
	looked   time.Time // when the spoke was contacted last
	retry    *time.Timer
	backoff  time.Duration
	trying   chan attempt // nil: nothing is under way
	cancel   context.CancelFunc
	about    *credential // what is tried
}

// suspectInterval is between two looks at a spoke whose informers fail.
const suspectInterval = 2 * time.Second

// attemptTimeout bounds all of an attempt, whatever its requests take each.
const attemptTimeout = 2 * time.Minute

// attempt is the outcome of one connect, or of one review of the connection
// that is there.
type attempt struct {
	want *credential
	// reviewed is the connection that was reviewed; nil: a new one was to be made.
	reviewed *connection
	conn     *connection
	id       identity
	err      error
}

// step waits for the next thing to happen and acts on it.
func (l *loop) step(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-l.contact.C:
		l.contacts++
		l.lookAt(ctx, true)
	case <-l.suspect:
		// Not as often as informers try.
		if l.conn != nil && l.conn.broken.Load() && time.Since(l.looked) > min(suspectInterval, l.registry.checkInterval) {
			l.lookAt(ctx, false)
		}
	case <-l.yield:
		l.giveUp()
		l.connect(ctx)
	case <-l.lead:
		l.takeOver(ctx)
	case <-l.changed:
		l.backoff = backoffFirst
		if l.trying != nil && l.about != l.wanted() {
			l.cancel() // or the new one would wait for what is not wanted any more
		}
		l.connect(ctx)
	case <-l.retry.C:
		l.connect(ctx)
	case done := <-l.trying:
		l.trying = nil
		l.adopt(ctx, done)
	}
}

// connect tries what is wanted, if that is not what serves.
func (l *loop) connect(ctx context.Context) {
	want := l.wanted()
	if want == nil || l.conn != nil && l.conn.cred == want && !l.State().isLost() {
		return
	}
	l.try(ctx, want)
}

// lookAt contacts the spoke, and watches over a connection that answers: one
// that had been lost, or whose informers have lost their watch, is renewed, since
// a fresh list is the only full view; any other is reviewed now and then.
func (l *loop) lookAt(ctx context.Context, counts bool) {
	if l.conn == nil {
		return
	}
	l.looked = time.Now()
	l.tellOthers()
	if !l.check(ctx, counts) {
		return
	}
	switch st := l.State(); {
	case l.conn.broken.Load() || st.isLost():
		l.try(ctx, l.conn.cred)
	case l.contacts%reviewEvery == 0 || st.doubts > 0:
		l.review(ctx)
	}
}

func (l *loop) try(ctx context.Context, want *credential) {
	l.begin(ctx, want, func(bound context.Context) attempt {
		conn, err := connect(ctx, bound, want, l.registry.Options, l.log, l.suspect, l.admit)
		return attempt{want: want, conn: conn, err: err}
	})
}

func (l *loop) review(ctx context.Context) {
	conn := l.conn
	l.begin(ctx, conn.cred, func(bound context.Context) attempt {
		id, err := conn.preflight(bound)
		if errors.Is(bound.Err(), context.DeadlineExceeded) {
			err = errAttempt
		}
		return attempt{want: conn.cred, reviewed: conn, id: id, err: err}
	})
}

// begin runs an attempt, unless one is under way: its end leads to the next.
func (l *loop) begin(ctx context.Context, about *credential, run func(context.Context) attempt) {
	if l.trying != nil {
		return
	}
	result := make(chan attempt, 1)
	bound, cancel := context.WithTimeout(ctx, attemptTimeout)
	l.trying, l.about, l.cancel = result, about, cancel
	go func() {
		defer cancel()
		result <- run(bound)
	}()
}

// adopt makes of an attempt what there is to make, and goes on to what was
// offered meanwhile.
func (l *loop) adopt(ctx context.Context, a attempt) {
	if a.reviewed != nil && a.reviewed != l.conn || !l.renews(a) && l.wanted() != a.want {
		// The connection has gone, or something else was offered: this outcome is
		// nobody's news.
		if a.conn != nil {
			a.conn.sever()
		}
		l.connect(ctx)
		return
	}
	if a.err == nil && a.conn != nil {
		a.err = l.take(ctx, a.conn)
	}
	switch {
	case errors.Is(a.err, context.Canceled):
		l.connect(ctx) // for what is wanted now
	case a.err == nil:
		l.succeeded(a)
		l.connect(ctx)
	case l.renews(a):
		l.failedToRenew(a)
		if l.wanted() != a.want || l.conn == nil {
			l.connect(ctx)
		}
	default:
		reason, message := explain(a.err)
		l.update(func(st *State) {
			if l.want != a.want {
				return // something else was offered meanwhile, and refused at sight
			}
			l.settled = l.settled || reason != v1alpha1.ReasonUnreachable && reason != v1alpha1.ReasonConnecting
			st.fails(reason, message)
		})
		l.retry.Reset(l.backoff)
		l.backoff = min(2*l.backoff, backoffCap)
	}
}

// renews says that the attempt was about the credential that serves.
func (l *loop) renews(a attempt) bool { return l.conn != nil && a.want == l.conn.cred }

func (l *loop) succeeded(a attempt) {
	l.backoff = backoffFirst
	now := time.Now()
	l.update(func(st *State) {
		if a.reviewed != nil {
			st.reviewed(a.id.version)
			return
		}
		l.settled, l.serves = true, a.want
		st.connected(a.want.key, a.want.server(), strings.Join(a.want.namespaces, ", "), a.conn.identity.version, a.conn.identity.clusterUID, now)
	})
}

// failedToRenew takes note of a fault of the connection that is there. One that
// is no fault, but the cluster's belonging to another spoke, ends it.
func (l *loop) failedToRenew(a attempt) {
	var duplicate *duplicateError
	if errors.As(a.err, &duplicate) {
		if l.giveUp(); l.conn == nil {
			return
		}
	}
	reason, message := explain(a.err)
	now := time.Now()
	l.update(func(st *State) { st.doubted(reason, message, a.reviewed == nil, now) })
}

// end closes what the goroutine holds; an attempt under way ends with its context.
func (l *loop) end() {
	l.contact.Stop()
	l.retry.Stop()
	if l.trying != nil {
		if last := <-l.trying; last.conn != nil {
			last.conn.sever()
		}
	}
	l.drop()
}
