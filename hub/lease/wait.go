package lease

import (
	"container/list"
	"context"
	"slices"
	"time"
)

// lines are the requests that wait. While one waits there is no Proxy that it could be
// granted: whatever becomes free goes to those who wait first.
type lines struct {
	of      map[lineKey]*line
	all     []*line
	waiting int   // waiters in all lines
	held    int   // requests that wait, those that share a waiter counted one by one
	came    int64 // counts arrivals
}

type lineKey struct{ query, target string }

// line is those that consider the same for the same target, in the order of their arrival.
type line struct {
	key     lineKey
	query   query
	waiters *list.List // of *waiter, and never empty
	at      int        // its place among all
}

// waiter is a request that waits, or several with one idempotency key that share what
// it is granted.
type waiter struct {
	ask     ask
	line    *line
	place   *list.Element
	number  int64 // of its arrival
	sharers int   // that have not been answered
	done    chan struct{}
	record  *record // set before done is closed, unless err is
	err     error
}

func (l *lines) join(a ask) *waiter {
	key := lineKey{a.query.text, a.req.Target}
	ln := l.of[key]
	if ln == nil {
		ln = &line{key: key, query: a.query, waiters: list.New(), at: len(l.all)}
		l.of[key] = ln
		l.all = append(l.all, ln)
	}
	l.came++
	l.waiting++
	w := &waiter{ask: a, line: ln, number: l.came, sharers: 1, done: make(chan struct{})}
	w.place = ln.waiters.PushBack(w)
	return w
}

func (l *lines) part(w *waiter) {
	l.waiting--
	ln := w.line
	ln.waiters.Remove(w.place)
	if ln.waiters.Len() > 0 {
		return
	}
	last := len(l.all) - 1
	l.all[ln.at], l.all[last].at = l.all[last], ln.at
	l.all[last] = nil
	l.all = l.all[:last]
	delete(l.of, ln.key)
}

// first is the one that has waited longest, or nil when the line has ended.
func (ln *line) first() *waiter {
	if e := ln.waiters.Front(); e != nil {
		return e.Value.(*waiter)
	}
	return nil
}

// wait is until the waiter is granted a lease, the time is over, or ctx ends.
func (s *Store) wait(ctx context.Context, w *waiter, most time.Duration) (l Lease, err error) {
	over := time.NewTimer(most)
	defer over.Stop()
	for w != nil {
		late := false
		select {
		case <-w.done:
		case <-over.C:
			late = true
		case <-ctx.Done():
		}
		l, w, err = s.wake(ctx, w, late)
	}
	return l, err
}

// wake answers one request of the waiter, or has it wait once more: what it was granted may
// have ended before it woke.
func (s *Store) wake(ctx context.Context, w *waiter, late bool) (Lease, *waiter, error) {
	now := s.enter() // which may grant it
	defer s.leave(now)
	w.sharers--
	s.lines.held--
	if w.record == nil && w.err == nil && w.sharers == 0 {
		s.lines.part(w)
		s.keys.giveUp(w)
	}
	switch {
	case ctx.Err() != nil:
		if w.record != nil && w.sharers == 0 {
			s.withdraw(w, now)
		}
		return Lease{}, nil, context.Cause(ctx)
	case w.err != nil:
		return Lease{}, nil, w.err
	case w.record != nil && w.record.state == active:
		w.record.told()
		return s.read(w.record), nil, nil
	}
	return s.answer(w.ask, !late, now)
}

// withdraw takes back a lease that nobody has heard of, if it is still there.
func (s *Store) withdraw(w *waiter, now instant) {
	r := w.record
	if r.heard || s.records[r.id] != r {
		return
	}
	if r.state == active {
		s.end(r, now, released)
	}
	s.forget(r)
	s.keys.forget(w.ask, r)
}

// free notes a Proxy that waiters may have now who could not before.
func (s *Store) free(sl *slot) {
	if s.lines.waiting > 0 && !sl.freed {
		sl.freed = true
		s.freed = append(s.freed, sl)
	}
}

// turn is a line while what has become free is shared out.
type turn struct {
	line *line
	next int // of what is free, the first that it has not passed over
}

func (*turn) moved(int) {}

