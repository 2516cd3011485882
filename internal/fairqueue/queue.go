package fairqueue

import (
	"container/heap"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

// dueAtOnce is how many delayed items are made ready under one hold of the lock:
// those who add, some of them under locks of their own, wait for no more.
const dueAtOnce = 1000

// Options configure a queue. Their zero values work.
type Options[T comparable] struct {
	// Name is the queue's in the workqueue metrics: the controller's, as NewQueue
	// is given it. Empty: no metrics.
	Name string
	// Group says which group an item belongs to, always the same one. It must be
	// quick and must not call the queue. Nil: all are of one group.
	Group func(T) string
	// Most is how many items of one group may be under way at once. Less than the
	// number of workers, or one group that hangs can hold all of them. Zero: no
	// bound, only turns.
	Most int
	// RateLimiter says how long AddRateLimited waits. Nil: per item, from 5 ms,
	// doubling, to 1000 s, which is controller-runtime's own. It must not call the
	// queue.
	RateLimiter workqueue.TypedRateLimiter[T]
}

// Queue is a fair workqueue. Create it with New; all methods may be called from
// any goroutine.
type Queue[T comparable] struct {
	groupOf func(T) string
	limiter workqueue.TypedRateLimiter[T]
	meter   *meter[T]

	mu sync.Mutex
	// One Signal for every item that became takeable: no step makes more than one
	// so, see order.
	wake    *sync.Cond
	entries map[T]*entry[T]
	order   order[T]
	delays  delays[T]
	asked   uint64
	timer   *time.Timer // of the earliest delay; nil until there was one
	shut    bool
}

var _ priorityqueue.PriorityQueue[string] = (*Queue[string])(nil)

// New returns a queue. It has no goroutine unless it has a name; ShutDown ends
// those that it has then.
func New[T comparable](o Options[T]) *Queue[T] {
	if o.Group == nil {
		o.Group = func(T) string { return "" }
	}
	if o.RateLimiter == nil {
		o.RateLimiter = workqueue.NewTypedItemExponentialFailureRateLimiter[T](5*time.Millisecond, 1000*time.Second)
	}
	q := &Queue[T]{
		groupOf: o.Group,
		limiter: o.RateLimiter,
		meter:   newMeter[T](o.Name),
		entries: map[T]*entry[T]{},
		order:   order[T]{most: o.Most, groups: map[string]*group[T]{}},
	}
	q.wake = sync.NewCond(&q.mu)
	return q
}

// Add makes an item ready, at priority 0. A delay that it waited out is over.
func (q *Queue[T]) Add(item T) { q.AddWithOpts(priorityqueue.AddOpts{}, item) }

// AddAfter makes an item ready after a while, at priority 0, or at once where
// after is not positive. Of several waits the one that ends first counts.
func (q *Queue[T]) AddAfter(item T, after time.Duration) {
	q.AddWithOpts(priorityqueue.AddOpts{After: after}, item)
}

// AddRateLimited makes an item ready after what the rate limiter says.
func (q *Queue[T]) AddRateLimited(item T) {
	q.AddWithOpts(priorityqueue.AddOpts{RateLimited: true}, item)
}

// AddWithOpts adds items, of which each keeps the earliest ready time and the
// highest priority that was asked for since it was last taken. Rate limited and
// with a delay: the shorter counts, as in controller-runtime's own queue.
func (q *Queue[T]) AddWithOpts(o priorityqueue.AddOpts, items ...T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.shut {
		return
	}
	for _, item := range items {
		after := o.After
		if o.RateLimited {
			if limit := q.limiter.When(item); after <= 0 || limit < after {
				after = limit
			}
		}
		if after > 0 {
			q.meter.delayed(item)
		}
		q.add(item, ptr.Deref(o.Priority, 0), after)
	}
}

func (q *Queue[T]) add(item T, priority int, after time.Duration) {
	e := q.entries[item]
	if e == nil {
		e = &entry[T]{item: item, group: q.order.group(q.groupOf(item))}
		q.entries[item] = e
	}
	if e.place == nowhere || priority > e.priority {
		e.priority = priority
	}
	switch {
	case e.place == ready && e.underWay: // Done puts it into its line
	case e.place == ready:
		q.order.raise(e)
	case after > 0:
		q.delay(e, time.Now().Add(after))
	default:
		q.ready(e)
	}
}

// ready makes an entry takeable, or has Done make it so.
func (q *Queue[T]) ready(e *entry[T]) {
	if e.place == delayed {
		heap.Remove(&q.delays, e.index)
	}
	e.place = ready
	q.meter.ready(e.item)
	if !e.underWay {
		q.order.join(e)
		q.wake.Signal()
	}
}

// delay lets an entry wait until then, unless it waits for less already.
func (q *Queue[T]) delay(e *entry[T], until time.Time) {
	if e.place == delayed && !until.Before(e.at) {
		return
	}
	q.asked++
	e.at, e.asked = until, q.asked
	if e.place == delayed {
		heap.Fix(&q.delays, e.index)
	} else {
		e.place = delayed
		heap.Push(&q.delays, e)
	}
	if e.index == 0 {
		q.setTimer()
	}
}

// setTimer has due called when the earliest delay is over. A timer that goes off
// too early, because what it was set for was made ready, finds nothing due.
func (q *Queue[T]) setTimer() {
	if len(q.delays) == 0 {
		return
	}
	wait := time.Until(q.delays[0].at)
	if q.timer == nil {
		q.timer = time.AfterFunc(wait, q.due)
		return
	}
	q.timer.Reset(wait)
}

func (q *Queue[T]) due() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.shut {
		return
	}
	now := time.Now()
	for n := 0; n < dueAtOnce && len(q.delays) > 0 && !q.delays[0].at.After(now); n++ {
		q.ready(q.delays[0])
	}
	q.setTimer()
}

