package health

import (
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

var check = fleet.Check{SuccessThreshold: 2, FailureThreshold: 3, Interval: 30 * time.Second, Timeout: 10 * time.Second}

func pass(ms int) result {
	return result{ok: true, reason: "ProbeSucceeded", latency: time.Duration(ms) * time.Millisecond}
}

var fail = result{reason: "DialFailed", message: "refused"}

// tell records a result and delivers what is to be told of it.
func (t *tracker) tell(r result, check fleet.Check, now time.Time) (fleet.Verdict, bool) {
	v, news := t.record(r, check, now)
	if news {
		t.delivered(v)
	}
	return v, news
}

// healthyAt is a verdict with a latency in milliseconds.
func healthyAt(ms int, at time.Time) fleet.Verdict {
	return fleet.Verdict{Health: fleet.Healthy, Reason: "ProbeSucceeded", Latency: time.Duration(ms) * time.Millisecond, Time: at}
}

var dawn = time.Unix(1_000_000, 0)

func TestVerdictsFlipAtTheirThresholdAndNotBefore(t *testing.T) {
	for _, tc := range []struct {
		name    string
		start   fleet.Health
		results []result
		want    fleet.Health
		told    int
	}{
		{"no verdict below the threshold of passes", fleet.Unknown, []result{pass(10)}, fleet.Unknown, 0},
		{"first verdict at the threshold", fleet.Unknown, []result{pass(10), pass(10)}, fleet.Healthy, 1},
		{"no verdict below the threshold of failures", fleet.Unknown, []result{fail, fail}, fleet.Unknown, 0},
		{"first verdict is bad", fleet.Unknown, []result{fail, fail, fail}, fleet.Unhealthy, 1},
		{"two failures take nothing away", fleet.Healthy, []result{fail, fail}, fleet.Healthy, 0},
		{"a pass in between starts the count again", fleet.Healthy, []result{fail, fail, pass(10), fail, fail}, fleet.Healthy, 0},
		{"three failures do", fleet.Healthy, []result{fail, fail, fail}, fleet.Unhealthy, 1},
		{"an address that nobody may be led to takes no threshold", fleet.Healthy, []result{{reason: "EndpointForbidden", final: true}}, fleet.Unhealthy, 1},
		{"nor as the first verdict", fleet.Unknown, []result{{reason: "EndpointForbidden", final: true}}, fleet.Unhealthy, 1},
		{"and is no news twice", fleet.Unhealthy, []result{{final: true}, {final: true}}, fleet.Unhealthy, 0},
		{"further failures are no news", fleet.Healthy, []result{fail, fail, fail, fail, fail}, fleet.Unhealthy, 1},
		{"one pass does not bring it back", fleet.Unhealthy, []result{pass(10)}, fleet.Unhealthy, 0},
		{"two do", fleet.Unhealthy, []result{pass(10), pass(10)}, fleet.Healthy, 1},
		{"a failure in between starts that count again too", fleet.Unhealthy, []result{pass(10), fail, pass(10)}, fleet.Unhealthy, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := dawn
			tr := resume(fleet.Verdict{Health: tc.start, Latency: 10 * time.Millisecond, Time: now}, now)
			told := 0
			for _, r := range tc.results {
				now = now.Add(check.Interval)
				if _, news := tr.tell(r, check, now); news {
					told++
				}
			}
			if tr.verdict.Health != tc.want || told != tc.told {
				t.Errorf("health %v told %d times, want %v and %d", tr.verdict.Health, told, tc.want, tc.told)
			}
		})
	}
}

func TestAVerdictThatWasNotDeliveredIsReturnedAgain(t *testing.T) {
	forbidden := result{reason: "EndpointForbidden", final: true}
	for _, tc := range []struct {
		name  string
		start fleet.Health
		run   []result // the last of them flips
		again result
		want  bool
	}{
		{"unhealthy, at the next failure", fleet.Healthy, []result{fail, fail, fail}, fail, true},
		{"unhealthy, at the next failure for another reason", fleet.Healthy, []result{fail, fail, fail}, result{reason: "ProxyAuthRequired"}, true},
		{"unhealthy, not at a pass", fleet.Healthy, []result{fail, fail, fail}, pass(10), false},
		{"healthy, at the next pass", fleet.Unhealthy, []result{pass(10), pass(10)}, pass(10), true},
		{"healthy, not at a failure", fleet.Unhealthy, []result{pass(10), pass(10)}, fail, false},
		{"the first verdict", fleet.Unknown, []result{pass(10), pass(10)}, pass(10), true},
		{"a final failure, at the next final one", fleet.Healthy, []result{forbidden}, forbidden, true},
		{"a final failure, not before the threshold at one that is not", fleet.Healthy, []result{forbidden}, fail, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := resume(fleet.Verdict{Health: tc.start}, dawn)
			var lost fleet.Verdict
			var news bool
			for _, r := range tc.run {
				lost, news = tr.record(r, check, dawn)
			}
			if !news || lost.Health == tc.start {
				t.Fatalf("no flip to lose: %v %+v", news, lost)
			}
			v, news := tr.tell(tc.again, check, dawn.Add(time.Second))
			if news != tc.want || news && v.Health != lost.Health {
				t.Errorf("told %v: %+v, want %v", news, v, tc.want)
			}
			if _, news := tr.record(tc.again, check, dawn.Add(2*time.Second)); news && tc.want {
				t.Error("told once more although it was delivered")
			}
		})
	}
}