// serve grants what has become free to those who wait, the first to come first; each
// gets the best for it, like any request. That takes no view: nothing else is free for
// anybody who waits.
func (s *Store) serve(now instant) {
	if s.lines.waiting > 0 && s.Leading() != nil {
		s.dismiss(ErrNotLeading)
	}
	if len(s.freed) == 0 {
		return
	}
	fresh := s.takeFreed()
	defer func() {
		for _, sl := range fresh {
			sl.freed = false
		}
	}()
	var turns deadlines[*turn] // by the arrival of the first of each line
	for _, ln := range s.lines.all {
		const few = 8 // or it is found out when it is the line's turn
		if len(fresh) > few || slices.ContainsFunc(fresh, func(sl *slot) bool { return s.fits(ln, sl) }) {
			turns.add(instant(ln.first().number), &turn{line: ln})
		}
	}
	var again []*slot // what was granted here, and may be once more
	for turns.len() > 0 {
		t := turns.h[0].what
		sl := s.offer(t, fresh, again)
		if sl == nil {
			turns.drop(0)
			continue
		}
		if s.Leading() != nil { // many grants take a while
			s.dismiss(ErrNotLeading)
			break
		}
		if sl.freed {
			sl.freed = false
			again = append(again, sl)
		}
		w := t.line.first()
		s.settle(w, s.grant(w.ask, sl, now), nil)
		if w = t.line.first(); w == nil {
			turns.drop(0)
		} else {
			turns.move(0, instant(w.number))
		}
	}
}

// takeFreed is what is free of what was noted, the best first.
func (s *Store) takeFreed() (fresh []*slot) {
	for _, sl := range s.freed {
		if sl.freed = !sl.gone && sl.rank.class() == isFree; sl.freed {
			fresh = append(fresh, sl)
		}
	}
	clear(s.freed)
	s.freed = s.freed[:0]
	slices.SortFunc(fresh, (*slot).compare)
	return fresh
}

// offer is the best that fits the line, of what is fresh or was granted just now; nil when
// there is none, and will be none as long as nothing else becomes free.
func (s *Store) offer(t *turn, fresh, again []*slot) (best *slot) {
	for t.next < len(fresh) && (!fresh[t.next].freed || !s.fits(t.line, fresh[t.next])) {
		t.next++
	}
	if t.next < len(fresh) {
		best = fresh[t.next]
	}
	for _, sl := range again {
		if sl.rank.class() == isFree && (best == nil || sl.compare(best) < 0) && s.fits(t.line, sl) {
			best = sl
		}
	}
	return best
}

// fits says that whoever waits in the line may have the slot's Proxy once it is free.
func (s *Store) fits(ln *line, sl *slot) bool {
	return ln.query.matches(sl) && s.targets[ln.key.target].cooldown(sl) == nil
}

// settle answers a waiter.
func (s *Store) settle(w *waiter, r *record, err error) {
	w.record, w.err = r, err
	s.lines.part(w)
	close(w.done)
}

// dismiss answers all waiters with an error.
func (s *Store) dismiss(err error) {
	for len(s.lines.all) > 0 {
		w := s.lines.all[0].first()
		s.keys.giveUp(w)
		s.settle(w, nil, err)
	}
}

// sweepInterval bounds how long a store that nobody calls keeps what has ended.
const sweepInterval = 10 * time.Second

// Run does what falls due until ctx ends; it always returns nil. Those who wait depend
// on it; for all others it bounds the memory alone, since every method looks at the clock
// itself.
func (s *Store) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.kick:
		case <-timer.C:
		}
		timer.Reset(s.sweep())
	}
}

// sweep does what is due and says when to come again.
func (s *Store) sweep() time.Duration {
	now := s.enter()
	defer s.leave(now)
	s.armed = s.next(now)
	return time.Duration(s.armed - now)
}

// next is when something falls due that cannot be left until somebody calls.
func (s *Store) next(now instant) instant {
	next := now + instant(sweepInterval)
	if s.lines.waiting == 0 {
		return next
	}
	if at, ok := s.turns.first(); ok {
		next = min(next, at)
	}
	if at, ok := s.rests.first(); ok {
		next = min(next, at)
	}
	return next
}

// arm wakes Run when it would wake too late.
func (s *Store) arm() {
	if s.lines.waiting > 0 && s.next(s.armed) < s.armed {
		select {
		case s.kick <- struct{}{}:
		default:
		}
	}
}
