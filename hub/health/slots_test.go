package health

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// waiting is a state of a spoke's Proxy, whose probe is due at dawn.
func waiting(spoke string, c class) *state {
	return &state{proxy: &fleet.Proxy{Key: fleet.Key{Cluster: spoke}}, class: c, at: dawn}
}

// hang queues n probes of a spoke, and begins as many as there is room for: none of
// them ends.
func (s *slots) hang(spoke string, c class, n int) (begun int) {
	for range n {
		s.wait(waiting(spoke, c))
	}
	for s.next() != nil {
		begun++
	}
	return begun
}

// enters says whether a probe that comes now begins at once.
func (s *slots) enters(spoke string, c class) bool {
	st := waiting(spoke, c)
	s.wait(st)
	return s.next() == st
}

func TestNeitherTheDeadNorTheLivingGetAllTheRoom(t *testing.T) {
	for _, tc := range []struct{ most, dubious, sound int }{
		{1, 1, 1}, // what is left for the other is nothing, until the one ends
		{2, 1, 1}, {3, 2, 2}, {4, 3, 3}, {8, 6, 7}, {16, 12, 14}, {100, 75, 88}, {4096, 3072, 3584},
	} {
		s := newSlots(tc.most)
		if s.room(dubious) != tc.dubious || s.room(sound) != tc.sound {
			t.Errorf("of %d, %d are for the dubious and %d for the sound, want %d and %d", tc.most, s.room(dubious), s.room(sound), tc.dubious, tc.sound)
		}
	}
}

func TestASpokeThatHangsTakesThreeQuartersOfTheRoom(t *testing.T) {
	for _, tc := range []struct {
		most           int
		dubious, sound int // of a spoke alone
	}{
		{1, 1, 1}, {2, 1, 1}, {4, 3, 3}, {5, 3, 3}, {8, 5, 6}, {16, 9, 11}, {4096, 2304, 2688},
	} {
		for c, want := range []int{tc.dubious, tc.sound} {
			if got := newSlots(tc.most).hang("dead", class(c), 5000); got != want {
				t.Errorf("%d of class %d are under way of %d, want %d", got, c, tc.most, want)
			}
		}
	}
}

// A room of three or less is full before greed leaves any of it, and a class has four
// from a most of five on.
func TestASpokeThatHangsDelaysNobodyElse(t *testing.T) {
	for most := 1; most <= 300; most++ {
		for _, c := range []class{dubious, sound} {
			s := newSlots(most)
			s.hang("dead", c, 2*most)
			if got, want := s.enters("dead", sound+dubious-c), most >= 2; got != want {
				t.Errorf("most %d: what fares otherwise than class %d enters: %v", most, c, got)
			}
			s = newSlots(most)
			s.hang("dead", c, 2*most)
			if got, want := s.enters("live", c), most >= 5; got != want {
				t.Errorf("most %d: another spoke enters class %d: %v", most, c, got)
			}
		}
	}
}

// What one that has filled both classes leaves is enough from a most of thirteen on.
func TestASpokeThatHangsInBothClassesDelaysNobodyElse(t *testing.T) {
	for most := 13; most <= 300; most++ {
		for _, first := range []class{dubious, sound} {
			for _, c := range []class{dubious, sound} {
				s := newSlots(most)
				s.hang("dead", first, 2*most)
				s.hang("dead", sound+dubious-first, 2*most)
				if !s.enters("live", c) {
					t.Errorf("most %d: class %d of another spoke waits", most, c)
				}
			}
		}
	}
}

func TestOneThatLeftTheLineIsNotProbed(t *testing.T) {
	s := newSlots(8)
	a, b, c := waiting("eu", sound), waiting("eu", sound), waiting("eu", dubious)
	s.wait(a)
	s.wait(b)
	s.leave(a)
	s.leave(a) // it does not wait any more
	s.leave(c) // nor has it ever
	if got := s.next(); got != b {
		t.Errorf("%p begins, want %p", got, b)
	}
	s.leave(b) // it is under way
	if s.anyWait() || s.next() != nil {
		t.Error("somebody waits")
	}
}

