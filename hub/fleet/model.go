package fleet

import (
	"cmp"
	"net"
	"slices"
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
	// ExpectedStatuses are those of answers that pass; none: any 2xx.
	ExpectedStatuses []int
	// InsecureSkipVerify takes any certificate of the probed site.
	InsecureSkipVerify bool
}

// Equal says that the two probe alike.
func (c Check) Equal(o Check) bool {
	return c.URL == o.URL && c.Interval == o.Interval && c.Timeout == o.Timeout &&
		c.SuccessThreshold == o.SuccessThreshold && c.FailureThreshold == o.FailureThreshold &&
		slices.Equal(c.ExpectedStatuses, o.ExpectedStatuses) && c.InsecureSkipVerify == o.InsecureSkipVerify
}

// Proxy is one Proxy as last seen in its spoke, with the engine's verdict.
type Proxy struct {
	Key
	UID string
	// Managed is false for an External proxy.
	Managed bool
	// Protocol is how clients speak to it, ServerName the name in its certificate,
	// empty for Host; Host and Port are where. Host is empty while there is no
	// address. For a Managed proxy all of it is what the instance was made with,
	// and AccessUnknown says that it is not known yet.
	Protocol      string
	ServerName    string
	Host          string
	Port          int
	AccessUnknown bool
	// PodNetwork says that Host is an address of the cluster's pod network.
	PodNetwork bool
	// Barred is why nobody may dial it; the fleet finds that out.
	Barred Bar
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
	// Secrets are the names of the Secrets whose content an instance is made of,
	// sorted, References those of all that the spec refers to.
	Secrets, References []string
	// NeedsCredentials says that clients must prove themselves; Credentials are
	// those that the running instance has, nil while they are not known, empty
	// where it is known to have none.
	NeedsCredentials bool
	Credentials      *Credentials
	// NeedsAuthorities says that the spec names who signs the proxy's certificate;
	// Authorities are nil while they are not known.
	NeedsAuthorities bool
	Authorities      *Authorities
	Verdict          Verdict
}

// Endpoint is host:port as it is dialled, empty while there is no address.
func (p *Proxy) Endpoint() string {
	if p.Host == "" {
		return ""
	}
	return net.JoinHostPort(p.Host, strconv.Itoa(p.Port))
}

// Subject is what a verdict is about: this instance at this address, spoken to like
// this. One that moves is judged anew.
type Subject struct{ UID, Instance, Endpoint, Protocol string }

// Subject is what a verdict on p is about.
func (p *Proxy) Subject() Subject { return Subject{p.UID, p.Instance, p.Endpoint(), p.Protocol} }

// Proof is what clients prove themselves to the instance with; nil where they
// need not.
func (p *Proxy) Proof() *Credentials {
	if !p.NeedsCredentials || p.Credentials == nil || *p.Credentials == (Credentials{}) {
		return nil
	}
	return p.Credentials
}

// Approach is all that a client must know to use a Proxy, its address apart.
type Approach struct {
	Protocol string
	// ServerName is the name in the proxy's certificate, Authorities sign it.
	ServerName  string
	Authorities *Authorities
	// Proof is nil where the proxy asks for none.
	Proof *Credentials
}

// Equal says that a client of the one is a client of the other.
func (a Approach) Equal(o Approach) bool {
	return a.Protocol == o.Protocol && a.ServerName == o.ServerName && a.Authorities.Equal(o.Authorities) && a.Proof.Equal(o.Proof)
}

// Approach is what a client of p must know.
func (p *Proxy) Approach() Approach {
	a := Approach{Protocol: p.Protocol, Proof: p.Proof()}
	if p.Protocol == "https" {
		a.ServerName = cmp.Or(p.ServerName, p.Host)
		if p.NeedsAuthorities {
			a.Authorities = p.Authorities
		}
	}
	return a
}

// Lacks says that something which clients need is not known yet.
func (p *Proxy) Lacks() bool {
	return p.NeedsCredentials && p.Credentials == nil || p.Protocol == "https" && p.NeedsAuthorities && p.Authorities == nil
}

// Probeable says that there is something to probe and a reason to. Without the
// credentials that it needs a probe would only show that it asks for them.
func (p *Proxy) Probeable() bool {
	return p.Provisioned && !p.Withdrawn && !p.Deleting && p.Host != "" && !p.AccessUnknown && p.Barred.Kind == NotBarred && !p.Lacks()
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
	case p.Verdict.Health == Unhealthy, p.Barred.Kind == EndpointForbidden:
		return "Unhealthy"
	default:
		return "Probing"
	}
}

// merge decides what becomes of the verdict and of what only a pass can know when
// the spoke shows p anew. old is nil at first sight; then the verdict that the status
// claims is taken over, so that a restarted hub does not forget what it knew. judged
// says that this hub judges; until it does, whoever does writes the statuses.
func merge(old *Proxy, p Proxy, judged bool) Proxy {
	switch {
	case old == nil:
	case old.UID != p.UID || old.Instance != p.Instance:
		if judged {
			p.Verdict = Verdict{}
		}
	default:
		p.Withdrawn = old.Withdrawn
		if judged {
			p.Verdict = old.Verdict
			if old.Subject() != p.Subject() {
				p.Verdict = Verdict{}
			}
		}
		if p.NeedsCredentials || p.Managed {
			p.Credentials = old.Credentials
		}
		if p.NeedsAuthorities {
			p.Authorities = old.Authorities
		}
	}
	return p
}
