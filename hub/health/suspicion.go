package health

import (
	"container/heap"
	"time"
)

// maxTurn is how long a turn counts at most, however seldom the Proxy is probed.
const maxTurn = 10 * time.Minute

// suspicion counts the Proxies that are probed with the hub's own URL: when more than
// half of those that passed turn to failing within an interval, that URL may be what
// is broken. The zero value counts none.
type suspicion struct {
	members int
	passing int
	turned  int // to failing, each within its interval before now
	turns   turnHeap
	last    uint64
}

// member is one Proxy in a suspicion. The zero value is none of it.
type member struct {
	in      bool
	passing bool
	turn    uint64 // the turn that is counted; zero: none
}

// turn is a Proxy's from passing to failing, counted until an interval later.
type turn struct {
	of    *member
	id    uint64
	until time.Time
}

// join takes a Proxy in, which passed last or did not.
func (s *suspicion) join(m *member, passing bool) {
	*m = member{in: true, passing: passing}
	s.members++
	if passing {
		s.passing++
	}
}

// leave takes a Proxy out, if it is in.
func (s *suspicion) leave(m *member) {
	if !m.in {
		return
	}
	s.members--
	if m.passing {
		s.passing--
	}
	if m.turn != 0 {
		s.turned--
	}
	*m = member{}
}

// record takes a result into account, of a Proxy that is in.
func (s *suspicion) record(m *member, ok bool, interval time.Duration, now time.Time) {
	switch {
	case !m.in || ok == m.passing:
		return
	case ok:
		s.passing++
		if m.turn != 0 {
			s.turned--
			m.turn = 0
		}
	default:
		s.passing--
		s.turned++
		s.last++
		m.turn = s.last
		heap.Push(&s.turns, turn{of: m, id: s.last, until: now.Add(interval)})
	}
	m.passing = ok
}

// forgive takes a Proxy that is in for one that passed last: should it fail once more,
// it counts again.
func (s *suspicion) forgive(m *member) {
	s.leave(m)
	s.join(m, true)
}

// raised says whether more than half of those that passed have turned.
func (s *suspicion) raised(now time.Time) bool {
	for len(s.turns) > 0 && !now.Before(s.turns[0].until) {
		// One that has passed or left meanwhile is not counted any more.
		if t := heap.Pop(&s.turns).(turn); t.of.turn == t.id {
			t.of.turn = 0
			s.turned--
		}
	}
	return s.turned > s.passing
}

// turnHeap orders turns by when they end.
type turnHeap []turn

func (h turnHeap) Len() int           { return len(h) }
func (h turnHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h turnHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *turnHeap) Push(x any) { *h = append(*h, x.(turn)) }

// Pop implements heap.Interface.
func (h *turnHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = turn{}
	*h = old[:len(old)-1]
	return last
}
