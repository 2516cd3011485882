package registry

import "time"

const (
	// checkMisses is how many contacts in a row may fail before a connected spoke
	// counts as unreachable.
	checkMisses = 3
	// reviewMisses is how many reviews or renewals in a row must fail before that
	// counts: a starting API server refuses for a moment what it grants.
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
	reasonDuplicate       = "DuplicateCluster"
)

// path says whether any Proxy of a spoke accepts a connection from the hub: of its
// Managed ones, or of its External ones where it has none.
type path int

const (
	pathUnknown path = iota // nobody has said so far
	pathOpen
	pathBroken // every dial fails
)

// fault is why something does not work; the zero value: it does, or has not
// been tried.
type fault struct{ reason, message string }

// State is what the registry makes of a spoke. It is comparable: a change of
// what is visible of it has to be told.
type State struct {
	// Ready and Reason are the Ready condition; Message is for a person.
	Ready           bool
	Reason, Message string
	// Since is when a loss began: the first of the contacts that failed. Zero
	// while nothing is lost.
	Since time.Time
	// CredentialReason is set while something serves that is not what was
	// offered last, because that does not work.
	CredentialReason, CredentialMessage string
	// Others says which other hubs have marked Proxies here; empty: none.
	Others string
	// Path is the way from the hub to its Proxies, which Ready says nothing of.
	Path                        path
	Server, Version, ClusterUID string
	// Hash is that of the kubeconfig that was tried last: it serves, or was refused.
	Hash string
	// Namespaces are the only ones that are looked at; empty: all are.
	Namespaces string
	// Dials says that addresses of its pods are dialled.
	Dials bool
	// Shadowed says that a Secret has the name of the local spoke, and is not used.
	Shadowed bool
	// LastContact is when the spoke answered last; zero: never.
	LastContact time.Time

	// serving says that a connection is up, whether or not it answers right now;
	// lost is why it does not.
	serving bool
	lost    fault
	// offer is the key of what was offered last, refused why that does not serve.
	offer, offerHash string
	refused          fault
	// misses and doubts count contacts and reviews in a row that failed, missing
	// is when the first of those contacts did.
	misses, doubts int
	missing        time.Time
}

// newState is that of a spoke which has not been looked at. clusterUID is the
// identity that the spoke had for a hub before this one, if any.
func newState(clusterUID string) State {
	s := State{ClusterUID: clusterUID}
	s.derive()
	return s
}

// derive puts into words what the state comes down to.
func (s *State) derive() {
	s.CredentialReason, s.CredentialMessage = "", ""
	s.Ready = s.serving && s.lost == fault{}
	switch {
	case s.Ready:
		s.Reason, s.Message = reasonConnected, "connected"
		if s.Namespaces != "" {
			s.Message = "connected, in these namespaces only: " + s.Namespaces
		}
		if !s.Dials {
			s.Message += "; its pod network is not declared routable, so that Proxies with expose: PodIP are not probed"
		}
	case s.serving:
		s.Reason, s.Message = s.lost.reason, s.lost.message
	case s.refused != fault{}:
		s.Reason, s.Message = s.refused.reason, s.refused.message
	default:
		s.Reason, s.Message = reasonConnecting, "connecting for the first time"
	}
	if s.serving {
		s.CredentialReason, s.CredentialMessage = s.refused.reason, s.refused.message
		if s.lost.reason == reasonUnauthorized && s.refused == (fault{}) {
			s.CredentialReason, s.CredentialMessage = s.lost.reason, s.lost.message
		}
	}
}

// visible is the part of the state that a Spoke shows.
func (s State) visible() State {
	s.lost, s.refused, s.offer, s.offerHash = fault{}, fault{}, "", ""
	s.misses, s.doubts = 0, 0
	s.missing, s.LastContact = time.Time{}, time.Time{}
	return s
}

// isLost says that a connection is up which does not answer any more.
func (s State) isLost() bool { return s.serving && !s.Ready }

// pinned takes note of the identity that another replica has found, where this one
// has found none.
func (s *State) pinned(clusterUID string) {
	if s.ClusterUID == "" {
		s.ClusterUID = clusterUID
	}
}

// offered takes note of what the Secret holds now. server is empty for what is
// refused at sight.
func (s *State) offered(key, hash, server string) {
	s.offer, s.offerHash = key, hash
	if !s.serving {
		s.Server = server
	}
}

// dials says whether addresses of its pods are dialled.
func (s *State) dials(are bool) {
	s.Dials = are
	s.derive()
}

// dialled takes note of whether every Proxy that counts fails at the dial.
func (s *State) dialled(allFail bool) {
	s.Path = pathOpen
	if allFail {
		s.Path = pathBroken
	}
}

// takenBack says that what was offered last is what serves.
func (s *State) takenBack() {
	s.refused, s.Hash = fault{}, s.offerHash
	s.derive()
}

// fails says why what was offered last does not serve.
func (s *State) fails(reason, message string) {
	s.refused, s.Hash = fault{reason, message}, s.offerHash
	s.derive()
}

// connected says that what was offered with this key serves now, as this
// cluster. What was offered meanwhile may have been refused, and stays so.
func (s *State) connected(key, server, namespaces, version, clusterUID string, now time.Time) {
	s.serving, s.lost, s.Namespaces = true, fault{}, namespaces
	s.Server, s.ClusterUID, s.Since = server, clusterUID, time.Time{}
	if s.offer == key {
		s.refused, s.Hash = fault{}, s.offerHash
	}
	s.answered(now)
	s.reviewed(version)
}

// closed says that the connection was given up, and why.
func (s *State) closed(reason, message string) {
	s.serving, s.lost, s.Others, s.Namespaces, s.Since = false, fault{}, "", "", time.Time{}
	if s.refused == (fault{}) {
		s.refused = fault{reason, message}
	}
	s.derive()
}

// answered takes note of a contact. It makes nothing ready that is lost: that
// takes a connection whose informers have listed since.
func (s *State) answered(now time.Time) {
	s.misses, s.missing, s.LastContact = 0, time.Time{}, now
	s.derive()
}

// missed takes note of a contact that failed. A refused credential counts at
// once, anything else when it has happened checkMisses times in a row. The loss
// then began with the first of them.
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
func (s *State) reviewed(version string) {
	s.doubts, s.Version = 0, version
	s.derive()
}

// doubted takes note of a review that failed, or of a renewal: a connection
// that was to replace one whose informers have lost their watch. That a review
// did not reach the spoke is for the contacts to find; another cluster counts at
// once.
func (s *State) doubted(reason, message string, renewal bool, now time.Time) {
	if reason == reasonUnreachable && !renewal && s.Ready {
		return
	}
	s.doubts++
	if s.doubts >= reviewMisses || reason == reasonIdentityChanged || reason == reasonDuplicate || !s.Ready {
		s.lose(reason, message, now)
	}
}

func (s *State) lose(reason, message string, since time.Time) {
	if s.Ready {
		s.Since = since
	}
	s.lost = fault{reason, message}
	s.derive()
}

// moved says whether a spoke that was pinned to one cluster may become another:
// an unpinned one may, and one whose admin has named the other.
func moved(pinned, found, accepted string) (allowed bool) {
	return pinned == "" || pinned == found || accepted == found
}
