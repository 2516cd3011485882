package fleet

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// FromObject reads what the fleet needs from a Proxy object of a cluster. The
// verdict it carries is the one that the status claims, where the status is
// about the instance that the object shows.
func FromObject(cluster string, o *v1alpha1.Proxy) Proxy {
	spec, status := &o.Spec, &o.Status
	p := Proxy{
		Key:         Key{Cluster: cluster, Namespace: o.Namespace, Name: o.Name},
		UID:         string(o.UID),
		Managed:     spec.Mode != v1alpha1.ModeExternal,
		StatusPhase: phaseOf(status),
		Provisioned: meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionProvisioned),
		Deleting:    !o.DeletionTimestamp.IsZero(),
		Check: Check{
			URL:                spec.HealthCheck.URL,
			Interval:           time.Duration(upTo(86400, spec.HealthCheck.IntervalSeconds)) * time.Second,
			Timeout:            time.Duration(upTo(300, spec.HealthCheck.TimeoutSeconds)) * time.Second,
			ExpectedStatuses:   statuses(spec.HealthCheck.ExpectedStatuses),
			SuccessThreshold:   upTo(100, spec.HealthCheck.SuccessThreshold),
			FailureThreshold:   upTo(100, spec.HealthCheck.FailureThreshold),
			InsecureSkipVerify: spec.HealthCheck.InsecureSkipVerify,
		},
		Secrets: spec.ContentSecrets(), References: spec.Secrets(),
	}
	if spec.MaxLeases != nil {
		p.MaxLeases = int(*spec.MaxLeases)
	}
	if len(spec.Attributes) > 0 {
		p.Attributes = make(map[string]string, len(spec.Attributes))
		for k, v := range spec.Attributes {
			p.Attributes[k] = string(v)
		}
	}
	if p.Managed {
		// The status's endpoint, not spec.port: after an edit the old instance
		// still listens where it did.
		p.Instance = status.ProviderID
		p.Host, p.Port = splitEndpoint(status.Endpoint)
	} else if spec.Endpoint != nil {
		p.Host, p.Port = spec.Endpoint.Host, int(spec.Endpoint.Port)
		p.Instance = p.Endpoint()
	}
	p.setAccess(spec, status)
	// Of an External proxy the spec alone says what a verdict is about.
	if p.Instance != "" && p.Endpoint() == status.Endpoint && (p.Managed || o.Generation == status.ObservedGeneration) {
		p.Verdict = claimed(status)
	}
	return p
}

// setAccess says how clients reach p. An instance is what it was made, which the
// status repeats; what the spec asks for meanwhile is for the next one.
func (p *Proxy) setAccess(spec *v1alpha1.ProxySpec, status *v1alpha1.ProxyStatus) {
	access, known := spec.AccessTo(), true
	if p.Managed && p.Instance != "" {
		if known = status.Access != nil; known {
			access = status.Access
		}
	}
	p.Protocol = string(cmp.Or(access.Protocol, v1alpha1.ProtocolHTTP))
	p.ServerName, p.NeedsCredentials, p.NeedsAuthorities = access.ServerName, access.Authentication, access.Authorities
	p.PodNetwork = p.Managed && access.Expose != v1alpha1.ExposeHostPort && access.Expose != v1alpha1.ExposeLoadBalancer
	// Of a cluster that does not hold its Proxies to the CRD it could be anything.
	p.AccessUnknown = !known || !slices.Contains(protocols, v1alpha1.Protocol(p.Protocol))
}

var protocols = []v1alpha1.Protocol{v1alpha1.ProtocolHTTP, v1alpha1.ProtocolHTTPS, v1alpha1.ProtocolSOCKS5}

var phases = []v1alpha1.Phase{
	v1alpha1.PhasePending, v1alpha1.PhaseProvisioning, v1alpha1.PhaseProbing, v1alpha1.PhaseReady,
	v1alpha1.PhaseUnhealthy, v1alpha1.PhaseReplacing, v1alpha1.PhaseDeleting, v1alpha1.PhaseFailed,
}

// phaseOf is empty for one that there is not, which the status may have where the cluster
// does not hold its Proxies to the CRD: each would be a label of a metric.
func phaseOf(status *v1alpha1.ProxyStatus) string {
	if !slices.Contains(phases, status.Phase) {
		return ""
	}
	return string(status.Phase)
}

// upTo is what the CRD allows, from 1 on, for objects of a cluster that does not hold
// them to it: one Proxy must not take all of the engine.
func upTo(most int, n int32) int { return min(max(int(n), 1), most) }

// statuses are the first sixteen that the CRD allows, each once and sorted, so that
// checks that are alike are equal; nil where there are none. The others are dropped and
// not brought within bounds: whoever writes 199 does not mean 200.
func statuses(given []int32) []int {
	var allowed []int
	for _, n := range given {
		status := int(n)
		if status < 200 || status > 599 || slices.Contains(allowed, status) {
			continue
		}
		if allowed = append(allowed, status); len(allowed) == 16 {
			break
		}
	}
	slices.Sort(allowed)
	return allowed
}

// splitEndpoint is the reverse of Proxy.Endpoint; anything else is no address.
func splitEndpoint(endpoint string) (host string, port int) {
	host, portText, err := net.SplitHostPort(endpoint)
	if err != nil {
		return "", 0
	}
	port, err = strconv.Atoi(portText)
	if err != nil {
		return "", 0
	}
	return host, port
}

// claimed is the verdict in a status; none where it does not say healthy or not.
func claimed(status *v1alpha1.ProxyStatus) Verdict {
	c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionHealthy)
	if c == nil {
		return Verdict{}
	}
	v := Verdict{Reason: c.Reason, Message: c.Message, Latency: time.Duration(status.LatencyMillis) * time.Millisecond}
	switch c.Status {
	case "True":
		v.Health = Healthy
	case "False":
		v.Health = Unhealthy
	default:
		return Verdict{}
	}
	if status.LastHealthCheckTime != nil {
		v.Time = status.LastHealthCheckTime.Time
	}
	return v
}
