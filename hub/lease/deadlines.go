package lease

import (
	"container/heap"
	"time"
)

// deadlines is a heap of things that end, the first to end on top. Each knows
// its place, so that one which ends early leaves at once: lazily dropped
// entries would pile up under clients that take long leases and release them.
type deadlines[T any] struct{ h deadlineHeap[T] }

type deadline[T any] struct {
	at    time.Time
	place int
	what  T
}

func (d *deadlines[T]) len() int { return len(d.h) }

// first is the next to end, or nil.
func (d *deadlines[T]) first() *deadline[T] {
	if len(d.h) == 0 {
		return nil
	}
	return d.h[0]
}

// due is the next to end if its instant has come, or nil.
func (d *deadlines[T]) due(now time.Time) *deadline[T] {
	if first := d.first(); first != nil && !now.Before(first.at) {
		return first
	}
	return nil
}

func (d *deadlines[T]) add(at time.Time, what T) *deadline[T] {
	e := &deadline[T]{at: at, what: what}
	heap.Push(&d.h, e)
	return e
}

func (d *deadlines[T]) move(e *deadline[T], at time.Time) {
	e.at = at
	heap.Fix(&d.h, e.place)
}

func (d *deadlines[T]) drop(e *deadline[T]) { heap.Remove(&d.h, e.place) }

// deadlineHeap is what container/heap wants to see.
type deadlineHeap[T any] []*deadline[T]

func (h deadlineHeap[T]) Len() int           { return len(h) }
func (h deadlineHeap[T]) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h deadlineHeap[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *deadlineHeap[T]) Push(x any) {
	e := x.(*deadline[T])
	e.place = len(*h)
	*h = append(*h, e)
}

func (h *deadlineHeap[T]) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil // or the array would keep it alive
	*h = (*h)[:last]
	return e
}
