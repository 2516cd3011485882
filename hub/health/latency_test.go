package health

import (
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

func TestTheLatencyThatLeasesAreSortedByIsTheMedianOfTheLastFivePasses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		passes []int
		want   int
	}{
		{"none", nil, 0},
		{"one", []int{40}, 40},
		{"of two the mean", []int{40, 10}, 25},
		{"of three the one in the middle", []int{90, 10, 40}, 40},
		{"of four the mean of the two in the middle", []int{90, 10, 40, 20}, 30},
		{"of five the one in the middle", []int{50, 10, 40, 20, 30}, 30},
		{"one slow probe among five moves nothing", []int{30, 30, 5000, 30, 30}, 30},
		{"the first is forgotten after five", []int{10, 10, 10, 50, 50, 50}, 50},
		{"all are, once five others have come", []int{900, 900, 900, 900, 900, 10, 20, 30, 40, 50}, 30},
		{"and once more", []int{1, 1, 1, 1, 1, 9, 9, 9, 9, 9, 3, 3, 3}, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var l latencies
			for _, ms := range tc.passes {
				l.add(time.Duration(ms) * time.Millisecond)
			}
			if got, want := l.median(), time.Duration(tc.want)*time.Millisecond; got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

func TestALatencyIsReportedWhenItMovedEnoughAndAtMostOnceAMinute(t *testing.T) {
	for _, tc := range []struct {
		name     string
		reported int
		passes   []int
		after    time.Duration // the last of them, since the last report
		want     int           // zero: none is reported
	}{
		{"moved by exactly the step", 10, []int{30, 30, 30}, time.Hour, 0},
		{"moved by more than the step", 10, []int{31, 31, 31}, time.Hour, 31},
		{"fell by more than half", 100, []int{49, 49, 49}, time.Hour, 49},
		{"fell by half", 100, []int{50, 50, 50}, time.Hour, 0},
		{"moved by less than half of a slow one", 100, []int{149, 149, 149}, time.Hour, 0},
		{"moved by more than half of a slow one", 100, []int{151, 151, 151}, time.Hour, 151},
		{"moved a lot, too soon", 10, []int{500, 500, 500}, time.Minute - 1, 0},
		{"moved a lot, a minute later", 10, []int{500, 500, 500}, time.Minute, 500},
		{"one pass is too few", 10, []int{500}, time.Hour, 0},
		{"two are too few", 10, []int{500, 500}, time.Hour, 0},
		{"of three it is the one in the middle", 10, []int{500, 5, 400}, time.Hour, 400},
		{"a single slow one among five", 10, []int{10, 12, 9, 11, 5000}, time.Hour, 0},
		{"two slow ones among five", 10, []int{10, 12, 5000, 11, 5000}, time.Hour, 0},
		{"three slow ones among five", 10, []int{10, 300, 200, 11, 400}, time.Hour, 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := resume(healthyAt(tc.reported, dawn), dawn)
			last := len(tc.passes) - 1
			for _, ms := range tc.passes[:last] {
				if _, told := tr.tell(pass(ms), check, dawn); told {
					t.Fatal("told too soon")
				}
			}
			v, told := tr.tell(pass(tc.passes[last]), check, dawn.Add(tc.after))
			want := healthyAt(tc.want, dawn.Add(tc.after))
			if told != (tc.want > 0) || told && v != want {
				t.Errorf("told %v: %+v, want %+v", told, v, want)
			}
		})
	}
}

func TestAFailureInBetweenReportsNoLatencyAndKeepsThePasses(t *testing.T) {
	tr := resume(healthyAt(10, dawn), dawn)
	now := dawn.Add(time.Hour)
	for i, r := range []result{pass(500), fail, pass(500), fail} {
		if _, told := tr.tell(r, check, now); told {
			t.Errorf("told at %d", i)
		}
	}
	if v, told := tr.tell(pass(500), check, now); !told || v != healthyAt(500, now) {
		t.Errorf("told %v: %+v", told, v)
	}
}

func TestARepairedProxyIsNotRankedByWhatItWasBeforeItBroke(t *testing.T) {
	tr := resume(fleet.Verdict{}, dawn)
	now := dawn
	record := func(r result) (fleet.Verdict, bool) {
		now = now.Add(check.Interval)
		return tr.tell(r, check, now)
	}
	for range recentPasses {
		record(pass(900))
	}
	for range check.FailureThreshold {
		record(fail)
	}
	if v := tr.verdict; v.Health != fleet.Unhealthy || v.Latency != 900*time.Millisecond {
		t.Fatalf("%+v", v)
	}
	record(pass(20))
	if v, told := record(pass(40)); !told || v != healthyAt(30, now) {
		t.Errorf("told %v: %+v", told, v)
	}
}

func TestAVerdictThatNobodyHeardOfTakesNoLatenciesAway(t *testing.T) {
	tr := resume(healthyAt(10, dawn), dawn)
	now := dawn.Add(time.Hour)
	tr.record(pass(500), check, now)
	tr.record(pass(500), check, now)
	for range check.FailureThreshold { // held back
		tr.record(fail, check, now)
	}
	if v, told := tr.record(pass(500), check, now); !told || v != healthyAt(500, now) {
		t.Errorf("told %v: %+v", told, v)
	}
}

func TestAHubThatTakesOverWritesNoLatencyToItsWholeFleetAtOnce(t *testing.T) {
	long := dawn.Add(-time.Hour)
	for _, tc := range []struct {
		name  string
		known fleet.Verdict
		now   result
	}{
		{"a healthy one that is slower now", healthyAt(10, long), pass(500)},
		{"an unhealthy one that fails for another reason now", fleet.Verdict{Health: fleet.Unhealthy, Reason: "ProxyAuthRequired", Time: long}, fail},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := resume(tc.known, dawn)
			for at := time.Second; at < time.Minute; at += time.Second {
				if _, told := tr.tell(tc.now, check, dawn.Add(at)); told {
					t.Fatalf("told after %s", at)
				}
			}
			if _, told := tr.tell(tc.now, check, dawn.Add(time.Minute)); !told {
				t.Error("not told after a minute")
			}
		})
	}
}
