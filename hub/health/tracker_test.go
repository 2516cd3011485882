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
		{"and is no news twice", fleet.Unhealthy, []result{{final: true}, {final: true}}, fleet.Unhealthy, 0},
		{"further failures are no news", fleet.Healthy, []result{fail, fail, fail, fail, fail}, fleet.Unhealthy, 1},
		{"one pass does not bring it back", fleet.Unhealthy, []result{pass(10)}, fleet.Unhealthy, 0},
		{"two do", fleet.Unhealthy, []result{pass(10), pass(10)}, fleet.Healthy, 1},
		{"a failure in between starts that count again too", fleet.Unhealthy, []result{pass(10), fail, pass(10)}, fleet.Unhealthy, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := time.Unix(1_000_000, 0)
			tr := resume(fleet.Verdict{Health: tc.start, Latency: 10 * time.Millisecond, Time: now}, time.Time{})
			told := 0
			for _, r := range tc.results {
				now = now.Add(check.Interval)
				if _, tell := tr.record(r, check, now); tell {
					told++
				}
			}
			if tr.verdict.Health != tc.want || told != tc.told {
				t.Errorf("health %v told %d times, want %v and %d", tr.verdict.Health, told, tc.want, tc.told)
			}
		})
	}
}

func TestWhoHasRepairedOneFaultIsToldOfTheNext(t *testing.T) {
	tr := resume(fleet.Verdict{}, time.Time{})
	now := time.Unix(1_000_000, 0)
	record := func(r result) (fleet.Verdict, bool) {
		now = now.Add(check.Interval)
		return tr.record(r, check, now)
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
	for range 50 { // by turns, but at most once a minute
		for range 3 {
			now = now.Add(quick.Interval)
			if _, news := tr.record(fail, quick, now); news {
				t.Fatalf("told again within a minute")
			}
			if now.Sub(v.Time) > 55*time.Second {
				return
			}
		}
	}
}

func TestAVerdictSaysWhatFailedAndKeepsTheLatencyThatWasKnown(t *testing.T) {
	tr := resume(fleet.Verdict{Health: fleet.Healthy, Latency: 40 * time.Millisecond}, time.Time{})
	now := time.Unix(1_000_000, 0)
	tr.record(fail, check, now)
	tr.record(fail, check, now)
	v, told := tr.record(fail, check, now)
	want := fleet.Verdict{Health: fleet.Unhealthy, Reason: "DialFailed", Message: "refused", Latency: 40 * time.Millisecond, Time: now}
	if !told || v != want {
		t.Errorf("got %+v, want %+v", v, want)
	}
}

func TestALatencyIsReportedWhenItMovedEnoughAndAtMostOnceAMinute(t *testing.T) {
	for _, tc := range []struct {
		name          string
		reported, now int
		after         time.Duration
		want          bool
	}{
		{"moved by exactly the step", 10, 30, time.Hour, false},
		{"moved by more than the step", 10, 31, time.Hour, true},
		{"fell by more than half", 100, 49, time.Hour, true},
		{"moved by less than half of a slow one", 100, 149, time.Hour, false},
		{"moved by more than half of a slow one", 100, 151, time.Hour, true},
		{"moved a lot, too soon", 10, 500, 59 * time.Second, false},
		{"moved a lot, a minute later", 10, 500, time.Minute, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			start := time.Unix(1_000_000, 0)
			tr := resume(fleet.Verdict{Health: fleet.Healthy, Latency: time.Duration(tc.reported) * time.Millisecond, Time: start}, time.Time{})
			if _, told := tr.record(pass(tc.now), check, start.Add(tc.after)); told != tc.want {
				t.Errorf("told %v, want %v", told, tc.want)
			}
		})
	}
}
