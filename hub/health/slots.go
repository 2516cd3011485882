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
}

// greed is how many times what is left of a room one spoke may have of it: the one
// parameter of dynamic thresholds (Choudhury and Hahne, "Dynamic queue length
// thresholds for shared-memory packet switches", 1998). A spoke alone gets
// greed/(greed+1) of the room, and whoever comes then finds the rest free.
const greed = 3

func newSlots(most int) *slots {
	return &slots{most: most, spokes: map[string]*[2]int{}, waiting: [2]map[string]*list.List{{}, {}}}
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
	line := s.waiting[st.class][st.proxy.Cluster]
	if line == nil {
		line = list.New()
		s.waiting[st.class][st.proxy.Cluster] = line
	}
	st.waits = line.PushBack(st)
}

// leave takes a state out of the line that it waits in, if it does.
func (s *slots) leave(st *state) {
	if st.waits == nil {
		return
	}
	lines := s.waiting[st.class]
	line := lines[st.proxy.Cluster]
	line.Remove(st.waits)
	st.waits = nil
	if line.Len() == 0 {
		delete(lines, st.proxy.Cluster)
	}
}

// next takes the state whose probe is to begin out of its line: the first in the line
// of the spoke that has the fewest under way, those that passed last before the
// others. Nil if nobody waits, or there is no room.
func (s *slots) next() *state {
	for _, c := range []class{sound, dubious} {
		var best *state
		fewest := greed * s.left(c) // under way, or more, and a spoke gets none
		if fewest <= 0 {
			continue
		}
		for spoke, line := range s.waiting[c] {
			mine := s.of(spoke, c)
			first := line.Front().Value.(*state)
			if mine < fewest || best != nil && mine == fewest && first.at.Before(best.at) {
				best, fewest = first, mine
			}
		}
		if best != nil {
			s.leave(best)
			s.add(best.proxy.Cluster, c, 1)
			return best
		}
	}
	return nil
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
