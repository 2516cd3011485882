package proxy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

var (
	me = provider.Owner{ProxyUID: "uid", Hub: "hub", ClusterUID: "cluster"}
	// noon is when all plans here are made.
	noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
)

func instance(state provider.State, edits ...func(*provider.Instance)) *provider.Instance {
	i := &provider.Instance{ID: "id", ProviderID: "crawl/proxy-uid/id", Owner: me, State: state, Host: "10.0.0.1"}
	for _, edit := range edits {
		edit(i)
	}
	return i
}

func foreign(edit func(*provider.Owner)) func(*provider.Instance) {
	return func(i *provider.Instance) { edit(&i.Owner) }
}

func says(text string) func(*provider.Instance) {
	return func(i *provider.Instance) { i.Message = text }
}

// balanced has a load balancer without an address.
func balanced(i *provider.Instance) {
	i.Host, i.Access = "", &v1alpha1.Access{Expose: v1alpha1.ExposeLoadBalancer}
}

func lacks(text string) func(*provider.Instance) {
	return func(i *provider.Instance) { i.Lacks = text }
}

func goneBy(t time.Time) func(*provider.Instance) {
	return func(i *provider.Instance) { i.GoneBy = t }
}

// The arrows of the state machine, one case each. wait is in words where it is
// one of the contract's intervals.
func TestPlan(t *testing.T) {
	noSecret := trouble{"CloudInitError", "there is no Secret init", pollDrift}
	const (
		inTheWay = "an instance of this name exists already"
		newerOne = "a newer version of the hub has made the instance"
	)
	for _, tc := range []struct {
		name string
		s    situation
		want step // message: its beginning
	}{
		{"nothing there: create", situation{},
			step{actCreate, false, "Provisioning", notRunning, pollSoon, ""}},
		{"vanished after it ran: create again", situation{seenRunning: true},
			step{actCreate, false, "Provisioning", notRunning, pollSoon, ""}},
		{"cloud-init cannot be read, nothing there: wait for it", situation{blocked: noSecret},
			step{actNone, false, "CloudInitError", "there is no Secret init", pollDrift, "CloudInitError"}},
		{"failed for good with these inputs: silent", situation{blocked: trouble{"PermanentError", "no such field", 0}},
			step{actNone, false, "PermanentError", "no such field", 0, "PermanentError"}},
		{"quota exceeded: what is left of the wait", situation{blocked: trouble{"QuotaExceeded", "pods=10", time.Minute}},
			step{actNone, false, "QuotaExceeded", "pods=10", time.Minute, "QuotaExceeded"}},

		{"created, not running: wait", situation{inst: instance(provider.StateProvisioning)},
			step{actNone, false, "Provisioning", notRunning, pollSoon, ""}},
		{"it cannot start: say what the kubelet says", situation{inst: instance(provider.StateProvisioning, says("ImagePullBackOff: no such image"))},
			step{actNone, false, "Provisioning", notRunning + ": ImagePullBackOff: no such image", pollSoon, toldWaits}},
		{"running: provisioned", situation{inst: instance(provider.StateRunning)},
			step{actNone, true, "Created", "the instance runs", pollDrift, ""}},
		{"restarting after it ran: stays provisioned", situation{seenRunning: true, inst: instance(provider.StateProvisioning, says("CrashLoopBackOff"))},
			step{actNone, true, "Created", "the instance is restarting: CrashLoopBackOff", pollSoon, toldRestarting}},
		{"it lacks something beside itself: make that", situation{inst: instance(provider.StateRunning, lacks("its Service"))},
			step{actRepair, true, "Created", "the instance runs: its Service", pollSoon, toldRepair}},
		{"it lacks it again a moment later: somebody takes it away, who is not fought all the time", situation{repaired: true, inst: instance(provider.StateRunning, lacks("its Service"))},
			step{actNone, true, "Created", "the instance runs: its Service", pollDrift, toldUndone}},
		{"it lacks something, and has no address for want of it", situation{inst: instance(provider.StateProvisioning, lacks("its Service"))},
			step{actRepair, false, "Provisioning", notRunning + ": its Service", pollSoon, toldRepair}},
		{"it lacks something, and is to be replaced: replace", situation{fit: differs, inst: instance(provider.StateRunning, lacks("its Service"))},
			step{actDelete, false, "Replacing", "the spec, or what it refers to, has changed", pollSoon, ""}},
		{"it lacks something, and what it should be is not known: leave it", situation{fit: unknowing, blocked: noSecret, inst: instance(provider.StateRunning, lacks("its Service"))},
			step{actNone, true, "Created", "the instance runs on, and cannot be replaced", pollDrift, "CloudInitError"}},
		{"its load balancer has lost its address after it ran: stays provisioned", situation{seenRunning: true,
			inst: instance(provider.StateProvisioning, says("the load balancer has no address yet"), balanced)},
			step{actNone, true, "Created", "the instance cannot be reached: the load balancer has no address yet", pollSoon, toldUnreachable}},
		{"stopped: replace", situation{seenRunning: true, inst: instance(provider.StateStopped, says("Evicted"))},
			step{actDelete, false, "Replacing", "the instance has stopped and is being replaced: Evicted", pollSoon, ""}},
		{"cloud-init is gone, the instance runs: it serves on, and that is told", situation{fit: unknowing, blocked: noSecret, inst: instance(provider.StateRunning)},
			step{actNone, true, "Created", "the instance runs on, and cannot be replaced: there is no Secret init", pollDrift, "CloudInitError"}},
		{"cloud-init is gone, the instance has stopped: it goes", situation{fit: unknowing, blocked: noSecret, inst: instance(provider.StateStopped)},
			step{actDelete, false, "Replacing", "the instance has stopped and is being replaced", pollSoon, ""}},

		{"spec edited: replace", situation{fit: differs, seenRunning: true, inst: instance(provider.StateRunning)},
			step{actDelete, false, "Replacing", "the spec, or what it refers to, has changed", pollSoon, ""}},
		{"spec edited between a crash's create and its bookkeeping: replace, not adopt", situation{fit: differs, inst: instance(provider.StateProvisioning)},
			step{actDelete, false, "Replacing", "the spec, or what it refers to, has changed", pollSoon, ""}},
		{"too many are out of service: it serves on until it may go", situation{fit: differs, held: "waits", seenRunning: true, inst: instance(provider.StateRunning)},
			step{actNone, true, "Created", "waits", pollDrift, ""}},
		{"too many are out of service, but it never served: replace", situation{fit: differs, held: "waits", inst: instance(provider.StateProvisioning)},
			step{actDelete, false, "Replacing", "the spec, or what it refers to, has changed", pollSoon, ""}},
		{"old instance going: wait, one at a time", situation{fit: differs, seenRunning: true, inst: instance(provider.StateDeleting)},
			step{actNone, false, "Replacing", "the old instance is going", pollSoon, ""}},
		{"somebody deletes the instance: wait, then create", situation{seenRunning: true, inst: instance(provider.StateDeleting)},
			step{actNone, false, "Replacing", "the old instance is going", pollSoon, ""}},
		{"it should be gone and is not: say so, and what keeps it", situation{inst: instance(provider.StateDeleting, goneBy(noon.Add(-time.Minute)), says("it is on node n1"))},
			step{actNone, false, "Replacing", "the instance should have been gone by 2026-01-02T11:59:00Z", pollSoon, toldOverdue}},
		{"within its grace an annotation hurries nothing", situation{force: true, inst: instance(provider.StateDeleting, goneBy(noon.Add(time.Second)))},
			step{actNone, false, "Replacing", "the old instance is going", pollSoon, ""}},
		{"after its grace it goes by force, if annotated", situation{force: true, inst: instance(provider.StateDeleting, goneBy(noon.Add(-time.Second)))},
			step{actForce, false, "Replacing", "the old instance is going", pollSoon, ""}},
		{"a running one is never removed by force", situation{force: true, fit: differs, inst: instance(provider.StateRunning)},
			step{actDelete, false, "Replacing", "the spec, or what it refers to, has changed", pollSoon, ""}},

		{"made by a newer hub: left alone", situation{fit: newer, inst: instance(provider.StateRunning)},
			step{actNone, true, "Created", newerOne, pollDrift, toldNewer}},
		{"made by a newer hub and stopped: left alone", situation{fit: newer, inst: instance(provider.StateStopped)},
			step{actNone, false, "TransientError", newerOne, pollDrift, toldNewer}},
		{"somebody else's of that name: left alone", situation{inst: instance(provider.StateRunning, foreign(func(o *provider.Owner) { *o = provider.Owner{} }))},
			step{actNone, false, "PermanentError", inTheWay, pollDrift, ""}},
		{"another hub's: left alone, whatever its hash", situation{fit: differs, inst: instance(provider.StateRunning, foreign(func(o *provider.Owner) { o.Hub = "other" }))},
			step{actNone, false, "PermanentError", inTheWay, pollDrift, ""}},
		{"a label taken off a running one: serves on, untouched", situation{fit: differs, seenRunning: true, inst: instance(provider.StateRunning, foreign(func(o *provider.Owner) { o.Hub = "" }))},
			step{actNone, true, "Created", "the instance runs, but has lost this hub's labels", pollDrift, toldLabelsLost}},

		{"deletion: delete, although nothing is recorded", situation{deleting: true, inst: instance(provider.StateProvisioning)},
			step{actDelete, false, "Deleting", "the instance is going", pollSoon, ""}},
		{"deletion: delete a running one", situation{deleting: true, seenRunning: true, inst: instance(provider.StateRunning)},
			step{actDelete, false, "Deleting", "the instance is going", pollSoon, ""}},
		{"deletion: a newer hub's goes as well", situation{deleting: true, fit: newer, inst: instance(provider.StateRunning)},
			step{actDelete, false, "Deleting", "the instance is going", pollSoon, ""}},
		{"deletion: wait for it to go", situation{deleting: true, inst: instance(provider.StateDeleting)},
			step{actNone, false, "Deleting", "the instance is going", pollSoon, ""}},
		{"deletion: its node is dead, say so", situation{deleting: true, inst: instance(provider.StateDeleting, goneBy(noon.Add(-time.Hour)))},
			step{actNone, false, "Deleting", "the instance should have been gone by 2026-01-02T11:00:00Z", pollSoon, toldOverdue}},
		{"deletion: its node is dead, by force if annotated", situation{deleting: true, force: true, inst: instance(provider.StateDeleting, goneBy(noon.Add(-time.Hour)))},
			step{actForce, false, "Deleting", "the instance should have been gone by 2026-01-02T11:00:00Z", pollSoon, toldOverdue}},
		{"deletion: gone, let go", situation{deleting: true, seenRunning: true},
			step{actRelease, false, "Deleting", "there is no instance of ours any more", 0, ""}},
		{"deletion: abandoned, if annotated", situation{deleting: true, abandon: true, inst: instance(provider.StateRunning)},
			step{actAbandon, false, "Deleting", "the instance is given up", 0, ""}},
		{"deletion: abandoned although it has lost a label: the collector goes by the owner reference", situation{deleting: true, abandon: true, inst: instance(provider.StateRunning, foreign(func(o *provider.Owner) { o.Hub = "" }))},
			step{actAbandon, false, "Deleting", "the instance is given up", 0, ""}},
		{"deletion: forced already, and something else keeps it", situation{deleting: true, force: true, inst: instance(provider.StateDeleting, goneBy(noon.Add(-time.Hour)), func(i *provider.Instance) { i.Forced = true })},
			step{actNone, false, "Deleting", "the instance should have been gone by 2026-01-02T11:00:00Z", pollSoon, toldOverdue}},
		{"deletion: another cluster's instance is not ours to delete", situation{deleting: true, inst: instance(provider.StateRunning, foreign(func(o *provider.Owner) { o.ClusterUID = "other" }))},
			step{actRelease, false, "Deleting", "there is no instance of ours any more", 0, ""}},
		{"abandoning is for deletions alone", situation{abandon: true, inst: instance(provider.StateRunning)},
			step{actNone, true, "Created", "the instance runs", pollDrift, ""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.s.owner, tc.s.now = me, noon
			got := plan(tc.s)
			if !strings.HasPrefix(got.message, tc.want.message) || (got.message == "") != (tc.want.message == "") {
				t.Errorf("says %q, want %q", got.message, tc.want.message)
			}
			if got.message = tc.want.message; got != tc.want {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

// What an error means, by what was under way.
func TestPlanFailure(t *testing.T) {
	soon, later := time.Duration(0), pollDrift
	for _, tc := range []struct {
		name string
		f    failure
		want verdict // sentence apart
	}{
		{"a creation that may work next time", failure{err: provider.ErrTransient, doing: actCreate}, verdict{reason: "TransientError", wait: soon}},
		{"a creation for which the hub lacks a right", failure{err: provider.ErrLasting, doing: actCreate}, verdict{reason: "TransientError", wait: later}},
		{"a creation that never works", failure{err: provider.ErrPermanent, doing: actCreate}, verdict{reason: "PermanentError", latched: true}},
		{"a creation beyond the quota", failure{err: provider.ErrQuotaExceeded, doing: actCreate}, verdict{reason: "QuotaExceeded", wait: pollQuota, paused: true}},
		{"no class counts as transient", failure{err: errors.New("x"), doing: actCreate}, verdict{reason: "TransientError", wait: soon}},
		{"a look at one that ran", failure{err: provider.ErrTransient, provisioned: true}, verdict{provisioned: true, reason: "Created", wait: soon}},
		{"a look at one that ran, without the right", failure{err: provider.ErrLasting, provisioned: true}, verdict{provisioned: true, reason: "Created", wait: later}},
		{"a look at one that never ran", failure{err: provider.ErrTransient}, verdict{reason: "TransientError", wait: soon}},
		{"a replacement", failure{err: provider.ErrTransient, doing: actDelete, replacing: true}, verdict{reason: "Replacing", wait: soon}},
		{"a replacement that is refused for good", failure{err: provider.ErrPermanent, doing: actDelete, replacing: true}, verdict{reason: "Replacing", wait: later}},
		{"a look during a replacement", failure{err: provider.ErrTransient, replacing: true}, verdict{reason: "Replacing", wait: soon}},
		{"a deletion", failure{err: provider.ErrTransient, doing: actDelete, deleting: true}, verdict{reason: "Deleting", wait: soon}},
		{"a deletion that is refused for good", failure{err: provider.ErrPermanent, doing: actDelete, deleting: true}, verdict{reason: "Deleting", wait: later}},
		{"a look at one that ran, once it is to go", failure{err: provider.ErrTransient, deleting: true, provisioned: true}, verdict{reason: "Deleting", wait: soon}},
		{"what the instance needed does not go", failure{err: provider.ErrTransient, doing: actRelease, deleting: true, provisioned: true}, verdict{reason: "Deleting", wait: soon}},
	} {
		tc.f.err = fmt.Errorf("call: %w", tc.f.err)
		got := planFailure(tc.f)
		if got.sentence == "" {
			t.Errorf("%s: says nothing", tc.name)
		}
		if got.sentence = ""; got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

func TestThePlansReasonsAreTheAPIs(t *testing.T) {
	for mine, api := range map[string]string{
		reasonProvisioning: v1alpha1.ReasonProvisioning, reasonCreated: v1alpha1.ReasonCreated, reasonReplacing: v1alpha1.ReasonReplacing,
		reasonDeleting: v1alpha1.ReasonDeleting, reasonPermanentError: v1alpha1.ReasonPermanentError, reasonTransientError: v1alpha1.ReasonTransientError,
		reasonQuotaExceeded: v1alpha1.ReasonQuotaExceeded,
	} {
		if mine != api {
			t.Errorf("plan says %q, the API %q", mine, api)
		}
	}
}

func TestSpreadStaysWithinAFifth(t *testing.T) {
	for range 1000 {
		if d := spread(time.Minute); d < 48*time.Second || d > 72*time.Second {
			t.Fatalf("a minute became %s", d)
		}
	}
}
