package proxy

import (
	"errors"
	"time"

	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// Poll intervals of the contract; each wait is spread by ±20%.
const (
	pollSoon  = 5 * time.Second  // while provisioning or deleting
	pollDrift = 60 * time.Second // while all is well
	pollQuota = 5 * time.Minute  // after a quota was exceeded
)

// overdue is how long after its grace period an instance may take to be gone
// before that is told.
const overdue = 30 * time.Second

// act is what a pass does to the outside world.
type act int

const (
	actNone    act = iota
	actCreate      // ask the provider for an instance
	actRepair      // put right what it needs beside itself
	actDelete      // take the instance out of service, then delete it
	actForce       // delete it without waiting for its node
	actAbandon     // give the instance up, then drop the finalizer
	actRelease     // remove what is left of ours, then drop the finalizer
)

// fit is how an instance compares with the spec and the content it refers to.
type fit int

const (
	fits      fit = iota // it is what is wanted
	differs              // it is to be replaced
	newer                // a newer hub has made it, whose hash this one cannot compute
	unknowing            // what is wanted is not known, see situation.blocked
)

// trouble is why an instance cannot be asked for now. The zero value: nothing.
type trouble struct {
	reason, message string
	// wait is when to try again; zero: when something changes.
	wait time.Duration
}

// situation is all that the plan depends on.
type situation struct {
	now      time.Time
	deleting bool
	// abandon and force say that the annotations of these names ask for it.
	abandon, force bool
	owner          provider.Owner
	// inst is the instance of the Proxy's name, nil when there is none.
	inst *provider.Instance
	fit  fit
	// seenRunning says that the status already knows this very instance as provisioned.
	seenRunning bool
	// blocked is why no instance may be asked for: what it is made of cannot be
	// read, or has failed before.
	blocked trouble
	// repaired says that what the instance lacks was made a moment ago, and did not last.
	repaired bool
	// held says why an instance that differs is not to be replaced yet; empty: it is.
	held string
}

// step is what to do, what to say about it, and when to look again.
type step struct {
	act         act
	provisioned bool
	reason      string
	message     string
	wait        time.Duration
	// told is the reason of the Event about it, where it is another.
	told string
}

// Reasons of condition Provisioned, as in api/v1alpha1: this file imports no
// Kubernetes package. A test holds the two lists against each other.
const (
	reasonProvisioning   = "Provisioning"
	reasonCreated        = "Created"
	reasonReplacing      = "Replacing"
	reasonDeleting       = "Deleting"
	reasonPermanentError = "PermanentError"
	reasonTransientError = "TransientError"
	reasonQuotaExceeded  = "QuotaExceeded"
)

// Reasons of Events that are no condition's.
const (
	toldRestarting  = "InstanceRestarting"
	toldUnreachable = "InstanceUnreachable"
	toldNewer       = "NewerInstance"
	toldLabelsLost  = "LabelsLost"
	toldWaits       = "InstanceWaits"
	toldOverdue     = "InstanceOverdue"
	toldRepair      = "InstanceRepaired"
	toldUndone      = "InstanceRepairUndone"
)

// notRunning is said from the creation on: that a provider has begun is no news.
const notRunning = "the instance is asked for, and does not run yet"

// plan decides one pass over a Managed Proxy.
func plan(s situation) step {
	if s.deleting {
		return planDeletion(s)
	}
	inst := s.inst
	switch {
	case inst == nil && s.blocked != trouble{}:
		return step{act: actNone, reason: s.blocked.reason, message: s.blocked.message, wait: s.blocked.wait, told: s.blocked.reason}
	case inst == nil:
		return step{act: actCreate, reason: reasonProvisioning, message: notRunning, wait: pollSoon}
	case inst.Owner != s.owner:
		return planForeign(s)
	case inst.State == provider.StateDeleting:
		return planGoing(s, reasonReplacing, "the old instance is going")
	case s.fit == newer:
		return planNewer(s)
	case s.fit == differs && s.held != "" && inService(s):
		return step{act: actNone, provisioned: true, reason: reasonCreated, message: s.held, wait: pollDrift}
	case s.fit == differs:
		return step{act: actDelete, reason: reasonReplacing, message: "the spec, or what it refers to, has changed: the old instance is going", wait: pollSoon}
	case inst.State == provider.StateStopped:
		return step{act: actDelete, reason: reasonReplacing, message: withDetail("the instance has stopped and is being replaced", inst.Message), wait: pollSoon}
	case s.fit == fits && inst.Lacks != "":
		next := planKept(s)
		next.message = withDetail(next.message, inst.Lacks)
		if next.wait, next.told = pollDrift, toldUndone; !s.repaired {
			next.act, next.wait, next.told = actRepair, pollSoon, toldRepair
		}
		return next
	default:
		return planKept(s)
	}
}

// inService says that an instance runs, or ran when it was last seen.
func inService(s situation) bool {
	return s.inst.State == provider.StateRunning || s.inst.State == provider.StateProvisioning && s.seenRunning
}

// planKept is about an instance that stays.
func planKept(s situation) step {
	inst := s.inst
	switch {
	case inService(s) && s.blocked != trouble{}:
		// What it was made of is there no longer; it is, and serves on.
		return step{act: actNone, provisioned: true, reason: reasonCreated,
			message: "the instance runs on, and cannot be replaced: " + s.blocked.message, wait: pollDrift, told: s.blocked.reason}
	case inst.State == provider.StateRunning:
		return step{act: actNone, provisioned: true, reason: reasonCreated, message: "the instance runs", wait: pollDrift}
	case s.seenRunning && inst.Host == "" && inst.Access != nil && inst.Access.Expose == "LoadBalancer":
		return step{act: actNone, provisioned: true, reason: reasonCreated,
			message: withDetail("the instance cannot be reached", inst.Message), wait: pollSoon, told: toldUnreachable}
	case s.seenRunning:
		// A restarting container is the health engine's business: it may be back
		// before a probe has noticed.
		return step{act: actNone, provisioned: true, reason: reasonCreated,
			message: withDetail("the instance is restarting", inst.Message), wait: pollSoon, told: toldRestarting}
	case inst.Message != "":
		return step{act: actNone, reason: reasonProvisioning, message: withDetail(notRunning, inst.Message), wait: pollSoon, told: toldWaits}
	default:
		return step{act: actNone, reason: reasonProvisioning, message: notRunning, wait: pollSoon}
	}
}

// planForeign is about an instance of the Proxy's name that does not prove to
// be ours.
func planForeign(s situation) step {
	if s.seenRunning && s.inst.State == provider.StateRunning {
		// Known by its id, so still the one that was made: somebody has taken a
		// label off. It serves on, but nothing proves any more that it may be deleted.
		return step{act: actNone, provisioned: true, reason: reasonCreated,
			message: "the instance runs, but has lost this hub's labels: put them back, or it will not be replaced, and a deletion leaves it to the cluster's collector",
			wait:    pollDrift, told: toldLabelsLost}
	}
	// Adopting it could give one instance two owners, deleting it could hurt
	// somebody else. Looked at again, in case it goes away.
	return step{act: actNone, reason: reasonPermanentError,
		message: "an instance of this name exists already and does not carry this hub's labels for this Proxy: remove it, or delete this Proxy", wait: pollDrift}
}

// planNewer leaves alone what a newer hub has made: it knows what it is.
func planNewer(s situation) step {
	const message = "a newer version of the hub has made the instance: it is left alone until that version runs again, or this Proxy is deleted"
	if inService(s) {
		return step{act: actNone, provisioned: true, reason: reasonCreated, message: message, wait: pollDrift, told: toldNewer}
	}
	return step{act: actNone, reason: reasonTransientError, message: withDetail(message, s.inst.Message), wait: pollDrift, told: toldNewer}
}

// planGoing waits for an instance whose deletion is under way.
func planGoing(s situation, reason, message string) step {
	inst := s.inst
	going := step{act: actNone, reason: reason, message: message, wait: pollSoon}
	if inst.GoneBy.IsZero() || s.now.Before(inst.GoneBy) {
		return going
	}
	if s.force && !inst.Forced {
		going.act = actForce
	}
	if s.now.After(inst.GoneBy.Add(overdue)) {
		going.told = toldOverdue
		going.message = withDetail("the instance should have been gone by "+inst.GoneBy.UTC().Format(time.RFC3339)+
			"; if its node is dead, annotate this Proxy with crawl.proxyfleet.dev/force-delete-instance=true", inst.Message)
	}
	return going
}

// planDeletion asks the provider by name whatever the status says: an instance
// may have been made just before a crash.
func planDeletion(s situation) step {
	const message = "the instance is going"
	switch {
	case s.inst != nil && s.abandon:
		// Whatever its labels say: a cluster's collector goes by the owner reference.
		return step{act: actAbandon, reason: reasonDeleting, message: "the instance is given up"}
	case s.inst == nil || s.inst.Owner != s.owner:
		return step{act: actRelease, reason: reasonDeleting, message: "there is no instance of ours any more"}
	case s.inst.State == provider.StateDeleting:
		return planGoing(s, reasonDeleting, message)
	default:
		return step{act: actDelete, reason: reasonDeleting, message: message, wait: pollSoon}
	}
}

// failure is what is known of a pass that ended in an error.
type failure struct {
	err error
	// doing is what it was about, actNone while it only looked.
	doing       act
	deleting    bool
	provisioned bool
	replacing   bool // that is what the Proxy says of itself
}

// verdict is what to say of a failure.
type verdict struct {
	provisioned bool
	reason      string
	sentence    string // the error follows it
	// wait is when to try again; zero: soon, and later every time.
	wait time.Duration
	// latched: not until one of the inputs changes. paused: not before wait.
	latched, paused bool
}

// planFailure says what an error means. An instance that has been seen running
// stays provisioned: a provider's hiccup takes no proxy from anybody.
func planFailure(f failure) verdict {
	permanent, quota := errors.Is(f.err, provider.ErrPermanent), errors.Is(f.err, provider.ErrQuotaExceeded)
	var v verdict
	switch {
	case f.deleting:
		v = verdict{reason: reasonDeleting, sentence: "the instance is to go, and will be tried again"}
	case f.doing == actCreate && permanent:
		return verdict{reason: reasonPermanentError, latched: true,
			sentence: "this will not work until the spec or what it refers to is changed, or the Proxy is annotated with crawl.proxyfleet.dev/retry"}
	case f.doing == actCreate && quota:
		return verdict{reason: reasonQuotaExceeded, sentence: "this will be tried again every five minutes", wait: pollQuota, paused: true}
	case f.doing != actCreate && f.provisioned:
		v = verdict{provisioned: true, reason: reasonCreated, sentence: "the instance ran when it was last seen"}
	case f.replacing:
		v = verdict{reason: reasonReplacing, sentence: "the old instance is to go, and will be tried again"}
	default:
		v = verdict{reason: reasonTransientError, sentence: "this will be tried again"}
	}
	if permanent || quota || errors.Is(f.err, provider.ErrLasting) {
		v.wait = pollDrift // somebody has to do something first
	}
	return v
}

func withDetail(sentence, detail string) string {
	if detail == "" {
		return sentence
	}
	return sentence + ": " + detail
}