func TestWhoHasRepairedOneFaultIsToldOfTheNext(t *testing.T) {
	tr := resume(fleet.Verdict{}, dawn)
	now := dawn
	record := func(r result) (fleet.Verdict, bool) {
		now = now.Add(check.Interval)
		return tr.tell(r, check, now)
	}
	auth := result{reason: "ProxyAuthRequired", message: "407"}
	for range 3 {
		record(fail)
	}
	for i, r := range []result{auth, auth, fail, auth, auth} { // not for as long as it takes
		if _, told := record(r); told {
			t.Errorf("told after %d", i)
		}
	}
	v, told := record(auth)
	if !told || v.Health != fleet.Unhealthy || v.Reason != auth.reason || v.Message != auth.message || v.Time != now {
		t.Errorf("told %v: %+v", told, v)
	}
	quick := check
	quick.Interval = time.Second
	for told := false; !told; { // another reason all the time, but at most once a minute
		now = now.Add(quick.Interval)
		if _, told = tr.tell(fail, quick, now); told != (now.Sub(v.Time) >= time.Minute) {
			t.Fatalf("told %v after %s", told, now.Sub(v.Time))
		}
	}
}

func TestAVerdictSaysWhatFailedAndKeepsTheLatencyThatWasKnown(t *testing.T) {
	tr := resume(healthyAt(40, dawn), dawn)
	tr.tell(fail, check, dawn)
	tr.tell(fail, check, dawn)
	v, told := tr.tell(fail, check, dawn)
	want := fleet.Verdict{Health: fleet.Unhealthy, Reason: "DialFailed", Message: "refused", Latency: 40 * time.Millisecond, Time: dawn}
	if !told || v != want {
		t.Errorf("got %+v, want %+v", v, want)
	}
}

func TestFailuresThatWereTheHubsFaultAreForgivenAndNoOthers(t *testing.T) {
	for _, tc := range []struct {
		name   string
		start  fleet.Health
		before []result
		after  []result
		want   bool // that the last one is news
	}{
		{"what failed before does not count", fleet.Healthy, []result{fail, fail}, []result{fail, fail}, false},
		{"what fails after it does", fleet.Healthy, []result{fail, fail}, []result{fail, fail, fail}, true},
		{"not even where it would have flipped", fleet.Healthy, []result{fail, fail, fail}, []result{fail}, false},
		{"passes count on", fleet.Unhealthy, []result{pass(10)}, []result{pass(10)}, true},
		{"another reason does not count either", fleet.Unhealthy, []result{fail, fail}, []result{fail}, false},
		{"a verdict stands", fleet.Unhealthy, nil, []result{pass(10)}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := resume(fleet.Verdict{Health: tc.start}, dawn)
			now := dawn.Add(time.Hour)
			for _, r := range tc.before {
				tr.record(r, check, now)
			}
			tr.forgive()
			var news bool
			for _, r := range tc.after {
				_, news = tr.record(r, check, now)
			}
			if news != tc.want {
				t.Errorf("told %v, want %v", news, tc.want)
			}
		})
	}
}

func TestWhoHasEditedTheCheckIsToldAtOnceWhatItMeetsWithNow(t *testing.T) {
	missing := result{reason: "UnexpectedStatus", message: "404"}
	for _, tc := range []struct {
		name   string
		edited bool
		after  []result
		told   []bool
	}{
		{"another message", true, []result{{reason: "UnexpectedStatus", message: "500"}}, []bool{true}},
		{"another reason", true, []result{fail}, []bool{true}},
		{"the same", true, []result{missing}, []bool{false}},
		{"the same, and then another", true, []result{missing, fail}, []bool{false, false}},
		{"a pass that is not enough, and then another", true, []result{pass(10), fail}, []bool{false, true}},
		{"once", true, []result{fail, missing}, []bool{true, false}},
		{"nobody has", false, []result{fail}, []bool{false}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := time.Unix(1_000_000, 0)
			tr := resume(fleet.Verdict{Health: fleet.Unhealthy, Reason: missing.reason, Message: missing.message}, now)
			tr.edited = tc.edited
			for i, r := range tc.after {
				v, told := tr.record(r, check, now)
				if told != tc.told[i] || told && (v.Health != fleet.Unhealthy || v.Message != r.message) {
					t.Errorf("%d: told %v: %+v", i, told, v)
				}
				if told {
					tr.delivered(v)
				}
			}
		})
	}
}
