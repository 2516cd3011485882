package health

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// event is one result, and what the tracker made of it. An event without a result
// is that what failed until then was forgiven.
type event struct {
	result
	at        time.Time
	forgiven  bool
	passes    int // the thresholds of then
	fails     int
	news      bool
	verdict   fleet.Verdict
	delivered bool
}

// history is the tracker as one would explain it: it keeps every event, counts nothing
// as it goes, and works everything out from what has happened.
type history struct {
	resumed fleet.Verdict
	began   time.Time
	events  []event
}

// known is the verdict that the fleet has after the first n events, and when that was
// delivered or taken over.
func (h *history) known(n int) (v fleet.Verdict, since time.Time) {
	for _, e := range slices.Backward(h.events[:n]) {
		if e.delivered {
			return e.verdict, e.verdict.Time
		}
	}
	return h.resumed, h.began
}

// passed is how many of the first n events passed last, in a row.
func (h *history) passed(n int) int {
	run := 0
	for _, e := range slices.Backward(h.events[:n]) {
		switch {
		case e.forgiven:
		case e.ok:
			run++
		default:
			return run
		}
	}
	return run
}

// failed is how many failed last, in a row, since those before were forgiven, and for
// how many of them that came since the last delivery reason does not tell why.
func (h *history) failed(n int, reason string) (run, other int) {
	counts := true
	for _, e := range slices.Backward(h.events[:n]) {
		if e.ok || e.forgiven {
			break
		}
		run++
		counts = counts && !e.delivered && e.reason != reason
		if counts {
			other++
		}
	}
	return run, other
}

// latencies are those of the last five passes, sorted, since the last time that it
// was delivered that the proxy had broken.
func (h *history) latencies(n int) []time.Duration {
	var recent []time.Duration
	for i, e := range slices.Backward(h.events[:n]) {
		before, _ := h.known(i)
		if e.delivered && e.verdict.Health == fleet.Unhealthy && before.Health != fleet.Unhealthy || len(recent) == 5 {
			break
		}
		if e.ok {
			recent = append(recent, e.latency)
		}
	}
	slices.Sort(recent)
	return recent
}

func (h *history) median(n int) time.Duration {
	recent := h.latencies(n)
	if len(recent) == 0 {
		return 0
	}
	return (recent[(len(recent)-1)/2] + recent[len(recent)/2]) / 2
}

// trackerLaw is what a user relies on. It returns whether the last event keeps it.
type trackerLaw struct {
	name string
	kept func(h *history, e event, before fleet.Verdict, since time.Time) bool
}

// flips says whether an event tells of another health than before.
func flips(e event, before fleet.Verdict) bool { return e.news && e.verdict.Health != before.Health }

var trackerLaws = []trackerLaw{
	{"no flip below its threshold, but a final failure", func(h *history, e event, before fleet.Verdict, _ time.Time) bool {
		failed, _ := h.failed(len(h.events), "")
		switch {
		case !flips(e, before):
			return true
		case e.verdict.Health == fleet.Healthy:
			return h.passed(len(h.events)) >= e.passes
		default:
			return failed >= e.fails || e.final
		}
	}},
	{"always a flip at its threshold, whatever was lost before", func(h *history, e event, before fleet.Verdict, _ time.Time) bool {
		failed, _ := h.failed(len(h.events), "")
		switch {
		case h.passed(len(h.events)) >= e.passes && before.Health != fleet.Healthy:
			return e.news && e.verdict.Health == fleet.Healthy
		case (failed >= e.fails || !e.ok && e.final) && before.Health != fleet.Unhealthy:
			return e.news && e.verdict.Health == fleet.Unhealthy
		}
		return true
	}},
	{"a flip that was lost comes again with the next result of the kind", func(h *history, e event, before fleet.Verdict, _ time.Time) bool {
		if len(h.events) < 2 {
			return true
		}
		lost := h.events[len(h.events)-2]
		same := lost.ok == e.ok && lost.final == e.final && lost.passes == e.passes && lost.fails == e.fails
		if !same || lost.forgiven || lost.delivered || !flips(lost, before) {
			return true
		}
		return flips(e, before) && e.verdict.Health == lost.verdict.Health
	}},
	{"a latency only when the median of three or more moved enough, a minute after the last report", func(h *history, e event, before fleet.Verdict, since time.Time) bool {
		if before.Health != fleet.Healthy || !e.news || e.verdict.Health != fleet.Healthy {
			return true
		}
		n := len(h.events)
		by := (h.median(n) - before.Latency).Abs()
		return e.ok && len(h.latencies(n)) >= 3 && by > 20*time.Millisecond && by > before.Latency/2 && e.at.Sub(since) >= time.Minute
	}},
	{"and then always", func(h *history, e event, before fleet.Verdict, since time.Time) bool {
		n := len(h.events)
		by := (h.median(n) - before.Latency).Abs()
		due := e.ok && before.Health == fleet.Healthy && len(h.latencies(n)) >= 3 && by > max(20*time.Millisecond, before.Latency/2) && e.at.Sub(since) >= time.Minute
		return e.news || !due
	}},
	{"of an unhealthy one another reason at its threshold, at most once a minute, and nothing else", func(h *history, e event, before fleet.Verdict, since time.Time) bool {
		if before.Health != fleet.Unhealthy || flips(e, before) {
			return true
		}
		_, other := h.failed(len(h.events), before.Reason)
		return e.news == (other >= e.fails && e.at.Sub(since) >= time.Minute) && (!e.news || e.reason != before.Reason)
	}},
	{"nothing of an unknown one but its first verdict", func(_ *history, e event, before fleet.Verdict, _ time.Time) bool {
		return before.Health != fleet.Unknown || !e.news || flips(e, before)
	}},
	{"a verdict says what the last result was", func(h *history, e event, before fleet.Verdict, _ time.Time) bool {
		want := fleet.Verdict{Health: fleet.Unhealthy, Reason: e.reason, Message: e.message, Latency: before.Latency, Time: e.at}
		if e.ok {
			want = fleet.Verdict{Health: fleet.Healthy, Reason: e.reason, Message: e.message, Latency: h.median(len(h.events)), Time: e.at}
		}
		return !e.news || e.verdict == want
	}},
}