// As many dead spokes as there is room for, with backlogs that are hours old, do not
// keep a new one waiting for longer than it takes one of them to end.
func TestANewSpokeComesBeforeTheBacklogOfOthers(t *testing.T) {
	s := newSlots(8)
	for spoke := range 6 {
		for range 50 {
			s.wait(waiting(fmt.Sprint("dead", spoke), dubious))
		}
	}
	var underway []*state
	for st := s.next(); st != nil; st = s.next() {
		underway = append(underway, st)
	}
	late := waiting("live", dubious)
	late.at = dawn.Add(time.Hour)
	s.wait(late)
	s.release(underway[0].proxy.Cluster, dubious)
	if got := s.next(); got != late {
		t.Errorf("one of %s begins", got.proxy.Cluster)
	}
}

// A spoke whose line empties and fills again, again and again, takes nothing from one
// that has a backlog.
func TestABacklogIsNotOvertakenForEver(t *testing.T) {
	for _, most := range []int{2, 4, 8, 64} {
		s := newSlots(most)
		for range 10 {
			s.wait(waiting("backlog", dubious))
		}
		for i := range most {
			s.wait(waiting(fmt.Sprint("small", i), dubious))
		}
		var underway []*state
		served := 0
		for range 50 * most {
			for st := s.next(); st != nil; st = s.next() {
				underway = append(underway, st)
				if st.proxy.Cluster == "backlog" {
					served++
				}
			}
			ended := underway[0]
			underway = underway[1:]
			s.release(ended.proxy.Cluster, dubious)
			s.wait(waiting(ended.proxy.Cluster, dubious)) // as it is due again at once
		}
		if served < 10 {
			t.Errorf("most %d: the backlog was served %d times", most, served)
		}
	}
}

func TestTheOneThatIsDueFirstIsProbedFirst(t *testing.T) {
	s := newSlots(100)
	early, late, dead := waiting("us", sound), waiting("eu", sound), waiting("ap", dubious)
	late.at = dawn.Add(time.Second)
	dead.at = dawn.Add(-time.Hour)
	for _, st := range []*state{late, dead, early} {
		s.wait(st)
	}
	for i, want := range []*state{early, late, dead} {
		if got := s.next(); got != want {
			t.Errorf("%d: %s begins, want %s", i, got.proxy.Cluster, want.proxy.Cluster)
		}
	}
}

// hall is who waits, in the order in which they came, and who is under way.
type hall struct {
	most            int
	waits, underway []*state
	served          map[string]int // when one of a line began last
	n               int
}

// lineOf names the line that a state waits in.
func lineOf(st *state) string { return fmt.Sprint(st.proxy.Cluster, st.class) }

// after says that a comes after b, where both spokes have as many under way.
func (h *hall) after(a, b *state) bool {
	if mine, other := h.served[lineOf(a)], h.served[lineOf(b)]; mine != other {
		return mine > other
	}
	return b.at.Before(a.at)
}

func (h *hall) count(spoke string, c class) (mine, ofClass int) {
	for _, st := range h.underway {
		if st.class == c {
			ofClass++
			if st.proxy.Cluster == spoke {
				mine++
			}
		}
	}
	return mine, ofClass
}

// admissible are those of a class that may begin: the first of their line, where what
// is left is more than a third of what the spoke has under way.
func (h *hall) admissible(c class) []*state {
	room := newSlots(h.most).room(c)
	seen := map[string]bool{}
	var first []*state
	for _, st := range h.waits {
		if st.class != c || seen[st.proxy.Cluster] {
			continue
		}
		seen[st.proxy.Cluster] = true
		mine, ofClass := h.count(st.proxy.Cluster, c)
		if left := min(room-ofClass, h.most-len(h.underway)); left > 0 && mine < 3*left {
			first = append(first, st)
		}
	}
	return first
}

