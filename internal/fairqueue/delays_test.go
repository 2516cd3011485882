package fairqueue

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

const s = time.Second

var waits = map[string]struct {
	do   func(*Queue[string])
	want map[int]string // by second, what can be taken then
}{
	"after its time": {
		func(q *Queue[string]) { q.AddAfter("a/2", 2*s); q.AddAfter("a/1", s) },
		map[int]string{1: "a/1", 2: "a/2"},
	},
	"no wait is no delay": {
		func(q *Queue[string]) { q.AddAfter("a/1", 0); q.AddAfter("a/2", -s) },
		map[int]string{0: "a/1 a/2"},
	},
	"a later, shorter wait wins": {
		func(q *Queue[string]) { q.AddAfter("a/2", 2*s); q.AddAfter("a/1", 3*s); q.AddAfter("a/1", s) },
		map[int]string{1: "a/1", 2: "a/2"},
	},
	"a later, longer wait does not": {
		func(q *Queue[string]) { q.AddAfter("a/1", s); q.AddAfter("a/1", 3*s) },
		map[int]string{1: "a/1"},
	},
	"an add ends the wait": {
		func(q *Queue[string]) { q.AddAfter("a/1", s); q.AddAfter("a/2", 2*s); q.Add("a/1") },
		map[int]string{0: "a/1", 2: "a/2"},
	},
	"a wait does not put off what is ready": {
		func(q *Queue[string]) { q.Add("a/1"); q.AddAfter("a/1", s) },
		map[int]string{0: "a/1"},
	},
	"asked for while under way": {
		func(q *Queue[string]) { q.Add("a/1"); q.Get(); q.AddAfter("a/1", s); q.Done("a/1") },
		map[int]string{1: "a/1"},
	},
	"over while under way: after done": {
		func(q *Queue[string]) {
			q.Add("a/1")
			q.Get()
			q.AddAfter("a/1", s)
			time.AfterFunc(2*s, func() { q.Done("a/1") })
		},
		map[int]string{2: "a/1"},
	},
	"at low priority behind what is ready by then": {
		func(q *Queue[string]) {
			q.AddWithOpts(priorityqueue.AddOpts{After: s, Priority: ptr.To(-1)}, "a/1")
			q.AddAfter("a/2", s)
		},
		map[int]string{1: "a/2 a/1"},
	},
	"rate limited: by how often it failed": {
		func(q *Queue[string]) {
			q.AddRateLimited("a/1")
			q.Add("a/1") // the wait is over, the count is not
			q.Get()
			q.AddRateLimited("a/1")
			q.Done("a/1")
		},
		map[int]string{2: "a/1"},
	},
	"rate limited: from the start when forgotten": {
		func(q *Queue[string]) {
			q.AddRateLimited("a/1")
			q.Add("a/1")
			q.Get()
			q.Forget("a/1")
			q.AddRateLimited("a/1")
			q.Done("a/1")
		},
		map[int]string{1: "a/1"},
	},
	"rate limited and with a delay: the shorter": {
		func(q *Queue[string]) {
			q.AddWithOpts(priorityqueue.AddOpts{RateLimited: true, After: 3 * s}, "a/1")
			q.AddWithOpts(priorityqueue.AddOpts{RateLimited: true, After: s / 2}, "a/2")
		},
		map[int]string{1: "a/2 a/1"},
	},
}

// TestDelays looks at the queue every second.
func TestDelays(t *testing.T) {
	for name, c := range waits {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := New(Options[string]{
					Group:       groupOf,
					RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[string](s, time.Hour),
				})
				defer q.ShutDown()
				c.do(q)
				for second := range 6 {
					synctest.Wait()
					if got := takeAll(q); got != c.want[second] {
						t.Errorf("at %d s: taken %.200q, want %.200q", second, got, c.want[second])
					}
					<-time.After(s)
				}
			})
		})
	}
}

func TestTenThousandThatAreDueAtOnceAllCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(Options[int]{})
		defer q.ShutDown()
		for i := range 10 * dueAtOnce {
			q.AddAfter(i, s)
		}
		for i := range 10 * dueAtOnce {
			if item, _ := q.Get(); item != i {
				t.Fatalf("%d came in place %d", item, i)
			}
		}
	})
}
