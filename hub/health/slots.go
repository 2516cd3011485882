package health

import "container/list"

// class is what is expected of a probe.
type class uint8

const (
	// dubious is a proxy that failed last, or that nobody knows: it may hang.
	dubious class = iota
	// sound is one that passed last.
	sound
)

// slots shares out the probes that may be under way at once. Those that failed last
// leave room for those that passed, so that dead proxies cannot delay the verdict on
// live ones, and the other way round, so that the dead can come back. No
// spoke gets so much of a room that nothing is left for another's.
type slots struct {
	most    int
	busy    [2]int // by class
	spokes  map[string]*[2]int
	waiting [2]map[string]*list.List // by class and spoke, of *state
	served  [2]map[string]uint64     // when one of a spoke began last, as begun counts
	begun   uint64
}

// greed is how many times what is left of a room one spoke may have of it: the one
// parameter of dynamic thresholds (Choudhury and Hahne, "Dynamic queue length
// thresholds for shared-memory packet switches", 1998). A spoke alone gets
// greed/(greed+1) of the room, and whoever comes then finds the rest free.
const greed = 3

func newSlots(most int) *slots {
	return &slots{most: most, spokes: map[string]*[2]int{}, waiting: [2]map[string]*list.List{{}, {}}, served: [2]map[string]uint64{{}, {}}}
}

// room is how many probes of a class may be under way at once.
func (s *slots) room(c class) int {
	reserve := s.most / 8 // for the dubious
	if c == dubious {
		reserve = s.most / 4
	}
	return max(1, s.most-max(1, reserve))
}

// left is how many probes of a class may begin.
func (s *slots) left(c class) int {
	return min(s.room(c)-s.busy[c], s.most-s.busy[dubious]-s.busy[sound])
}

// of is how many probes of a spoke and a class are under way.
func (s *slots) of(spoke string, c class) int {
	if b := s.spokes[spoke]; b != nil {
		return b[c]
	}
	return 0
}

// wait puts a state at the end of its spoke's line.
func (s *slots) wait(st *state) {
	l := s.waiting[st.class][st.proxy.Cluster]
	if l == nil {
		l = list.New()
		s.waiting[st.class][st.proxy.Cluster] = l
	}
	st.waits = l.PushBack(st)
}

// leave takes a state out of the line that it waits in, if it does.
func (s *slots) leave(st *state) {
	if st.waits == nil {
		return
	}
	lines := s.waiting[st.class]
	l := lines[st.proxy.Cluster]
	l.Remove(st.waits)
	st.waits = nil
	if l.Len() == 0 {
		delete(lines, st.proxy.Cluster)
	}
}

// next takes the state whose probe is to begin out of its line: the first in the line
// of the spoke that has the fewest under way, of several the one that was served longest
// ago, those that passed last before the others. Nil if nobody waits, or there is no room.
func (s *slots) next() *state {
	for _, c := range []class{sound, dubious} {
		best := ""
		fewest := greed * s.left(c) // under way, or more, and a spoke gets none
		if fewest <= 0 {
			continue
		}
		for spoke := range s.waiting[c] {
			if mine := s.of(spoke, c); mine < fewest || best != "" && mine == fewest && s.before(spoke, best, c) {
				best, fewest = spoke, mine
			}
		}
		if best != "" {
			s.begun++
			s.served[c][best] = s.begun
			first := s.first(best, c)
			s.leave(first)
			s.add(best, c, 1)
			return first
		}
	}
	return nil
}

// before says whether a spoke comes before another that has as many under way.
func (s *slots) before(spoke, other string, c class) bool {
	if mine, theirs := s.served[c][spoke], s.served[c][other]; mine != theirs {
		return mine < theirs
	}
	return s.first(spoke, c).at.Before(s.first(other, c).at)
}

func (s *slots) first(spoke string, c class) *state {
	return s.waiting[c][spoke].Front().Value.(*state)
}

// forget forgets a spoke of which there is nobody any more.
func (s *slots) forget(spoke string) {
	delete(s.served[dubious], spoke)
	delete(s.served[sound], spoke)
}

// release gives back what next gave.
func (s *slots) release(spoke string, c class) { s.add(spoke, c, -1) }

func (s *slots) add(spoke string, c class, n int) {
	b := s.spokes[spoke]
	if b == nil {
		b = new([2]int)
		s.spokes[spoke] = b
	}
	s.busy[c] += n
	if b[c] += n; *b == [2]int{} {
		delete(s.spokes, spoke)
	}
}

// anyWait says whether anybody waits for room.
func (s *slots) anyWait() bool { return len(s.waiting[dubious])+len(s.waiting[sound]) > 0 }
