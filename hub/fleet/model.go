package fleet

import (
	"cmp"
	"net"
	"strconv"
	"time"
)

// Key names a Proxy in the whole fleet.
type Key struct {
	Cluster, Namespace, Name string
}

// Compare orders keys by cluster, namespace and name.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Cluster, o.Cluster), cmp.Compare(k.Namespace, o.Namespace), cmp.Compare(k.Name, o.Name))
}

// String is cluster/namespace/name.
func (k Key) String() string { return k.Cluster + "/" + k.Namespace + "/" + k.Name }

// Health is the health engine's opinion of a Proxy.
type Health uint8

// The opinions. The zero value is "no verdict yet".
const (
	Unknown Health = iota
	Healthy
	Unhealthy
)

// Verdict is what the health engine currently says about one instance.
type Verdict struct {
	Health Health
	// Reason is a condition reason, Message the detail for a person.
	Reason, Message string
	// Latency is what a probe takes; zero while none has passed.
	Latency time.Duration
	// Time is that of the probe that led to this verdict.
	Time time.Time
}

// LatencyMillis is the latency as it is reported and compared everywhere: whole
// milliseconds, zero when there is none. What is faster than half a
// millisecond reports one, so that it does not read as none.
func (v Verdict) LatencyMillis() int64 {
	if v.Latency <= 0 {
		return 0
	}
	return max(1, v.Latency.Round(time.Millisecond).Milliseconds())
}

// Check is how a Proxy wants to be probed. URL is empty for the hub's default.
type Check struct {
	URL                                string
	Interval, Timeout                  time.Duration
	SuccessThreshold, FailureThreshold int
}

// Proxy is one Proxy as last seen in its spoke, with the engine's verdict.
type Proxy struct {
	Key
	UID string
	// Managed is false for an External proxy.
	Managed bool
	// Protocol is how clients speak to it, Host and Port where. Host is empty
	// while there is no address.
	Protocol string
	Host     string
	Port     int
	// Instance is the identity of what listens there: the provider's id for a
	// Managed proxy, the endpoint for an External one.
	Instance   string
	Attributes map[string]string
	// MaxLeases is zero where there is no limit.
	MaxLeases int
	// StatusPhase is the phase last written to the status; Phase is the current one.
	StatusPhase string
	// Provisioned says that the instance runs and has an address.
	Provisioned bool
	// Withdrawn says that the reconciler is about to delete this instance.
	Withdrawn bool
	Deleting  bool
	Check     Check
	// Secrets are the names of the Secrets that the spec refers to, sorted. The
	// instance of a Managed proxy is made of their content.
	Secrets []string
	// NeedsCredentials says that clients must prove themselves; Credentials are
	// those that the running instance has, nil while they are not known, empty
	// where it is known to have none.
	NeedsCredentials bool
	Credentials      *Credentials
	Verdict          Verdict
}

// Endpoint is host:port as it is dialled, empty while there is no address.
func (p *Proxy) Endpoint() string {
	if p.Host == "" {
		return ""
	}
	return net.JoinHostPort(p.Host, strconv.Itoa(p.Port))
}

// Subject is what a verdict is about: this instance at this address. An
// instance that moves is judged anew.
type Subject struct{ Instance, Endpoint string }

// Subject is what a verdict on p is about.
func (p *Proxy) Subject() Subject { return Subject{p.Instance, p.Endpoint()} }

// Proof is what clients prove themselves to the instance with; nil where they
// need not.
func (p *Proxy) Proof() *Credentials {
	if !p.NeedsCredentials || p.Credentials == nil || *p.Credentials == (Credentials{}) {
		return nil
	}
	return p.Credentials
}

// Probeable says that there is something to probe and a reason to. Without the
// credentials that it needs a probe would only show that it asks for them.
func (p *Proxy) Probeable() bool {
	return p.Provisioned && !p.Withdrawn && !p.Deleting && p.Host != "" && (!p.NeedsCredentials || p.Credentials != nil)
}

// Offerable says that leases may be granted on p now.
func (p *Proxy) Offerable() bool {
	return p.Probeable() && p.Verdict.Health == Healthy
}

// Phase is the current phase. It is ahead of the written one while a verdict
// or a deletion has not reached the status yet.
func (p *Proxy) Phase() string {
	switch {
	case p.Deleting:
		return "Deleting"
	case p.Withdrawn:
		return "Replacing"
	case !p.Provisioned && p.StatusPhase == "":
		return "Pending"
	case !p.Provisioned:
		return p.StatusPhase
	case p.Offerable():
		return "Ready"
	case p.Verdict.Health == Unhealthy:
		return "Unhealthy"
	default:
		return "Probing"
	}
}

// merge decides what becomes of the verdict and the credentials when the spoke
// shows p anew. old is nil at first sight; then the verdict that the status
// claims is taken over, so that a restarted hub does not forget what it knew.
func merge(old *Proxy, p Proxy) Proxy {
	switch {
	case old == nil:
	case old.UID != p.UID || old.Instance != p.Instance:
		p.Verdict = Verdict{}
	default:
		p.Withdrawn = old.Withdrawn
		p.Verdict = old.Verdict
		if old.Subject() != p.Subject() {
			p.Verdict = Verdict{}
		}
		if p.Managed {
			// An instance is what it was made: what the spec asks for meanwhile is
			// for the next one.
			p.NeedsCredentials = old.NeedsCredentials
		}
		if p.NeedsCredentials || p.Managed {
			p.Credentials = old.Credentials
		}
	}
	return p
}
