package agent

import (
	"context"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// firstProbes is how often a container is probed that has never been ready. A kubelet too
// probes such a one out of turn; waiting a whole period would make every start that slow.
const firstProbes = 100 * time.Millisecond

// readiness follows the probe of one container life. Without a probe it is ready at once.
type readiness struct {
	probe   *corev1.Probe // nil: none
	address string

	ready     bool
	wasReady  bool
	successes int32
	failures  int32
	next      time.Time // of the next probe, while none is under way
	underWay  bool
}

func newReadiness(c *corev1.Container, podIP string, now time.Time) *readiness {
	if c.ReadinessProbe == nil {
		return &readiness{ready: true}
	}
	host := c.ReadinessProbe.TCPSocket.Host
	if host == "" {
		host = podIP
	}
	return &readiness{
		probe:   c.ReadinessProbe,
		address: net.JoinHostPort(host, probePort(c)),
		next:    now.Add(seconds(c.ReadinessProbe.InitialDelaySeconds)),
	}
}

// due is when the next probe is to start; zero for never.
func (r *readiness) due() time.Time {
	if r.probe == nil || r.underWay {
		return time.Time{}
	}
	return r.next
}

// start probes and sends what came of it to results, which must take it.
func (r *readiness) start(ctx context.Context, results chan<- bool) {
	r.underWay = true
	dialer := net.Dialer{Timeout: max(time.Second, seconds(r.probe.TimeoutSeconds))}
	go func() {
		conn, err := dialer.DialContext(ctx, "tcp", r.address)
		if err == nil {
			_ = conn.Close()
		}
		results <- err == nil
	}()
}

// record takes a probe's result.
func (r *readiness) record(ok bool, now time.Time) {
	r.underWay = false
	if ok {
		r.successes, r.failures = r.successes+1, 0
	} else {
		r.successes, r.failures = 0, r.failures+1
	}
	switch {
	case !r.ready && r.successes >= max(1, r.probe.SuccessThreshold):
		r.ready, r.wasReady = true, true
	case r.ready && r.failures >= max(1, r.probe.FailureThreshold):
		r.ready = false
	}
	period := max(time.Second, seconds(r.probe.PeriodSeconds))
	if !r.wasReady {
		period = min(period, firstProbes)
	}
	r.next = now.Add(period)
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }
