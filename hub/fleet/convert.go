package fleet

import (
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
		Protocol:    string(spec.Protocol),
		StatusPhase: string(status.Phase),
		Provisioned: meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionProvisioned),
		Deleting:    !o.DeletionTimestamp.IsZero(),
		Check: Check{
			URL:              spec.HealthCheck.URL,
			Interval:         time.Duration(upTo(86400, spec.HealthCheck.IntervalSeconds)) * time.Second,
			Timeout:          time.Duration(upTo(300, spec.HealthCheck.TimeoutSeconds)) * time.Second,
			SuccessThreshold: upTo(100, spec.HealthCheck.SuccessThreshold),
			FailureThreshold: upTo(100, spec.HealthCheck.FailureThreshold),
		},
		NeedsCredentials: spec.AuthSecretRef != nil,
		Secrets:          slices.Sorted(slices.Values(spec.ContentSecrets())),
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
	if p.Instance != "" && p.Endpoint() == status.Endpoint {
		p.Verdict = claimed(status)
	}
	return p
}

// upTo is what the CRD allows, from 1 on, for objects of a cluster that does not hold
// them to it: one Proxy must not take all of the engine.
func upTo(most int, n int32) int { return min(max(int(n), 1), most) }

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
