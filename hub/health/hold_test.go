package health

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// holdMove is one thing that happens to a hold, and what it answers: what it does, and
// whether it "holds" verdicts after that, or "keeps" them until it knows.
type holdMove struct {
	after time.Duration
	what  string
	want  string
}

// does what is said, at some time.
func (h *hold) does(what string, now time.Time) string {
	var words []string
	asks := func(members int, suspected bool) {
		if h.asks(members, suspected, now) {
			words = append(words, "asks")
		}
	}
	ends := func(e ending) {
		words = append(words, []string{unchanged: "", begun: "begun", recovered: "recovered", expired: "expired"}[e])
	}
	switch what {
	case "calm":
		asks(10, false)
	case "suspected":
		asks(10, true)
	case "nobody, suspected":
		asks(0, true)
	case "passes":
		ends(h.answered(true, now))
	case "fails":
		ends(h.answered(false, now))
	case "cannot ask":
		h.unanswered()
	case "time":
		ends(h.expire(now))
	}
	switch {
	case h.holds():
		words = append(words, "holds")
	case h.keeps():
		words = append(words, "keeps")
	}
	return strings.TrimSpace(strings.Join(words, " "))
}

const sec = time.Second

// well is a hub whose URL answers, as of three minutes ago at most.
func well(moves ...holdMove) []holdMove {
	return append([]holdMove{{0, "calm", "asks"}, {sec, "passes", ""}}, moves...)
}

// broke is one whose URL has just stopped answering, which everybody notices.
func broke(moves ...holdMove) []holdMove {
	return append(well(holdMove{time.Minute, "suspected", "asks keeps"}, holdMove{sec, "fails", "begun holds"}), moves...)
}

var holdStories = []struct {
	name    string
	moves   []holdMove
	pardons uint64
}{
	{"a hub that has no way out of its own judges all the same", []holdMove{
		{0, "calm", "asks"}, {10 * sec, "fails", ""}, {time.Minute, "suspected", "asks"}, {10 * sec, "fails", ""},
		{10 * sec, "suspected", "asks"}, {time.Minute, "fails", ""},
	}, 0},
	{"and one whose way out has been closed for more than ten minutes", well(
		holdMove{3 * time.Minute, "calm", "asks"}, holdMove{sec, "fails", ""}, holdMove{7*time.Minute - sec + 1, "suspected", "asks"}, holdMove{sec, "fails", ""},
	), 0},
	{"one that passed ten minutes ago holds", well(
		holdMove{9 * time.Minute, "suspected", "asks keeps"}, holdMove{time.Minute, "fails", "begun holds"},
	), 0},
	{"one that passed longer ago when the answer came does not", well(
		holdMove{9 * time.Minute, "suspected", "asks keeps"}, holdMove{time.Minute + 1, "fails", ""},
	), 0},
	{"suspicion alone holds nothing: the URL answers", well(
		holdMove{time.Minute, "suspected", "asks keeps"}, holdMove{sec, "passes", ""}, holdMove{9 * sec, "suspected", "asks keeps"}, holdMove{sec, "passes", ""},
	), 0},
	{"nor does a URL that does not answer, while the proxies reach it", well(
		holdMove{3 * time.Minute, "calm", "asks"}, holdMove{sec, "fails", ""}, holdMove{time.Minute, "calm", ""},
	), 0},
	{"suspicion that comes meanwhile counts", well(
		holdMove{3 * time.Minute, "calm", "asks"}, holdMove{sec, "suspected", "keeps"}, holdMove{sec, "fails", "begun holds"},
	), 0},
	{"and counts on when it goes again before the answer", well(
		holdMove{3 * time.Minute, "calm", "asks"}, holdMove{sec, "suspected", "keeps"}, holdMove{sec, "calm", "keeps"}, holdMove{sec, "fails", "begun holds"},
	), 0},
	{"but not for the next time", well(
		holdMove{time.Minute, "suspected", "asks keeps"}, holdMove{sec, "passes", ""}, holdMove{3 * time.Minute, "calm", "asks"}, holdMove{sec, "fails", ""},
	), 0},
	{"new suspicion is looked into at once, and then every ten seconds", well(
		holdMove{0, "suspected", "asks keeps"}, holdMove{sec, "passes", ""}, holdMove{9*sec - 1, "suspected", ""}, holdMove{1, "suspected", "asks keeps"},
	), 0},
	{"without any, every three minutes", well(
		holdMove{3*time.Minute - sec - 1, "calm", ""}, holdMove{1, "calm", "asks"},
	), 0},
	{"never where nobody is probed with the URL", well(
		holdMove{time.Hour, "nobody, suspected", ""},
	), 0},
	{"never two at once", []holdMove{{0, "calm", "asks"}, {time.Hour, "calm", ""}, {time.Hour, "suspected", ""}}, 0},
	{"what could not be asked is no answer", well(
		holdMove{time.Minute, "suspected", "asks keeps"}, holdMove{sec, "cannot ask", ""}, holdMove{8 * sec, "suspected", ""}, holdMove{sec, "suspected", "asks keeps"}, holdMove{sec, "fails", "begun holds"},
	), 0},
	{"a hold ends when the URL answers again", broke(
		holdMove{8 * sec, "calm", "holds"}, holdMove{sec, "calm", "asks holds"}, holdMove{sec, "fails", "holds"}, holdMove{9 * sec, "calm", "asks holds"}, holdMove{sec, "passes", "recovered"},
	), 1},
	{"or after five minutes", broke(
		holdMove{maxHold - 1, "time", "holds"}, holdMove{1, "time", "expired"}, holdMove{0, "time", ""},
	), 0},
	{"and not again before the URL has answered and a while has gone by", broke(
		holdMove{maxHold, "time", "expired"}, holdMove{0, "suspected", "asks"}, holdMove{sec, "fails", ""},
		holdMove{10 * sec, "suspected", "asks"}, holdMove{sec, "passes", ""}, holdMove{10 * sec, "suspected", "asks"}, holdMove{sec, "fails", ""},
		holdMove{holdRest, "calm", "asks"}, holdMove{sec, "passes", ""}, holdMove{10 * sec, "suspected", "asks keeps"}, holdMove{sec, "fails", "begun holds"},
	), 0},
	{"an answer that was asked for during a hold counts after it", broke(
		holdMove{maxHold - sec, "suspected", "asks holds"}, holdMove{sec, "time", "expired"}, holdMove{sec, "fails", ""},
	), 0},
	{"twice pardoned", broke(
		holdMove{10 * sec, "calm", "asks holds"}, holdMove{sec, "passes", "recovered"}, holdMove{10 * sec, "suspected", "asks keeps"}, holdMove{sec, "fails", "begun holds"},
		holdMove{10 * sec, "suspected", "asks holds"}, holdMove{sec, "passes", "recovered"},
	), 2},
}

