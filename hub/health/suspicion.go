package health

import (
	"container/heap"
	"time"
)

// A turn counts for an interval of the Proxy's, within these bounds: those that are
// probed often must still be counted when the others are asked, and those that are
// probed seldom must not be for a day.
const minTurn, maxTurn = 30 * time.Second, 10 * time.Minute

// suspicion counts the Proxies that are probed with the hub's own URL, by spoke: when
// more than half of those of a spoke that passed turn to failing within an interval,
// that URL may be what is broken. By spoke, since one with many that are probed seldom,
// or pass whatever happens, would otherwise outweigh all others; where more than half of
// the fleet turn, more than half of some spoke do. The zero value counts none.
type suspicion struct {
	members int
	spokes  map[string]*balance
	raisers int // spokes of which more have turned than pass
	turns   turnHeap
	last    uint64
}

// balance is of one spoke.
type balance struct{ passing, turned int }

// member is one Proxy in a suspicion. The zero value is none of it.
type member struct {
	in      bool
	spoke   string
	passing bool
	turn    uint64 // the turn that is counted; zero: none
}

// turn is a Proxy's from passing to failing.
type turn struct {
	of    *member
	id    uint64
	until time.Time // it counts
}

// join takes a Proxy in, which passed last or did not.
func (s *suspicion) join(m *member, spoke string, passing bool) {
	*m = member{in: true, spoke: spoke, passing: passing}
	s.members++
	if passing {
		s.count(spoke, 1, 0)
	}
}

// leave takes a Proxy out, if it is in.
func (s *suspicion) leave(m *member) {
	if !m.in {
		return
	}
	s.members--
	s.count(m.spoke, -one(m.passing), -one(m.turn != 0))
	*m = member{}
}

// record takes a result into account, of a Proxy that is in.
func (s *suspicion) record(m *member, ok bool, interval time.Duration, now time.Time) {
	switch {
	case !m.in || ok == m.passing:
		return
	case ok:
		s.count(m.spoke, 1, -one(m.turn != 0))
		m.turn = 0
	default:
		s.count(m.spoke, -1, 1)
		s.last++
		m.turn = s.last
		heap.Push(&s.turns, turn{of: m, id: s.last, until: now.Add(min(max(interval, minTurn), maxTurn))})
	}
	m.passing = ok
}

// forgive takes a Proxy that is in for one that passed last: should it fail once more,
// it counts again.
func (s *suspicion) forgive(m *member) {
	spoke := m.spoke
	s.leave(m)
	s.join(m, spoke, true)
}

// raised says whether there is a spoke of which more have turned than pass.
func (s *suspicion) raised(now time.Time) bool {
	for len(s.turns) > 0 && !now.Before(s.turns[0].until) {
		// One that has passed or left meanwhile is not counted any more.
		if t := heap.Pop(&s.turns).(turn); t.of.turn == t.id {
			t.of.turn = 0
			s.count(t.of.spoke, 0, -1)
		}
	}
	return s.raisers > 0
}

func (s *suspicion) count(spoke string, passing, turned int) {
	b := s.spokes[spoke]
	if b == nil {
		b = &balance{}
		if s.spokes == nil {
			s.spokes = map[string]*balance{}
		}
		s.spokes[spoke] = b
	}
	s.raisers -= one(b.turned > b.passing)
	b.passing += passing
	b.turned += turned
	s.raisers += one(b.turned > b.passing)
	if *b == (balance{}) {
		delete(s.spokes, spoke)
	}
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
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
