package health

import (
	"slices"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

const (
	// A latency is reported again when it has moved by more than the larger of
	// latencyStep and half of what was reported, at most once per reportInterval.
	latencyStep    = 20 * time.Millisecond
	reportInterval = time.Minute
	// The latency is the median of the last recentPasses probes that passed. It is
	// reported anew once it is that of enoughPasses.
	recentPasses, enoughPasses = 5, 3
)

// result is the outcome of one probe.
type result struct {
	ok bool
	// void says that the hub itself could not probe: that is no result at all.
	void bool
	// final says that no further probe is needed: whoever leases the proxy on must
	// not be led where the hub would not go.
	final bool
	// reach is how it fared at the dial.
	reach reach
	// own says that the proxy has failed by itself, whatever the site does.
	own bool
	// reason is a condition reason, message the detail for a person.
	reason, message string
	latency         time.Duration
}

// tracker counts the results of one instance. Its zero value has no verdict.
type tracker struct {
	verdict       fleet.Verdict // as it was delivered last
	passes, fails int           // in a row
	other         int           // failures in a row for another reason than the verdict's
	own           int           // failures in a row that are the proxy's own
	edited        bool          // what is probed, or how, since the verdict
	reported      time.Time
	recent        latencies
}

// resume starts from a verdict that was known before, without counting it as
// news. Its latency is not reported anew before reportInterval after now: those who
// take over a fleet must not begin by writing to all of it.
func resume(v fleet.Verdict, now time.Time) tracker {
	return tracker{verdict: v, reported: now}
}

// record takes one result into account. It returns the verdict and whether
// anybody has to be told: on the first verdict, on a flip, when the latency of a
// healthy proxy has moved enough, and when an unhealthy one fails for another reason, or
// at once when somebody has edited how it is probed.
// A verdict takes its threshold of results in a row, or a final one. What is not
// delivered stays news, and is returned again.
func (t *tracker) record(r result, check fleet.Check, now time.Time) (fleet.Verdict, bool) {
	if r.ok {
		t.passes, t.fails = t.passes+1, 0
		t.recent.add(r.latency)
	} else {
		t.passes, t.fails = 0, t.fails+1
	}
	if t.own++; r.ok || !r.own {
		t.own = 0
	}
	if t.other++; r.ok || r.reason == t.verdict.Reason {
		t.other = 0
	}
	due := now.Sub(t.reported) >= reportInterval
	next := t.verdict
	next.Time = now
	switch {
	case r.ok && t.verdict.Health != fleet.Healthy && t.passes >= check.SuccessThreshold:
		next = fleet.Verdict{Health: fleet.Healthy, Reason: r.reason, Message: r.message, Latency: t.recent.median(), Time: now}
	case !r.ok && t.verdict.Health != fleet.Unhealthy && (r.final || t.fails >= check.FailureThreshold):
		next = fleet.Verdict{Health: fleet.Unhealthy, Reason: r.reason, Message: r.message, Latency: t.verdict.Latency, Time: now}
	case r.ok && t.verdict.Health == fleet.Healthy && due && t.recent.n >= enoughPasses && moved(t.verdict.Latency, t.recent.median()):
		next.Latency = t.recent.median()
	case t.verdict.Health == fleet.Unhealthy && (due && t.other >= check.FailureThreshold || t.edited && t.says(r)):
		// One thing is repaired, and the next shows. No flip, and no news for leases.
		next.Reason, next.Message = r.reason, r.message
	default:
		t.edited = t.edited && t.verdict.Health == fleet.Unhealthy && r.ok // and the threshold is to come
		return t.verdict, false
	}
	return next, true
}

// says says that a failure is another than the verdict tells of.
func (t *tracker) says(r result) bool {
	return !r.ok && (r.reason != t.verdict.Reason || r.message != t.verdict.Message)
}

// delivered takes note that v, which record returned, has reached the fleet.
func (t *tracker) delivered(v fleet.Verdict) {
	if v.Health != t.verdict.Health && v.Health == fleet.Unhealthy {
		t.recent = latencies{} // what works again may be as quick as before, or not
	}
	t.verdict, t.reported, t.other, t.edited = v, v.Time, 0, false
}

// ownFault says that what the proxy itself did wrong is enough for a verdict; r is the
// last result.
func (t *tracker) ownFault(r result, check fleet.Check) bool {
	return r.final || t.own >= check.FailureThreshold
}

// forgive forgets the failures that have led to no verdict: they were not the proxy's.
func (t *tracker) forgive() { t.fails, t.other, t.own = 0, 0, 0 }

func moved(reported, latest time.Duration) bool {
	return (latest - reported).Abs() > max(latencyStep, reported/2)
}

// latencies are those of the last probes that passed.
type latencies struct {
	ring [recentPasses]time.Duration
	n    int // how many there are
	next int // where the next one goes
}

func (l *latencies) add(d time.Duration) {
	l.ring[l.next] = d
	l.next = (l.next + 1) % recentPasses
	l.n = min(l.n+1, recentPasses)
}

// median is zero where there are none; of an even number it is the mean of the two in
// the middle.
func (l *latencies) median() time.Duration {
	if l.n == 0 {
		return 0
	}
	sorted := l.ring
	slices.Sort(sorted[:l.n])
	return (sorted[(l.n-1)/2] + sorted[l.n/2]) / 2
}
