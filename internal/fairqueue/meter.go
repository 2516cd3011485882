package fairqueue

import "k8s.io/client-go/util/workqueue"

// meter feeds the workqueue metrics that controller-runtime registers. Their
// provider can be reached from nowhere but a client-go queue that has a name, so
// the meter keeps one that holds what the fair queue holds, and counts. A nil
// meter counts nothing. Its calls are made under the queue's lock.
type meter[T comparable] struct {
	books *workqueue.Typed[T]
	next  *told[T]
	// delays is never told to wait: it is what counts retries.
	delays workqueue.TypedDelayingInterface[T]
}

func newMeter[T comparable](name string) *meter[T] {
	if name == "" {
		return nil
	}
	next := &told[T]{}
	return &meter[T]{
		books:  workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[T]{Name: name, Queue: next}),
		next:   next,
		delays: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[T]{Name: name, Queue: nothing[T]{}}),
	}
}

// ready counts an item that may be taken, or may be as soon as it is done.
func (m *meter[T]) ready(item T) {
	if m != nil {
		m.books.Add(item)
	}
}

// taken counts an item that a worker takes. Get does not wait: what is taken is
// in the books.
func (m *meter[T]) taken(item T) {
	if m != nil {
		m.next.item = item
		m.books.Get()
	}
}

func (m *meter[T]) done(item T) {
	if m != nil {
		m.books.Done(item)
	}
}

// delayed counts an item that was added with a delay.
func (m *meter[T]) delayed(item T) {
	if m != nil {
		m.delays.AddAfter(item, 0)
	}
}

func (m *meter[T]) shutDown() {
	if m != nil {
		m.books.ShutDown()
		m.delays.ShutDown()
	}
}

// told is the order of the books: what it was told is next. Which items are in
// them client-go knows.
type told[T comparable] struct {
	item T
	len  int
}

func (t *told[T]) Touch(T)  {}
func (t *told[T]) Push(T)   { t.len++ }
func (t *told[T]) Len() int { return t.len }
func (t *told[T]) Pop() T {
	t.len--
	return t.item
}

// nothing takes items and keeps none.
type nothing[T comparable] struct{ workqueue.TypedInterface[T] }

func (nothing[T]) Add(T)              {}
func (nothing[T]) ShutDown()          {}
func (nothing[T]) ShuttingDown() bool { return false }
