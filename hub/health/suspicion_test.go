package health

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTheURLIsSuspectedWhenMoreThanHalfOfThoseThatPassedTurnAtOnce(t *testing.T) {
	const interval = 30 * time.Second
	type moment struct {
		after       time.Duration
		fail, pass  []int // members, by their number
		leave, join []int // those who join passed last
		want        bool
	}
	for _, tc := range []struct {
		name    string
		passing int // at first
		failing int
		moments []moment
	}{
		{"nobody is there", 0, 0, []moment{{want: false}}},
		{"all pass", 4, 0, []moment{{pass: []int{0, 1, 2, 3}, want: false}}},
		{"half of them", 4, 0, []moment{{fail: []int{0, 1}, want: false}}},
		{"more than half", 4, 0, []moment{{fail: []int{0, 1, 2}, want: true}}},
		{"the only one", 1, 0, []moment{{fail: []int{0}, want: true}}},
		{"the dead do not count", 2, 100, []moment{{fail: []int{0, 1}, want: true}}},
		{"nor do they when they go on to fail", 2, 3, []moment{{fail: []int{0, 2, 3, 4}, want: false}}},
		{"one by one, an interval apart", 3, 0, []moment{{fail: []int{0}}, {after: interval, fail: []int{1}}, {after: interval, fail: []int{2}, want: true}}},
		{"one by one, just within an interval", 3, 0, []moment{{fail: []int{0}}, {after: interval - 1, fail: []int{1}, want: true}}},
		{"it ends an interval later", 2, 0, []moment{{fail: []int{0, 1}, want: true}, {after: interval - 1, want: true}, {after: 1, want: false}}},
		{"it ends when enough pass again", 3, 0, []moment{{fail: []int{0, 1, 2}, want: true}, {pass: []int{0}, want: true}, {pass: []int{1}, want: false}}},
		{"one that fails again turns anew", 2, 0, []moment{{fail: []int{0}}, {pass: []int{0}}, {after: interval - 1, fail: []int{0, 1}, want: true}, {after: interval - 1, want: true}, {after: 1}}},
		{"those who turned leave", 4, 0, []moment{{fail: []int{0, 1, 2}, want: true}, {leave: []int{0, 1}, want: false}}},
		{"those who pass leave", 4, 0, []moment{{fail: []int{0, 1}}, {leave: []int{2}, want: true}}},
		{"one comes back", 1, 0, []moment{{fail: []int{0}, want: true}, {leave: []int{0}}, {join: []int{0}}, {after: interval, fail: []int{0}, want: true}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s suspicion
			now := dawn
			members := make([]member, tc.passing+tc.failing)
			for i := range members {
				s.join(&members[i], "eu", i < tc.passing)
			}
			for n, m := range tc.moments {
				now = now.Add(m.after)
				for _, i := range m.fail {
					s.record(&members[i], false, interval, now)
				}
				for _, i := range m.pass {
					s.record(&members[i], true, interval, now)
				}
				for _, i := range m.leave {
					s.leave(&members[i])
				}
				for _, i := range m.join {
					s.join(&members[i], "eu", true)
				}
				if got := s.raised(now); got != m.want {
					t.Errorf("moment %d: raised %v: %+v", n, got, s)
				}
			}
		})
	}
}

// A spoke whose Proxies pass whatever happens, or are asked once a day, is no veto for
// the others; and what comes of short and long intervals is seen together.
func TestNoSpokeOutweighsAnother(t *testing.T) {
	var s suspicion
	members := make([]member, 30)
	for i := range members {
		s.join(&members[i], map[bool]string{true: "big", false: "small"}[i < 20], true)
	}
	for i := 20; i < 26; i++ {
		s.record(&members[i], false, time.Second, dawn)
	}
	if !s.raised(dawn.Add(minTurn - 1)) {
		t.Error("not raised, though six of ten have turned in half a minute")
	}
	if s.raised(dawn.Add(minTurn)) {
		t.Error("raised still")
	}
	for i := 20; i < 26; i++ {
		s.record(&members[i], true, time.Second, dawn)
		s.record(&members[i], false, 24*time.Hour, dawn)
	}
	if !s.raised(dawn.Add(maxTurn-1)) || s.raised(dawn.Add(maxTurn)) {
		t.Error("a turn of a Proxy that is asked once a day counts for less or more than it may")
	}
}

// crowdMember is one Proxy as a person would note it down.
type crowdMember struct {
	in, passing bool
	ends        time.Time // of what counts of its turn; zero: it never turned
}

// spokeOf is where a member lives, of whom there are four each.
func spokeOf(i int) string { return string(rune('a' + i/4)) }

// suspects counts everybody anew.
func suspects(notes []crowdMember, now time.Time) bool {
	turned, passing := map[string]int{}, map[string]int{}
	for i, m := range notes {
		switch {
		case m.in && m.passing:
			passing[spokeOf(i)]++
		case m.in && now.Before(m.ends):
			turned[spokeOf(i)]++
		}
	}
	for spoke, n := range turned {
		if n > passing[spoke] {
			return true
		}
	}
	return false
}

// Whoever comes, goes, passes and fails: the sums are those of a recount, and nothing
// is kept that counts no more.
func TestTheSuspicionIsThatOfARecount(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const size = 12
		var s suspicion
		now := dawn
		members, notes := make([]member, size), make([]crowdMember, size)
		var ends []time.Time // of every turn there has been
		asked := func() {
			if got, want := s.raised(now), suspects(notes, now); got != want {
				rt.Fatalf("raised %v, want %v: %+v, %+v", got, want, s, notes)
			}
			current := 0
			for _, end := range ends {
				if now.Before(end) {
					current++
				}
			}
			if len(s.turns) != current {
				rt.Fatalf("%d turns are kept, %d are within their interval", len(s.turns), current)
			}
		}
		for range rapid.IntRange(1, 120).Draw(rt, "n") {
			i := rapid.IntRange(0, size-1).Draw(rt, "who")
			m, note := &members[i], &notes[i]
			switch what := rapid.SampledFrom([]string{"pass", "fail", "fail", "join", "join", "leave", "ask", "wait", "wait"}).Draw(rt, "what"); what {
			case "pass", "fail":
				interval := time.Duration(rapid.SampledFrom([]int{1, 30, 60, 3600}).Draw(rt, "interval")) * time.Second
				s.record(m, what == "pass", interval, now)
				if note.in && note.passing && what == "fail" {
					note.ends = now.Add(min(max(interval, minTurn), maxTurn))
					ends = append(ends, note.ends)
				}
				note.passing = what == "pass"
			case "join":
				if !note.in {
					passing := rapid.Bool().Draw(rt, "passing")
					s.join(m, spokeOf(i), passing)
					*note = crowdMember{in: true, passing: passing}
				}
			case "leave":
				s.leave(m)
				*note = crowdMember{}
			case "ask": // only now and then, so that turns end unasked
				asked()
			case "wait":
				now = now.Add(rapid.SampledFrom([]time.Duration{time.Second - 1, time.Second, 15 * time.Second, time.Minute}).Draw(rt, "step"))
			}
		}
		asked()
		for i := range members {
			s.leave(&members[i])
		}
		now = now.Add(time.Hour)
		if s.raised(now) || s.members+len(s.spokes)+s.raisers+len(s.turns) != 0 {
			rt.Fatalf("kept of nobody: %+v", s)
		}
	})
}
