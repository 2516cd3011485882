package health

import (
	"crypto/x509"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
)

// overtaken has a verdict wait for the fleet while its Proxy is taken out of service and
// comes back, with a state of its own.
func overtaken(t *testing.T) {
	f := fleet.New(fleet.Options{AllowLocal: true})
	rec := newRecorder()
	f.Follow(func(c fleet.Change) { // is told before the engine is
		if c.Old != nil && c.Old.Provisioned && !c.New.Provisioned {
			<-rec.observed // a probe has failed
			for range 1000 {
				runtime.Gosched() // its verdict waits for the fleet
			}
		}
	})
	b := newBench(t, at(works, time.Millisecond), func(o *Options) { o.Fleet, o.Recorder = f, rec })
	synctest.Wait()
	p := proxyOf("eu", "p", func(p *fleet.Proxy) { p.Check.URL, p.Check.FailureThreshold = "https://own.test/", 1 })
	arrive(f, p)
	elapse(time.Second)
	<-rec.observed
	b.wire.set(func() { b.wire.answer = at(broken, 5*time.Second) })
	for b.wire.count("p") < 2 {
		elapse(time.Second)
	}
	b.wire.set(func() { b.wire.answer = at(works, time.Millisecond) })
	out := p
	out.Provisioned = false
	f.Upsert(out)
	f.Upsert(p)
	synctest.Wait()
	b.mu.Lock()
	thinks := b.states[p.Key].tracker.verdict
	b.mu.Unlock()
	if says := f.Get(p.Key).Verdict; says != thinks {
		t.Errorf("the fleet says %+v, the engine goes on from %+v", says, thinks)
	}
	elapse(31 * time.Second)
	if v := f.Get(p.Key).Verdict; v.Health != fleet.Healthy {
		t.Errorf("it passes every probe, and the fleet says %+v", v)
	}
}

// A proxy of which the fleet and the engine think differently stays out of service for
// ever, whatever it passes.
func TestAVerdictThatWasOvertakenDoesNotKeepAProxyOutOfServiceForEver(t *testing.T) {
	for range 50 { // who gets the fleet first is chance
		if within(t, overtaken); t.Failed() {
			return
		}
	}
}

// Whoever sits between the hub and the page would otherwise say whether verdicts are held.
func TestWhoPassesForTheHubsURLIsNotTakenForIt(t *testing.T) {
	site := origin.Start(t)
	page := site.URL + "/generate_204"
	for _, tc := range []struct {
		name  string
		roots *x509.CertPool
		ok    bool
	}{
		{"the site's authority", site.CertPool(), true},
		{"none", x509.NewCertPool(), false},
		{"the system's", nil, false},
	} {
		r := local(tc.roots).direct(t.Context(), aim{url: page})
		if r.ok != tc.ok || !tc.ok && (r.reason != "TLSFailed" || !strings.Contains(r.message, "unknown authority")) {
			t.Errorf("%s: %+v", tc.name, r)
		}
		e := New(Options{URL: page, Roots: tc.roots})
		e.askDirectly(t.Context())
		if passed := !e.hold.passed.IsZero(); passed != tc.ok {
			t.Errorf("%s: the engine takes it for passed: %v", tc.name, passed)
		}
	}
}
