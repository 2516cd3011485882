package proxy

import (
	"time"

	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// Poll intervals of the contract; each wait is spread by ±20%.
const (
	pollSoon  = 5 * time.Second  // while provisioning or deleting
	pollDrift = 60 * time.Second // while all is well
)

// act is what a pass does to the outside world.
type act int

const (
	actNone    act = iota
	actCreate      // ask the provider for an instance
	actDelete      // take the instance out of service, then delete it
	actRelease     // drop the finalizer: nothing of ours is left
)

// situation is all that the plan depends on.
type situation struct {
	deleting bool
	// wantHash is the hash of the spec as it is now.
	wantHash string
	owner    provider.Owner
	// inst is the instance of the Proxy's name, nil when there is none.
	inst *provider.Instance
	// seenRunning says that the status already knows this very instance as provisioned.
	seenRunning bool
}

// step is what to do, what to say about it, and when to look again.
type step struct {
	act         act
	provisioned bool
	reason      string
	message     string
	wait        time.Duration
}

// Reasons of condition Provisioned, as in api/v1alpha1: this file imports no
// Kubernetes package. A test holds the two lists against each other.
const (
	reasonProvisioning   = "Provisioning"
	reasonCreated        = "Created"
	reasonReplacing      = "Replacing"
	reasonDeleting       = "Deleting"
	reasonPermanentError = "PermanentError"
)

// plan decides one pass over a Managed Proxy.
func plan(s situation) step {
	if s.deleting {
		return planDeletion(s)
	}
	inst := s.inst
	switch {
	case inst == nil:
		return step{actCreate, false, reasonProvisioning, "instance asked for", pollSoon}
	case inst.Owner != s.owner && s.seenRunning && inst.State == provider.StateRunning:
		// Known by its id, so still the one that was made: somebody has taken a
		// label off. It serves on, but nothing proves any more that it may be deleted.
		return step{actNone, true, reasonCreated,
			"the instance runs, but has lost this hub's labels: put them back, or it will be neither replaced nor deleted", pollDrift}
	case inst.Owner != s.owner:
		// Adopting it could give one instance two owners, deleting it could hurt
		// somebody else. Looked at again, in case it goes away.
		return step{actNone, false, reasonPermanentError,
			"an instance of this name exists already and does not carry this hub's labels for this Proxy: remove it, or delete this Proxy", pollDrift}
	case inst.State == provider.StateDeleting:
		return step{actNone, false, reasonReplacing, "the old instance is going", pollSoon}
	case inst.SpecHash != s.wantHash:
		return step{actDelete, false, reasonReplacing, "the spec has changed: the old instance is going", pollSoon}
	case inst.State == provider.StateStopped:
		return step{actDelete, false, reasonReplacing, withDetail("the instance has stopped and is being replaced", inst.Message), pollSoon}
	case inst.State == provider.StateRunning:
		return step{actNone, true, reasonCreated, "the instance runs", pollDrift}
	case s.seenRunning:
		// A restarting container is the health engine's business: it may be back
		// before a probe has noticed.
		return step{actNone, true, reasonCreated, withDetail("the instance is restarting", inst.Message), pollSoon}
	default:
		return step{actNone, false, reasonProvisioning, withDetail("the instance does not run yet", inst.Message), pollSoon}
	}
}

// planDeletion asks the provider by name whatever the status says: an instance
// may have been made just before a crash.
func planDeletion(s situation) step {
	switch {
	case s.inst == nil || s.inst.Owner != s.owner:
		return step{act: actRelease}
	case s.inst.State == provider.StateDeleting:
		return step{actNone, false, reasonDeleting, "the instance is going", pollSoon}
	default:
		return step{actDelete, false, reasonDeleting, "the instance is going", pollSoon}
	}
}

func withDetail(sentence, detail string) string {
	if detail == "" {
		return sentence
	}
	return sentence + ": " + detail
}
