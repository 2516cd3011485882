package registry

// checkMisses is how many contacts in a row may fail before a connected spoke
// counts as unreachable.
const checkMisses = 3

// Reasons that the state itself decides, as in api/v1alpha1: this file imports
// no Kubernetes package. A test holds the two lists against each other.
const (
	reasonConnecting   = "Connecting"
	reasonConnected    = "Connected"
	reasonUnauthorized = "Unauthorized"
)

// State is what the registry makes of a spoke. It is comparable: a change of it
// is what has to be told.
type State struct {
	// Ready and Reason are the Ready condition; Message is for a person.
	Ready           bool
	Reason, Message string
	// CredentialReason is set while a changed kubeconfig is not taken.
	CredentialReason, CredentialMessage string
	Server, Version, ClusterUID         string
	// Hash is that of the kubeconfig that was offered last.
	Hash string
	// serving says that a connection is up, whether or not it answers right now.
	serving bool
	// misses counts contacts in a row that failed.
	misses int
}

func newState() State {
	return State{Reason: reasonConnecting, Message: "connecting for the first time"}
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

// refused says why a kubeconfig leads to no connection: on Ready while nothing
// serves, beside it while another one does.
func (s *State) refused(reason, message string) {
	if s.serving {
		s.CredentialReason, s.CredentialMessage = reason, message
	} else {
		s.Ready, s.Reason, s.Message = false, reason, message
	}
}

// connected says that the kubeconfig with this hash serves now.
func (s *State) connected(hash, server, version, clusterUID string) {
	s.serving = true
	s.Server, s.ClusterUID = server, clusterUID
	s.answered(hash, version)
}

// lost says that the connection was given up, which only a failed swap does.
func (s *State) lost(reason, message string) {
	s.serving = false
	s.refused(reason, message)
}

// answered takes note of a contact with the connection of that hash.
func (s *State) answered(hash, version string) {
	s.misses = 0
	s.Ready, s.Reason, s.Message, s.Version = true, reasonConnected, "connected", version
	if s.Hash == hash {
		// What was offered last serves: if it was refused before, that is over.
		s.CredentialReason, s.CredentialMessage = "", ""
	}
}

// missed takes note of a contact that failed. A refused credential counts at
// once, anything else when it has happened checkMisses times in a row. What is
// told then is the first moment of loss: later misses change nothing.
func (s *State) missed(reason, message string) {
	s.misses++
	if s.misses >= checkMisses || reason == reasonUnauthorized {
		s.Ready, s.Reason, s.Message = false, reason, message
	}
}
