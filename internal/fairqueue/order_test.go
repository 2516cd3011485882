package fairqueue

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

var orders = map[string]struct {
	most int
	do   func(*Queue[string])
	want string
}{
	"nothing": {do: func(*Queue[string]) {}},
	"first in, first out": {
		do:   func(q *Queue[string]) { q.Add("a/1"); q.Add("a/2"); q.Add("a/3") },
		want: "a/1 a/2 a/3",
	},
	"an item waits once": {
		do:   func(q *Queue[string]) { q.Add("a/1"); q.Add("a/2"); q.Add("a/1") },
		want: "a/1 a/2",
	},
	"groups take turns": {
		do: func(q *Queue[string]) {
			q.AddWithOpts(priorityqueue.AddOpts{}, "a/1", "a/2", "a/3", "a/4", "b/1", "b/2", "c/1")
		},
		want: "a/1 b/1 c/1 a/2 b/2 a/3 a/4",
	},
	"no more of a group than it may have": {
		most: 2,
		do:   func(q *Queue[string]) { q.AddWithOpts(priorityqueue.AddOpts{}, "a/1", "a/2", "a/3", "b/1") },
		want: "a/1 b/1 a/2",
	},
	"done makes room": {
		most: 1,
		do: func(q *Queue[string]) {
			q.AddWithOpts(priorityqueue.AddOpts{}, "a/1", "a/2", "b/1", "b/2")
			q.Get()
			q.Get()
			q.Done("b/1")
		},
		want: "b/2",
	},
	"normal before low priority": {
		do:   func(q *Queue[string]) { low(q, "a/1", "a/2"); q.Add("a/3"); low(q, "a/4") },
		want: "a/3 a/1 a/2 a/4",
	},
	"a group with low priority alone has its turn": {
		do:   func(q *Queue[string]) { q.Add("a/1"); q.Add("a/2"); low(q, "b/1", "b/2") },
		want: "a/1 b/1 a/2 b/2",
	},
	"what is added at normal priority moves up": {
		do:   func(q *Queue[string]) { low(q, "a/1", "a/2", "a/3"); q.Add("a/4"); q.Add("a/2") },
		want: "a/4 a/2 a/1 a/3",
	},
	"and not down again": {
		do:   func(q *Queue[string]) { q.Add("a/1"); low(q, "a/2", "a/1") },
		want: "a/1 a/2",
	},
	"under way: not taken twice": {
		do:   func(q *Queue[string]) { q.Add("a/1"); q.Get(); q.Add("a/1"); q.Add("a/2") },
		want: "a/2",
	},
	"added while under way: again after done": {
		do: func(q *Queue[string]) {
			q.Add("a/1")
			q.Get()
			q.Add("a/1")
			q.Add("a/1")
			q.Add("a/2")
			q.Done("a/1")
		},
		want: "a/2 a/1",
	},
	"not added while under way: not again": {
		do: func(q *Queue[string]) { q.Add("a/1"); q.Get(); q.Done("a/1") },
	},
	"done with what was never taken": {
		most: 1,
		do:   func(q *Queue[string]) { q.Add("a/1"); q.Done("a/1"); q.Done("a/2"); q.Add("a/2") },
		want: "a/1",
	},
}

func TestOrder(t *testing.T) {
	for name, c := range orders {
		t.Run(name, func(t *testing.T) {
			q := New(Options[string]{Group: groupOf, Most: c.most})
			c.do(q)
			if got := takeAll(q); got != c.want {
				t.Errorf("taken: %s\nwant:  %s", got, c.want)
			}
		})
	}
}

// A stream of news that never ends must not keep a retry waiting for ever.
func TestWhatMakesWayIsTakenInTheEnd(t *testing.T) {
	q := New(Options[string]{Group: groupOf, Most: 4})
	defer q.ShutDown()
	for _, i := range []string{"a/1", "a/2", "a/3"} {
		q.Add(i)
	}
	low(q, "a/retry")
	for range lowTurn {
		item, _ := take(q)
		if item == "a/retry" {
			return
		}
		q.Add(item) // has news again
		q.Done(item)
	}
	t.Errorf("not among the first %d", lowTurn)
}
