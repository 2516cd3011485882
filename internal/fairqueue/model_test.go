package fairqueue

import (
	"cmp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

const tick, maxBackoff = time.Millisecond, 8 * time.Millisecond

// naive is the queue as one would explain it: a list of items, looked through
// from end to end at every step.
type naive struct {
	most     int
	items    []*naiveItem
	failures map[string]int
	turns    []string // groups that may be taken from, the next one first
	passed   map[string]int
	steps    int
}

type naiveItem struct {
	name         string
	priority     int
	ready        bool
	due          time.Time // zero: not delayed
	underWay     bool
	asked, since int // when it was last delayed, and got into its line
}

func (n *naive) find(name string) *naiveItem {
	i := slices.IndexFunc(n.items, func(it *naiveItem) bool { return it.name == name })
	if i < 0 {
		n.items = append(n.items, &naiveItem{name: name})
		i = len(n.items) - 1
	}
	return n.items[i]
}

func (n *naive) inLine(group string) (line []*naiveItem) {
	for _, it := range n.items {
		if groupOf(it.name) == group && it.ready && !it.underWay {
			line = append(line, it)
		}
	}
	slices.SortFunc(line, func(a, b *naiveItem) int {
		return cmp.Or(cmp.Compare(level(a.priority), level(b.priority)), cmp.Compare(a.since, b.since))
	})
	return line
}

func level(priority int) int {
	if priority < 0 {
		return 1
	}
	return 0
}

// settle works out anew which groups may be taken from. It is called after
// every single change, so that at most one is new.
func (n *naive) settle() {
	may := func(group string) bool {
		underWay := 0
		for _, it := range n.items {
			if groupOf(it.name) == group && it.underWay {
				underWay++
			}
		}
		return underWay < n.most && len(n.inLine(group)) > 0
	}
	n.turns = slices.DeleteFunc(n.turns, func(group string) bool { return !may(group) })
	for group := range n.passed {
		if !slices.ContainsFunc(n.items, func(it *naiveItem) bool {
			return groupOf(it.name) == group && (it.ready || it.underWay || !it.due.IsZero())
		}) {
			delete(n.passed, group)
		}
	}
	for _, it := range n.items {
		if group := groupOf(it.name); may(group) && !slices.Contains(n.turns, group) {
			n.turns = append(n.turns, group)
		}
	}
}

func (n *naive) add(name string, o priorityqueue.AddOpts) {
	n.steps++
	it := n.find(name)
	if !it.ready && it.due.IsZero() {
		it.priority = *o.Priority
	}
	if *o.Priority > it.priority {
		if level(*o.Priority) != level(it.priority) {
			it.since = n.steps
		}
		it.priority = *o.Priority
	}
	after := o.After
	if o.RateLimited {
		backoff := min(tick<<n.failures[name], maxBackoff)
		n.failures[name]++
		if after == 0 || backoff < after {
			after = backoff
		}
	}
	due := time.Now().Add(after)
	switch {
	case it.ready:
	case after == 0:
		it.ready, it.due, it.since = true, time.Time{}, n.steps
	case it.due.IsZero() || due.Before(it.due):
		it.due, it.asked = due, n.steps
	}
	n.settle()
}

func (n *naive) done(name string) {
	n.steps++
	it := n.find(name)
	it.underWay = false
	if it.ready {
		it.since = n.steps
	}
	n.settle()
}

// pass makes ready what is due by now.
func (n *naive) pass() {
	due := slices.DeleteFunc(slices.Clone(n.items), func(it *naiveItem) bool { return it.due.IsZero() || it.due.After(time.Now()) })
	slices.SortFunc(due, func(a, b *naiveItem) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.asked, b.asked)) })
	for _, it := range due {
		n.steps++
		it.ready, it.due, it.since = true, time.Time{}, n.steps
		n.settle()
	}
}

func (n *naive) take() (taken, bool) {
	if len(n.turns) == 0 {
		return taken{}, false
	}
	it := n.next(n.turns[0])
	it.ready, it.underWay = false, true
	n.turns = n.turns[1:]
	n.settle()
	return taken{it.name, it.priority}, true
}

