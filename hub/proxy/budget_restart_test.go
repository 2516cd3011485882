package proxy

import (
	"testing"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// What a hub that has just been started makes of a fleet that another has left.

func TestWhatADeadHubWasAboutCounts(t *testing.T) {
	r := newRollout(t, Limit{number: 1}, 0)
	for i := range 2 { // the status of the first says Ready, and its pod is gone
		r.show(key(i), 0, func(p *fleet.Proxy) { p.Verdict.Health = fleet.Healthy })
	}
	r.want = 1
	r.budget.seen(key(0), "1", false, true)
	if r.pass(key(1)) {
		t.Error("two of two are out of service")
	}
}

// A restarted hub does not know the credentials yet; a healthy Proxy is no less so.
func TestARestartTakesNoHealthyProxyForOneThatIsOutOfService(t *testing.T) {
	r := newRollout(t, Limit{number: 1}, 0)
	for i := range 20 {
		r.show(key(i), 0, func(p *fleet.Proxy) { p.NeedsCredentials, p.Verdict.Health = true, fleet.Healthy })
	}
	r.want = 1 // edited while no hub ran
	taken := 0
	for i := range 20 {
		if r.pass(key(i)) {
			taken++
		}
	}
	if taken != 1 {
		t.Errorf("%d of 20 were taken out of service, 1 may", taken)
	}
}

func TestRestartsInTheMiddleOfABadEditTakeNoMore(t *testing.T) {
	const many = 20
	version, sick := map[int]int{}, map[int]bool{}
	for restart := range 6 {
		r := newRollout(t, Limit{number: 1}, 0)
		for i := range many {
			r.show(key(i), version[i], func(p *fleet.Proxy) {
				p.Verdict.Health = fleet.Healthy
				if sick[i] {
					p.Verdict.Health, p.StatusPhase = fleet.Unhealthy, "Unhealthy"
				}
			})
		}
		r.want = 1
		for range 3 {
			for i := range many {
				if r.pass(key(i)) {
					version[i], sick[i] = 1, true
					r.show(key(i), 1)
					r.sicken(key(i))
				}
			}
		}
		if len(sick) > 1 {
			t.Fatalf("after %d restarts %d of %d are out of service, 1 may", restart, len(sick), many)
		}
	}
}

func TestAfterARestartOneThatNeverServedHoldsNoRotationUp(t *testing.T) {
	r := newRollout(t, Limit{number: 1}, 0)
	r.show(key(0), 0, func(p *fleet.Proxy) { p.Provisioned, p.Host, p.StatusPhase = false, "", "Provisioning" }) // a mistyped image
	for i := 1; i < 10; i++ {
		r.show(key(i), 0, func(p *fleet.Proxy) { p.Verdict.Health = fleet.Healthy })
	}
	for i := range 10 {
		r.pass(key(i))
	}
	r.want = 1
	taken := 0
	for i := range 10 {
		if r.pass(key(i)) {
			taken++
		}
	}
	if taken != 2 { // it, which costs nothing, and one that serves
		t.Errorf("%d are replaced", taken)
	}
}

func TestARestartInTheMiddleCountsWhatIsBetweenInstances(t *testing.T) {
	r := newRollout(t, Limit{number: 1}, 0)
	r.show(key(0), 1, func(p *fleet.Proxy) { p.Provisioned, p.Host, p.StatusPhase = false, "", "Replacing" })
	r.show(key(1), 0, func(p *fleet.Proxy) { p.Verdict.Health = fleet.Healthy })
	r.want = 1
	if r.pass(key(1)) {
		t.Error("two of two are out of service")
	}
}