func TestVerdictsAreHeldWhenTheURLIsWhatIsBrokenAndNoLonger(t *testing.T) {
	for _, tc := range holdStories {
		t.Run(tc.name, func(t *testing.T) {
			var h hold
			now := dawn
			for i, m := range tc.moves {
				now = now.Add(m.after)
				if got := h.does(m.what, now); got != m.want {
					t.Fatalf("%d, %s: %q, want %q", i, m.what, got, m.want)
				}
			}
			if h.pardons != tc.pardons {
				t.Errorf("%d pardons, want %d", h.pardons, tc.pardons)
			}
		})
	}
}

func TestTheHubWakesWhenAHoldHasSomethingToDo(t *testing.T) {
	ago := func(d time.Duration) time.Time { return dawn.Add(-d) }
	for _, tc := range []struct {
		name      string
		hold      hold
		members   int
		suspected bool
		want      time.Duration
	}{
		{"at first at once", hold{}, 1, false, 0},
		{"never for nobody", hold{}, 0, true, never},
		{"never while the answer is awaited", hold{asking: true}, 1, true, never},
		{"three minutes after the last", hold{asked: ago(time.Minute)}, 1, false, 2 * time.Minute},
		{"at once when there is new suspicion", hold{asked: ago(sec)}, 1, true, 0},
		{"ten seconds after the last under suspicion", hold{asked: ago(sec), doubted: true}, 1, true, 9 * sec},
		{"ten seconds after the last during a hold", hold{asked: ago(sec), since: ago(sec)}, 1, false, 9 * sec},
		{"at the end of the hold", hold{asked: ago(sec), since: ago(maxHold - 2*sec)}, 1, false, 2 * sec},
		{"even if nobody is left", hold{since: ago(time.Minute)}, 0, false, 4 * time.Minute},
		{"even if the answer is awaited", hold{asking: true, since: ago(time.Minute)}, 1, false, 4 * time.Minute},
		{"at once when that is overdue", hold{asking: true, since: ago(time.Hour)}, 1, false, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.hold.wait(tc.members, tc.suspected, dawn); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

// diary drives a hold as the engine does, and notes down what has happened, to judge
// it anew from that.
type diary struct {
	*rapid.T
	hold      hold
	now       time.Time
	members   int
	suspected bool

	asked     []time.Time
	asking    bool
	doubted   bool      // the last one
	passed    time.Time // the last pass since the last hold began; zero: there is none
	begun     time.Time // zero: nothing is held
	recovered uint64
	spent     time.Duration // in holds that have ended
	ended     time.Time     // when the last one did
}

// recent says whether a pass is short enough ago to hold verdicts by.
func (d *diary) recent(at time.Time) bool {
	return !d.passed.IsZero() && at.Sub(d.passed) <= 10*time.Minute
}

// held is how long verdicts have been held until now, since there was a rest.
func (d *diary) held() time.Duration { return d.spent + d.now.Sub(d.begun) }

// ends notes the end of a hold.
func (d *diary) ends() {
	d.spent += max(d.now.Sub(d.begun), 10*time.Second)
	d.ended, d.begun = d.now, time.Time{}
}

// step is what the engine does whenever it wakes. It returns whether that was anything.
func (d *diary) step() bool {
	over := d.hold.expire(d.now) == expired
	if over != (!d.begun.IsZero() && d.held() >= 5*time.Minute) {
		d.Fatalf("expired %v, begun %s ago", over, d.now.Sub(d.begun))
	}
	if over {
		d.ends()
	}
	asks := d.hold.asks(d.members, d.suspected, d.now)
	if asks && (d.asking || d.members == 0) {
		d.Fatalf("asks, with one under way: %v, members: %d", d.asking, d.members)
	}
	if asks && len(d.asked) > 0 {
		pause := 3 * time.Minute
		switch {
		case !d.begun.IsZero(), d.suspected && d.doubted:
			pause = 10 * time.Second
		case d.suspected:
			pause = 0
		}
		if since := d.now.Sub(d.asked[len(d.asked)-1]); since < pause {
			d.Fatalf("asks again after %s", since)
		}
	}
	if asks && d.begun.IsZero() && d.now.Sub(d.ended) >= 10*time.Minute {
		d.spent = 0
	}
	if asks {
		d.asked, d.doubted = append(d.asked, d.now), false
		d.asking = true
	}
	d.doubted = d.doubted || d.asking && d.suspected
	return over || asks
}

// answer ends the direct probe that is under way.
func (d *diary) answer(how string) {
	if !d.asking {
		return
	}
	d.asking = false
	want := unchanged
	switch {
	case how == "void":
		d.hold.unanswered()
		return
	case how == "passes" && !d.begun.IsZero():
		d.ends()
		want, d.passed = recovered, d.now
		d.recovered++
	case how == "passes":
		d.passed = d.now
	case d.begun.IsZero() && d.doubted && d.recent(d.now) && d.spent < 5*time.Minute:
		want, d.begun, d.passed = begun, d.now, time.Time{}
	}
	if got := d.hold.answered(how == "passes", d.now); got != want {
		d.Fatalf("%s: %d, want %d: %+v", how, got, want, d.hold)
	}
}

// pass lets time pass, in which the engine wakes when it is told to.
func (d *diary) pass(by time.Duration) {
	for end := d.now.Add(by); ; {
		wait := d.hold.wait(d.members, d.suspected, d.now)
		if wait < 0 {
			d.Fatalf("wait %s: %+v", wait, d.hold)
		}
		if wait > end.Sub(d.now) {
			d.now = end
			return
		}
		d.now = d.now.Add(wait)
		if !d.step() {
			d.Fatalf("it woke for nothing, and does so again and again: %+v", d.hold)
		}
	}
}

func (d *diary) check(*rapid.T) {
	switch {
	case d.hold.holds() != !d.begun.IsZero():
		d.Fatalf("holds %v, want %v", d.hold.holds(), !d.begun.IsZero())
	case d.hold.holds() && d.held() >= 5*time.Minute:
		d.Fatalf("holds for %s", d.held())
	case d.hold.pardons != d.recovered:
		d.Fatalf("%d pardons, want %d", d.hold.pardons, d.recovered)
	}
	finding := d.asking && d.doubted && d.spent < 5*time.Minute && d.recent(d.asked[max(0, len(d.asked)-1)])
	if d.hold.keeps() != (d.hold.holds() || finding) {
		d.Fatalf("keeps %v, holds %v, finding out %v", d.hold.keeps(), d.hold.holds(), finding)
	}
}

func TestVerdictsAreNeverHeldWithoutCauseOrForLong(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := &diary{T: rt, now: dawn, members: 5}
		answers := func(how string) func(*rapid.T) { return func(*rapid.T) { d.answer(how) } }
		rt.Repeat(map[string]func(*rapid.T){
			"passes": answers("passes"),
			"fails":  answers("fails"),
			"void":   answers("void"),
			"somebody comes or goes": func(rt *rapid.T) {
				d.members = rapid.SampledFrom([]int{0, 1, 5}).Draw(rt, "members")
				d.step()
			},
			"suspicion": func(rt *rapid.T) {
				d.suspected = rapid.Bool().Draw(rt, "suspected")
				d.step()
			},
			"time": func(rt *rapid.T) {
				d.pass(rapid.SampledFrom([]time.Duration{0, 1, sec, 9 * sec, 10 * sec, time.Minute, 3 * time.Minute, 5*time.Minute - 1, 9 * time.Minute}).Draw(rt, "by"))
			},
			"": d.check,
		})
	})
}
