package registry

import "time"

const (
	// checkMisses is how many contacts in a row may fail before a connected spoke
	// counts as unreachable.
	checkMisses = 3
	// reviewMisses is how many reviews in a row must find the same kind of fault
	// before it counts: a starting API server refuses for a moment what it grants.
	reviewMisses = 2
)

// Reasons that the state itself decides, as in api/v1alpha1: this file imports
// no Kubernetes package. A test holds the two lists against each other.
const (
	reasonConnecting      = "Connecting"
	reasonConnected       = "Connected"
	reasonUnreachable     = "Unreachable"
	reasonUnauthorized    = "Unauthorized"
	reasonIdentityChanged = "IdentityChanged"
)

// State is what the registry makes of a spoke. It is comparable: a change of it
// is what has to be told.
type State struct {
	// Ready and Reason are the Ready condition; Message is for a person.
	Ready           bool
	Reason, Message string
	// Since is when a loss began: the first of the contacts that failed. Zero
	// while nothing is lost.
	Since time.Time
	// CredentialReason is set while a changed kubeconfig is not taken.
	CredentialReason, CredentialMessage string
	// Others says which other hubs have marked Proxies here; empty: none.
	Others                      string
	Server, Version, ClusterUID string
	// Hash is that of the kubeconfig that was offered last.
	Hash string
	// Shadowed says that a Secret has the name of the local spoke, and is not used.
	Shadowed bool
	// LastContact is when the spoke answered last; zero: never.
	LastContact time.Time

	// serving says that a connection is up, whether or not it answers right now.
	serving bool
	// misses and doubts count contacts and reviews in a row that failed, missing
	// is when the first of those contacts did.
	misses, doubts int
	missing        time.Time
}

// newState is that of a spoke which has not been looked at. clusterUID is the
// identity that the spoke had for a hub before this one, if any.
func newState(clusterUID string) State {
	return State{Reason: reasonConnecting, Message: "connecting for the first time", ClusterUID: clusterUID}
}

// visible is the part of the state that a Spoke shows.
func (s State) visible() State {
	s.misses, s.doubts = 0, 0
	s.missing, s.LastContact = time.Time{}, time.Time{}
	return s
}

// isLost says that a connection is up which does not answer any more.
func (s State) isLost() bool { return s.serving && !s.Ready }

// offered takes note of a kubeconfig. server is empty for one that is refused.
func (s *State) offered(hash, server string) {
	s.Hash = hash
	if !s.serving {
		s.Server = server
	}
}

// refused says why what was offered leads to no connection: on Ready while
// nothing serves, beside it while something else does.
func (s *State) refused(reason, message string) {
	if s.serving {
		s.CredentialReason, s.CredentialMessage = reason, message
	} else {
		s.Ready, s.Reason, s.Message = false, reason, message
	}
}

// accepted takes a refusal back: what was offered last is what serves.
func (s *State) accepted() { s.CredentialReason, s.CredentialMessage = "", "" }

// connected says that what was offered with this hash serves now.
func (s *State) connected(hash, server, version, clusterUID string, now time.Time) {
	s.serving = true
	s.Server, s.Version, s.ClusterUID = server, version, clusterUID
	s.Ready, s.Reason, s.Message = true, reasonConnected, "connected"
	if s.Hash == hash {
		s.accepted()
	}
	s.answered(now)
	s.reviewed(version)
	s.Since = time.Time{}
}

// closed says that the connection was given up, and why.
func (s *State) closed(reason, message string) {
	s.serving, s.Others = false, ""
	s.accepted()
	s.refused(reason, message)
}

// answered takes note of a contact. It makes nothing ready that is lost: that
// takes a connection whose informers have listed since.
func (s *State) answered(now time.Time) {
	s.misses, s.missing, s.LastContact = 0, time.Time{}, now
}

// missed takes note of a contact that failed. A refused credential counts at
// once, anything else when it has happened checkMisses times in a row. What is
// told then is the first moment of loss: later misses change nothing.
func (s *State) missed(reason, message string, now time.Time) {
	if s.misses == 0 {
		s.missing = now
	}
	s.misses++
	if s.misses >= checkMisses || reason == reasonUnauthorized {
		s.lose(reason, message, s.missing)
	}
}

// reviewed takes note of a review that found nothing wrong.
func (s *State) reviewed(version string) { s.doubts, s.Version = 0, version }

// doubted takes note of a review that failed. That the spoke was not reached is
// for the contacts to find; another cluster counts at once.
func (s *State) doubted(reason, message string, now time.Time) {
	if reason == reasonUnreachable && s.Ready {
		return
	}
	s.doubts++
	if s.doubts >= reviewMisses || reason == reasonIdentityChanged || !s.Ready {
		s.lose(reason, message, now)
	}
}

// lose keeps the first words for a reason: the same fault worded otherwise is no news.
func (s *State) lose(reason, message string, since time.Time) {
	if s.Ready {
		s.Since = since
	} else if s.Reason == reason {
		return
	}
	s.Ready, s.Reason, s.Message = false, reason, message
}

// moved says whether a spoke that was pinned to one cluster may become another:
// an unpinned one may, and one whose admin has named the other.
func moved(pinned, found, accepted string) (allowed bool) {
	return pinned == "" || pinned == found || accepted == found
}

// claim is a spoke's claim to a cluster.
type claim struct {
	spoke, clusterUID string
	// created is when the spoke was registered first.
	created time.Time
}

// holder names the spoke that a cluster belongs to: of all that claim it the
// oldest, of those the first by name. It is empty when none does.
func holder(claims []claim, clusterUID string) string {
	var best *claim
	for i := range claims {
		c := &claims[i]
		switch {
		case c.clusterUID != clusterUID:
		case best == nil, c.created.Before(best.created), c.created.Equal(best.created) && c.spoke < best.spoke:
			best = c
		}
	}
	if best == nil {
		return ""
	}
	return best.spoke
}
