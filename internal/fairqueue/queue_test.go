package fairqueue

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
)

// Items of these tests are spelled group/name.
func groupOf(item string) string {
	group, _, _ := strings.Cut(item, "/")
	return group
}

func low(q *Queue[string], items ...string) {
	q.AddWithOpts(priorityqueue.AddOpts{Priority: ptr.To(handler.LowPriority)}, items...)
}

// take returns what a worker that comes now gets; empty when it would wait.
func take(q *Queue[string]) (string, int) {
	q.mu.Lock()
	waits := !q.order.takeable()
	q.mu.Unlock()
	if waits {
		return "", 0
	}
	item, priority, _ := q.GetWithPriority()
	return item, priority
}

// takeAll takes, without ever being done, until it would wait.
func takeAll(q *Queue[string]) string {
	var taken []string
	for {
		item, _ := take(q)
		if item == "" {
			return strings.Join(taken, " ")
		}
		taken = append(taken, item)
	}
}

func TestPriorityIsReturnedAsAsked(t *testing.T) {
	add := func(q *Queue[string], priority int) {
		q.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, "a/1")
	}
	for name, c := range map[string]struct {
		do   func(*Queue[string])
		want int
	}{
		"none is zero":           {func(q *Queue[string]) { q.Add("a/1") }, 0},
		"low":                    {func(q *Queue[string]) { add(q, -100) }, -100},
		"the highest":            {func(q *Queue[string]) { add(q, -100); add(q, -50); add(q, -70) }, -50},
		"also across the levels": {func(q *Queue[string]) { add(q, -100); add(q, 7) }, 7},
		"of the delayed one too": {func(q *Queue[string]) { q.AddAfter("a/1", time.Hour); add(q, -100) }, 0},
		"not of an earlier time": {func(q *Queue[string]) { add(q, 7); q.Get(); q.Done("a/1"); add(q, -100) }, -100},
		"nor of the one under way": {func(q *Queue[string]) {
			add(q, 7)
			q.Get()
			add(q, -100)
			q.Done("a/1")
		}, -100},
	} {
		t.Run(name, func(t *testing.T) {
			q := New(Options[string]{})
			defer q.ShutDown()
			c.do(q)
			if _, got, _ := q.GetWithPriority(); got != c.want {
				t.Errorf("taken at priority %d, want %d", got, c.want)
			}
		})
	}
}

func TestRequeuesAreCountedUntilForgotten(t *testing.T) {
	q := New(Options[string]{})
	defer q.ShutDown()
	q.AddRateLimited("a/1")
	q.AddRateLimited("a/1")
	if n := q.NumRequeues("a/1"); n != 2 {
		t.Errorf("%d requeues, want 2", n)
	}
	q.Forget("a/1")
	if n := q.NumRequeues("a/1"); n != 0 {
		t.Errorf("%d requeues after Forget", n)
	}
}

func TestLenCountsWhatIsReady(t *testing.T) {
	q := New(Options[string]{Group: groupOf, Most: 1})
	defer q.ShutDown()
	q.AddWithOpts(priorityqueue.AddOpts{}, "a/1", "a/2", "b/1")
	q.AddAfter("b/2", time.Hour)
	if n := q.Len(); n != 3 {
		t.Errorf("%d ready, want 3", n)
	}
	q.Get()
	q.Add("a/1")
	if n := q.Len(); n != 2 {
		t.Errorf("%d ready while one is under way, want 2", n)
	}
}

func TestShutDownEndsEveryWorkerAndIgnoresAdds(t *testing.T) {
	for _, name := range []string{"", "ends"} {
		synctest.Test(t, func(t *testing.T) {
			q := New(Options[string]{Name: name, Most: 1})
			q.Add("a/1")
			q.Get()
			q.AddAfter("a/2", time.Second)
			ended := make(chan bool, 2)
			for range 2 {
				go func() { _, shutdown := q.Get(); ended <- shutdown }()
			}
			synctest.Wait() // both wait
			q.ShutDown()
			q.ShutDownWithDrain() // a second time is as good
			for range 2 {
				if shutdown := <-ended; !shutdown || !q.ShuttingDown() {
					t.Error("a Get returned as if there were something")
				}
			}
			q.Add("a/3")
			q.Done("a/1")
			<-time.After(time.Minute)
			if _, shutdown := q.Get(); !shutdown || q.Len() != 0 {
				t.Error("something was added after ShutDown")
			}
		})
	}
}

func TestNothingIsKeptOfWhatIsDone(t *testing.T) {
	q := New(Options[string]{Group: groupOf})
	q.AddWithOpts(priorityqueue.AddOpts{}, "a/1", "b/1", "b/2")
	for range 3 {
		item, _ := q.Get()
		q.Done(item)
	}
	if len(q.entries) != 0 || len(q.order.groups) != 0 || len(q.order.turns) != 0 {
		t.Errorf("left: %d items, %d groups, %d turns", len(q.entries), len(q.order.groups), len(q.order.turns))
	}
}