// Get takes the next item, and waits for one. The worker calls Done with it. After
// ShutDown it returns true, whatever is left.
func (q *Queue[T]) Get() (item T, shutdown bool) {
	item, _, shutdown = q.GetWithPriority()
	return item, shutdown
}

// GetWithPriority is Get, and says at which priority the item was taken.
func (q *Queue[T]) GetWithPriority() (item T, priority int, shutdown bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.shut && !q.order.takeable() {
		q.wake.Wait()
	}
	if q.shut {
		return item, 0, true
	}
	e := q.order.take()
	e.place, e.underWay = nowhere, true
	q.meter.taken(e.item)
	return e.item, e.priority, false
}

// Done says that the worker has finished with an item. It counts once per item
// taken.
func (q *Queue[T]) Done(item T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.entries[item]
	if e == nil || !e.underWay {
		return
	}
	e.underWay = false
	q.meter.done(item)
	q.order.leave(e.group)
	switch e.place {
	case ready:
		q.order.join(e)
	case nowhere:
		delete(q.entries, item)
		q.order.forget(e)
	}
	q.wake.Signal() // there is one place more, or one item more in a group with room
}

// Forget ends the rate limiter's count of an item's failures.
func (q *Queue[T]) Forget(item T) { q.limiter.Forget(item) }

// NumRequeues is the rate limiter's count of an item's failures.
func (q *Queue[T]) NumRequeues(item T) int { return q.limiter.NumRequeues(item) }

// Len is the number of items that are ready and not under way, those of full
// groups included.
func (q *Queue[T]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.order.waiting
}

// ShutDown ends every Get, now and later, and has adds ignored. What is under way
// may still be Done; what waits is dropped, as in controller-runtime's own queue:
// the next process lists everything anew.
func (q *Queue[T]) ShutDown() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.shut {
		return
	}
	q.shut = true
	if q.timer != nil {
		q.timer.Stop()
	}
	q.meter.shutDown()
	q.wake.Broadcast()
}

// ShutDownWithDrain is ShutDown, as in controller-runtime's own queue: its
// controller waits for its workers itself.
func (q *Queue[T]) ShutDownWithDrain() { q.ShutDown() }

// ShuttingDown says whether ShutDown was called.
func (q *Queue[T]) ShuttingDown() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.shut
}
