package lease

import (
	"container/list"
	"context"
	"time"
)

// lines are the requests that wait, by what they consider. While one waits there is no
// Proxy that it could be granted: whatever becomes free goes to those who wait first.
type lines struct {
	of      map[string]*line // by the query's text
	waiting int
	came    int64 // counts arrivals
}

// line is those that consider the same, in the order of their arrival.
type line struct {
	query   query
	waiters *list.List // of *waiter
}

// waiter is a request that waits, or several with one idempotency key that share what
// it is granted.
type waiter struct {
	ask     ask
	line    *line
	place   *list.Element
	number  int64 // of its arrival
	sharers int   // that have not been answered
	heard   bool  // one of them was, with the lease
	done    chan struct{}
	record  *record // set before done is closed, unless err is
	err     error
}

func (l *lines) join(a ask) *waiter {
	ln := l.of[a.query.text]
	if ln == nil {
		ln = &line{query: a.query, waiters: list.New()}
		l.of[a.query.text] = ln
	}
	l.came++
	l.waiting++
	w := &waiter{ask: a, line: ln, number: l.came, sharers: 1, done: make(chan struct{})}
	w.place = ln.waiters.PushBack(w)
	return w
}

func (l *lines) part(w *waiter) {
	l.waiting--
	w.line.waiters.Remove(w.place)
	if w.line.waiters.Len() == 0 {
		delete(l.of, w.line.query.text)
	}
}

// wait is until the waiter is granted a lease, the time is over, or ctx ends.
func (s *Store) wait(ctx context.Context, w *waiter, most time.Duration) (Lease, error) {
	over := time.NewTimer(most)
	defer over.Stop()
	select {
	case <-w.done:
	case <-over.C:
	case <-ctx.Done():
	}
	now := s.enter() // which may grant it
	defer s.leave(now)
	w.sharers--
	waits := w.record == nil && w.err == nil
	if waits && w.sharers == 0 {
		s.lines.part(w)
		s.keys.giveUp(w.ask)
	}
	switch {
	case ctx.Err() != nil:
		if w.record != nil && w.sharers == 0 && !w.heard {
			s.withdraw(w, now)
		}
		return Lease{}, context.Cause(ctx)
	case w.err != nil:
		return Lease{}, w.err
	case w.record != nil && w.record.state == active:
		w.heard = true
		return s.read(w.record), nil
	}
	// There is one only if the lease was over before this request woke up.
	p, none := s.search(w.ask, now)
	if p == nil {
		return Lease{}, none
	}
	if err := s.Leading(); err != nil {
		return Lease{}, err
	}
	return s.read(s.grant(w.ask, p.slot, now)), nil
}

// withdraw takes back a lease that nobody has heard of.
func (s *Store) withdraw(w *waiter, now instant) {
	if w.record.state == active {
		s.end(w.record, now, released)
	}
	s.forget(w.record)
	s.keys.forget(w.ask)
}

// free notes a Proxy that waiters may have now who could not before.
func (s *Store) free(sl *slot) {
	if s.lines.waiting > 0 && !sl.freed {
		sl.freed = true
		s.freed = append(s.freed, sl)
	}
}

// offer is a freed slot, in the heap by the arrival of the first that it fits.
type offer struct{ slot *slot }

func (offer) moved(int) {}

// serve grants what has become free to those who wait, the first to come first; each
// gets the best for it, like any request.
func (s *Store) serve(now instant) {
	if s.lines.waiting > 0 && s.Leading() != nil {
		s.dismiss(ErrNotLeading)
	}
	if len(s.freed) == 0 {
		return
	}
	var offers deadlines[offer]
	for _, sl := range s.freed {
		sl.freed = false
		if w := s.firstFor(sl); w != nil {
			offers.add(instant(w.number), offer{sl})
		}
	}
	clear(s.freed)
	s.freed = s.freed[:0]
	for offers.len() > 0 {
		top := offers.h[0]
		w := s.firstFor(top.what.slot)
		switch {
		case w == nil:
			offers.drop(0)
		case instant(w.number) != top.at: // others were served since
			offers.move(0, instant(w.number))
		default:
			p, _ := s.search(w.ask, now)
			s.settle(w, s.grant(w.ask, p.slot, now), nil)
		}
	}
}

// firstFor is the first to come of those whom the slot's Proxy fits now, or nil.
func (s *Store) firstFor(sl *slot) *waiter {
	if sl.gone || sl.rank.class() != isFree {
		return nil
	}
	var first *waiter
	for _, ln := range s.lines.of {
		if !ln.query.matches(sl) {
			continue
		}
		for e := ln.waiters.Front(); e != nil; e = e.Next() {
			w := e.Value.(*waiter)
			if first != nil && first.number < w.number {
				break
			}
			if s.targets[w.ask.req.Target].cooldown(sl) == nil {
				first = w
				break
			}
		}
	}
	return first
}

// settle answers a waiter.
func (s *Store) settle(w *waiter, r *record, err error) {
	w.record, w.err = r, err
	s.lines.part(w)
	close(w.done)
}

// dismiss answers all waiters with an error.
func (s *Store) dismiss(err error) {
	for _, ln := range s.lines.of {
		for e := ln.waiters.Front(); e != nil; e = ln.waiters.Front() {
			w := e.Value.(*waiter)
			s.keys.giveUp(w.ask)
			s.settle(w, nil, err)
		}
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