// takes checks that who begins is one of those whose turn it is.
func (h *hall) takes(rt *rapid.T, got *state) {
	turn := h.admissible(sound)
	if len(turn) == 0 {
		turn = h.admissible(dubious)
	}
	if got == nil {
		if len(turn) > 0 {
			rt.Fatalf("nobody begins, though there is room for %d", len(turn))
		}
		return
	}
	if !slices.Contains(turn, got) {
		rt.Fatalf("one of %s, class %d, begins before its turn, or without room", got.proxy.Cluster, got.class)
	}
	mine, _ := h.count(got.proxy.Cluster, got.class)
	for _, st := range turn {
		if other, _ := h.count(st.proxy.Cluster, st.class); other < mine || other == mine && h.after(got, st) {
			rt.Fatalf("%s, with %d under way, begins before %s with %d", got.proxy.Cluster, mine, st.proxy.Cluster, other)
		}
	}
	h.waits = slices.DeleteFunc(h.waits, func(st *state) bool { return st == got })
	h.underway = append(h.underway, got)
	h.n++
	h.served[lineOf(got)] = h.n
}

func (h *hall) check(rt *rapid.T, s *slots) {
	if len(h.underway) > h.most {
		rt.Fatalf("%d under way, at most %d may be", len(h.underway), h.most)
	}
	for _, c := range []class{dubious, sound} {
		if _, n := h.count("", c); n > s.room(c) {
			rt.Fatalf("%d of class %d under way, there is room for %d", n, c, s.room(c))
		}
	}
	if s.anyWait() != (len(h.waits) > 0) {
		rt.Fatalf("%d wait: %v", len(h.waits), s.anyWait())
	}
}

// Several spokes, whatever they do: nobody is forgotten, overtakes in a line, or begins
// where there is no room, and nothing is kept of those who have gone.
func TestEverybodyWhoWaitsIsProbedInTheEnd(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := &hall{most: rapid.IntRange(1, 40).Draw(rt, "most"), served: map[string]int{}}
		s := newSlots(h.most)
		one := func(of []*state) int { return rapid.IntRange(0, len(of)-1).Draw(rt, "one") }
		release := func() {
			if len(h.underway) > 0 {
				i := one(h.underway)
				s.release(h.underway[i].proxy.Cluster, h.underway[i].class)
				h.underway = slices.Delete(h.underway, i, i+1)
			}
		}
		begin := func() bool {
			st := s.next()
			h.takes(rt, st)
			return st != nil
		}
		rt.Repeat(map[string]func(*rapid.T){
			"queue": func(rt *rapid.T) {
				spoke, c := rapid.SampledFrom([]string{"eu", "us", "ap", "me"}).Draw(rt, "spoke"), rapid.SampledFrom([]class{dubious, sound}).Draw(rt, "class")
				for range rapid.IntRange(1, 20).Draw(rt, "n") {
					st := waiting(spoke, c)
					st.at = dawn.Add(time.Duration(rapid.IntRange(0, 5).Draw(rt, "at")) * time.Second)
					s.wait(st)
					h.waits = append(h.waits, st)
				}
			},
			"begin": func(rt *rapid.T) {
				for n := rapid.SampledFrom([]int{1, 2, 100}).Draw(rt, "n"); n > 0 && begin(); n-- {
				}
			},
			"release": func(rt *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(rt, "n") {
					release()
				}
			},
			"leave": func(*rapid.T) {
				if all := slices.Concat(h.waits, h.underway); len(all) > 0 { // who is under way does not wait
					i := one(all)
					s.leave(all[i])
					h.waits = slices.DeleteFunc(h.waits, func(st *state) bool { return st == all[i] })
				}
			},
			"": func(rt *rapid.T) { h.check(rt, s) },
		})
		for len(h.waits)+len(h.underway) > 0 {
			for begin() {
			}
			if len(h.underway) == 0 {
				rt.Fatalf("%d wait for ever", len(h.waits))
			}
			release()
		}
		if len(s.spokes)+len(s.waiting[dubious])+len(s.waiting[sound])+s.busy[dubious]+s.busy[sound] > 0 {
			rt.Fatalf("kept of nobody: %v %v %v", s.busy, s.spokes, s.waiting)
		}
	})
}
