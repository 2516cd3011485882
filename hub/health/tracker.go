package health

import (
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

const (
	// A latency is reported again when it has moved by more than the larger of
	// latencyStep and half of what was reported, at most once per reportInterval.
	latencyStep    = 20 * time.Millisecond
	reportInterval = time.Minute
)

// result is the outcome of one probe.
type result struct {
	ok bool
	// void says that the hub itself could not probe: that is no result at all.
	void bool
	// final says that no further probe is needed: whoever leases the proxy on must
	// not be led where the hub would not go.
	final bool
	// reason is a condition reason, message the detail for a person.
	reason, message string
	latency         time.Duration
}

// tracker counts the results of one instance. Its zero value has no verdict.
type tracker struct {
	verdict       fleet.Verdict
	passes, fails int // in a row
	other         int // failures in a row for another reason than the verdict's
	reported      time.Time
}

// resume starts from a verdict that was known before, without counting it as
// news.
func resume(v fleet.Verdict) tracker {
	return tracker{verdict: v, reported: v.Time}
}

// record takes one result into account. It returns the verdict and whether
// anybody has to be told: on the first verdict, on a flip, when the latency of a
// healthy proxy has moved enough, and when an unhealthy one fails for another reason. A verdict takes its threshold of
// results in a row, or a final one.
func (t *tracker) record(r result, check fleet.Check, now time.Time) (fleet.Verdict, bool) {
	if r.ok {
		t.passes, t.fails = t.passes+1, 0
	} else {
		t.passes, t.fails = 0, t.fails+1
	}
	if t.other++; r.ok || r.reason == t.verdict.Reason {
		t.other = 0
	}
	next := t.verdict
	switch {
	case r.ok && t.verdict.Health != fleet.Healthy && t.passes >= check.SuccessThreshold:
		next = fleet.Verdict{Health: fleet.Healthy, Reason: r.reason, Message: r.message, Latency: r.latency, Time: now}
	case !r.ok && t.verdict.Health != fleet.Unhealthy && (r.final || t.fails >= check.FailureThreshold):
		next = fleet.Verdict{Health: fleet.Unhealthy, Reason: r.reason, Message: r.message, Latency: t.verdict.Latency, Time: now}
	case r.ok && t.verdict.Health == fleet.Healthy && moved(t.verdict.Latency, r.latency) && now.Sub(t.reported) >= reportInterval:
		next.Latency, next.Time = r.latency, now
	case t.verdict.Health == fleet.Unhealthy && t.other >= check.FailureThreshold && now.Sub(t.reported) >= reportInterval:
		// One thing is repaired, and the next shows. No flip, and no news for leases.
		next.Reason, next.Message, next.Time = r.reason, r.message, now
	default:
		return t.verdict, false
	}
	t.verdict, t.reported, t.other = next, now, 0
	return next, true
}

func moved(reported, latest time.Duration) bool {
	return (latest - reported).Abs() > max(latencyStep, reported/2)
}