// next is the first of normal priority; of low, where there is no other, or three
// have been taken before it.
func (n *naive) next(group string) *naiveItem {
	line := n.inLine(group)
	low := slices.IndexFunc(line, func(it *naiveItem) bool { return level(it.priority) == 1 })
	switch {
	case low < 0:
		n.passed[group] = 0
		return line[0]
	case low == 0 || n.passed[group] == 3:
		n.passed[group] = 0
		return line[low]
	default:
		n.passed[group]++
		return line[0]
	}
}

type taken struct {
	name     string
	priority int
}

// machine drives a queue and the naive one side by side. Whoever gets is a
// worker of its own, which waits when there is nothing: so a wakeup that is lost
// is an item that the naive one handed out and the queue did not.
type machine struct {
	queue   *Queue[string]
	naive   naive
	waiting int // workers
	got     chan taken
}

func newMachine(most int) *machine {
	return &machine{
		queue: New(Options[string]{
			Group:       groupOf,
			Most:        most,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[string](tick, maxBackoff),
		}),
		naive: naive{most: most, failures: map[string]int{}, passed: map[string]int{}},
		got:   make(chan taken, 1000),
	}
}

var (
	names      = rapid.SampledFrom([]string{"a/1", "a/2", "a/3", "a/4", "b/1", "b/2", "b/3", "c/1"})
	priorities = rapid.SampledFrom([]int{0, 0, 0, -100, -100, -50, 5})
)

func (m *machine) add(t *rapid.T) {
	name, priority := names.Draw(t, "name"), priorities.Draw(t, "priority")
	o := priorityqueue.AddOpts{Priority: &priority}
	o.RateLimited = rapid.IntRange(0, 3).Draw(t, "limited") == 0
	o.After = time.Duration(max(0, rapid.IntRange(-5, 10).Draw(t, "after"))) * tick
	m.queue.AddWithOpts(o, name)
	m.naive.add(name, o)
}

func (m *machine) work(*rapid.T) {
	m.waiting++
	go func() {
		if name, priority, shutdown := m.queue.GetWithPriority(); !shutdown {
			m.got <- taken{name, priority}
		}
	}()
}

func (m *machine) done(t *rapid.T) {
	var underWay []string
	for _, it := range m.naive.items {
		if it.underWay {
			underWay = append(underWay, it.name)
		}
	}
	if len(underWay) == 0 {
		return
	}
	name := rapid.SampledFrom(underWay).Draw(t, "name")
	m.queue.Done(name)
	m.naive.done(name)
}

func (m *machine) forget(t *rapid.T) {
	name := names.Draw(t, "name")
	m.queue.Forget(name)
	delete(m.naive.failures, name)
}

// pass lets time go by; between two ticks nothing is due.
func (m *machine) pass(t *rapid.T) {
	for range rapid.IntRange(1, 12).Draw(t, "ticks") {
		m.check(t)
		<-time.After(tick)
		synctest.Wait()
		m.naive.pass()
	}
}

// check has the naive one serve the workers that wait, and compares. Which of
// several workers got which item is all the same.
func (m *machine) check(t *rapid.T) {
	synctest.Wait()
	var want, got []taken
	for ; m.waiting > 0; m.waiting-- {
		next, ok := m.naive.take()
		if !ok {
			break
		}
		want = append(want, next)
	}
	for len(m.got) > 0 {
		got = append(got, <-m.got)
	}
	byName := func(a, b taken) int { return cmp.Compare(a.name, b.name) }
	slices.SortFunc(want, byName)
	slices.SortFunc(got, byName)
	if !slices.Equal(got, want) {
		t.Fatalf("taken: %v, want %v", got, want)
	}
	ready := 0
	for _, it := range m.naive.items {
		if it.ready && !it.underWay {
			ready++
		}
	}
	if m.queue.Len() != ready {
		t.Fatalf("Len is %d, want %d", m.queue.Len(), ready)
	}
}

func TestQueueIsTheNaiveOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Wrapped, because rapid asks a *testing.T for its deadline, which a
		// bubble with a clock of its own does not allow.
		rapid.Check(struct{ rapid.TB }{t}, func(t *rapid.T) {
			m := newMachine(rapid.IntRange(1, 3).Draw(t, "most"))
			defer m.queue.ShutDown()
			t.Repeat(map[string]func(*rapid.T){
				"add": m.add, "add again": m.add, "work": m.work, "done": m.done, "forget": m.forget, "pass": m.pass, "": m.check,
			})
		})
	})
}