var (
	someSteps      = rapid.SampledFrom([]time.Duration{0, time.Second, 20 * time.Second, 30 * time.Second, time.Minute - 1, time.Minute, time.Hour})
	someThresholds = rapid.IntRange(1, 5)
	someMillis     = rapid.SampledFrom([]int{1, 10, 30, 31, 50, 100, 151, 500})
	someVerdicts   = rapid.Custom(func(rt *rapid.T) fleet.Verdict {
		return rapid.SampledFrom([]fleet.Verdict{
			{}, healthyAt(0, dawn), healthyAt(40, dawn), healthyAt(100, dawn),
			{Health: fleet.Unhealthy, Reason: "DialFailed", Message: "refused"},
			{Health: fleet.Unhealthy, Reason: "ProxyAuthRequired", Latency: 40 * time.Millisecond},
		}).Draw(rt, "verdict")
	})
	someFailures = rapid.SampledFrom([]result{
		fail, {reason: "ProxyAuthRequired", message: "407"}, {reason: "ProbeTimeout"}, {reason: "EndpointForbidden", final: true},
	})
)

// someResult agrees with the last one now and then, so that thresholds are reached.
func someResult(rt *rapid.T, last result) result {
	switch rapid.SampledFrom([]string{"as before", "as before", "pass", "failure"}).Draw(rt, "result") {
	case "pass":
		return pass(someMillis.Draw(rt, "ms"))
	case "failure":
		return someFailures.Draw(rt, "failure")
	}
	if last.ok {
		return pass(someMillis.Draw(rt, "ms"))
	}
	return last
}

func TestNobodyIsToldTooMuchTooEarlyOrTooLate(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		now := dawn
		h := &history{resumed: someVerdicts.Draw(rt, "resumed"), began: now}
		tr := resume(h.resumed, now)
		c := fleet.Check{SuccessThreshold: someThresholds.Draw(rt, "passes"), FailureThreshold: someThresholds.Draw(rt, "failures")}
		last := pass(10)
		for range rapid.IntRange(1, 60).Draw(rt, "n") {
			now = now.Add(someSteps.Draw(rt, "step"))
			switch rapid.IntRange(0, 19).Draw(rt, "besides") {
			case 1:
				tr.forgive()
				h.events = append(h.events, event{forgiven: true})
			case 2: // somebody edits the check
				c.SuccessThreshold, c.FailureThreshold = someThresholds.Draw(rt, "passes"), someThresholds.Draw(rt, "failures")
			}
			last = someResult(rt, last)
			before, since := h.known(len(h.events))
			e := event{result: last, at: now, passes: c.SuccessThreshold, fails: c.FailureThreshold}
			e.verdict, e.news = tr.record(last, c, now)
			h.events = append(h.events, e)
			for _, law := range trackerLaws {
				if !law.kept(h, e, before, since) {
					rt.Fatalf("%s: known %+v since %s, told %v: %+v", law.name, before, now.Sub(since), e.news, e.verdict)
				}
			}
			if e.news && rapid.SampledFrom([]bool{true, true, false}).Draw(rt, "arrives") {
				tr.delivered(e.verdict)
				h.events[len(h.events)-1].delivered = true
			}
			if known, _ := h.known(len(h.events)); tr.verdict != known {
				rt.Fatalf("the tracker knows %+v, the fleet %+v", tr.verdict, known)
			}
		}
	})
}

func TestTakingOverAFleetThatIsAsItWasTellsNothingInTheFirstMinute(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v := someVerdicts.Filter(func(v fleet.Verdict) bool { return v.Health != fleet.Unknown }).Draw(rt, "known")
		tr := resume(v, dawn)
		c := fleet.Check{SuccessThreshold: someThresholds.Draw(rt, "passes"), FailureThreshold: someThresholds.Draw(rt, "failures")}
		for now := dawn; now.Before(dawn.Add(time.Minute)); now = now.Add(time.Duration(rapid.IntRange(1, 20).Draw(rt, "seconds")) * time.Second) {
			r := pass(someMillis.Draw(rt, "ms"))
			if v.Health == fleet.Unhealthy {
				r = someFailures.Draw(rt, "failure")
			}
			if told, news := tr.record(r, c, now); news {
				rt.Fatalf("told after %s: %+v", now.Sub(dawn), told)
			}
		}
	})
}
