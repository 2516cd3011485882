package registry

import (
	"context"
	"time"
)

// loop is what a spoke's goroutine waits for and has under way.
type loop struct {
	*spoke
	contact  *time.Ticker
	contacts int
	retry    *time.Timer
	backoff  time.Duration
	trying   chan attempt // nil: nothing is under way
}

// step waits for the next thing to happen and acts on it.
func (l *loop) step(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-l.contact.C:
		l.contacts++
		if l.conn != nil && l.check(ctx, true) {
			l.watchOver(ctx)
		}
	case <-l.suspect:
		// Not more often than contacts, whatever the informer says.
		if l.conn != nil && l.conn.broken.Load() && time.Since(l.adopted) > l.registry.checkInterval && l.check(ctx, false) {
			l.watchOver(ctx)
		}
	case <-l.yield:
		l.giveUp()
		l.connect(ctx)
	case <-l.changed:
		l.backoff = backoffFirst
		l.connect(ctx)
	case <-l.retry.C:
		l.connect(ctx)
	case done := <-l.trying:
		l.trying = nil
		if !l.adopt(ctx, done) {
			l.retry.Reset(l.backoff)
			l.backoff = min(2*l.backoff, backoffCap)
		} else if want := l.wanted(); want != done.want { // offered meanwhile
			l.connect(ctx)
		} else {
			l.backoff = backoffFirst
		}
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

// watchOver is for a connection that answers: one that had been lost, or whose
// informers have lost their watch, is renewed, since a fresh list is the only
// full view; any other is reviewed now and then.
func (l *loop) watchOver(ctx context.Context) {
	switch {
	case l.conn.broken.Load() || l.State().isLost():
		l.try(ctx, l.conn.cred)
	case l.contacts%reviewEvery == 0 || l.State().doubts > 0:
		l.review(ctx)
	}
}

func (l *loop) try(ctx context.Context, want *credential) {
	l.begun(func() attempt {
		conn, err := connect(ctx, want, l.registry.Options, l.log, l.suspect, l.admit)
		return attempt{want: want, conn: conn, err: err}
	})
}

func (l *loop) review(ctx context.Context) {
	conn := l.conn
	l.begun(func() attempt {
		id, err := conn.preflight(ctx)
		return attempt{want: conn.cred, review: true, id: id, err: err}
	})
}

// begun runs an attempt, unless one is under way: its end leads to the next.
func (l *loop) begun(run func() attempt) {
	if l.trying != nil {
		return
	}
	result := make(chan attempt, 1)
	l.trying = result
	go func() { result <- run() }()
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
