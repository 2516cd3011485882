package proxy

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// setCondition stages one condition.
func setCondition(p *v1alpha1.Proxy, kind string, status metav1.ConditionStatus, reason, message string) {
	v1alpha1.SetCondition(&p.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: p.Generation,
	})
}

func setProvisioned(p *v1alpha1.Proxy, ok bool, reason, message string) {
	status := metav1.ConditionFalse
	if ok {
		status = metav1.ConditionTrue
	}
	setCondition(p, v1alpha1.ConditionProvisioned, status, reason, message)
}

// setTrouble stages condition Provisioned for an error of the provider. While
// the condition as it was written says the same, its text stands: the next
// error's may differ in a port or a counter, which is no transition, and every
// write would bring the Proxy back into the queue past its backoff. The log has
// them all.
func (s *pass) setTrouble(p *v1alpha1.Proxy, ok bool, reason, sentence string, err error) {
	message := withDetail(sentence, err.Error())
	if c := s.written; c != nil && (c.Status == metav1.ConditionTrue) == ok && c.Reason == reason && strings.HasPrefix(c.Message, sentence+":") {
		message = c.Message
	}
	s.told = toldTrouble
	setProvisioned(p, ok, reason, message)
}

func provisioned(p *v1alpha1.Proxy) bool {
	return meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionProvisioned)
}

// setInstance stages what the status says about the instance; nil for none.
// Only one that is known to be what the spec asks for is known to listen on its
// port.
func setInstance(p *v1alpha1.Proxy, inst *provider.Instance, known bool) {
	if inst == nil {
		p.Status.ProviderID, p.Status.IP, p.Status.Endpoint, p.Status.Access = "", "", "", nil
		return
	}
	if p.Status.ProviderID != inst.ProviderID {
		p.Status.IP, p.Status.Endpoint, p.Status.Access = "", "", nil
	}
	p.Status.ProviderID = inst.ProviderID
	switch {
	case known:
		p.Status.Access = p.Spec.AccessTo()
		// Whose address it is can only be said by who has found it.
		p.Status.Access.Expose = v1alpha1.ExposePodIP
		if inst.Access != nil {
			p.Status.Access.Expose = inst.Access.Expose
		}
	case inst.Access != nil:
		p.Status.Access = inst.Access
	}
	// A restarting instance may show no address for a moment; it keeps the one
	// it had until it shows another.
	if inst.Host == "" {
		return
	}
	p.Status.IP = inst.Host
	if _, port, err := net.SplitHostPort(p.Status.Endpoint); known || err == nil {
		if known {
			port = strconv.Itoa(int(p.Spec.ListenPort()))
		}
		p.Status.Endpoint = net.JoinHostPort(inst.Host, port)
	}
}

// setBarred stages why nobody dials the Proxy.
func setBarred(p *v1alpha1.Proxy, seen *fleet.Proxy) {
	switch bar := seen.Barred; bar.Kind {
	case fleet.NotRoutable:
		setCondition(p, v1alpha1.ConditionHealthy, metav1.ConditionUnknown, v1alpha1.ReasonNotRoutable, fmt.Sprintf(
			"it is not probed: whether pods of spoke %[1]s can be dialled from the hub is not known. Have the hub's admin annotate the spoke's Secret with %[2]s=%[3]s if they can, or set spec.kubernetes.expose to HostPort or LoadBalancer",
			seen.Cluster, v1alpha1.AnnotationPodNetwork, v1alpha1.PodNetworkRoutable))
	case fleet.EndpointConflict:
		setCondition(p, v1alpha1.ConditionHealthy, metav1.ConditionUnknown, v1alpha1.ReasonEndpointConflict, fmt.Sprintf(
			"it is not probed: Proxy %s has the same endpoint, %s, and nobody knows which of the two a client reaches. Where their pod networks overlap, expose one of them by HostPort or LoadBalancer",
			bar.Rival, p.Status.Endpoint))
	case fleet.EndpointForbidden:
		setCondition(p, v1alpha1.ConditionHealthy, metav1.ConditionFalse, v1alpha1.ReasonEndpointForbidden,
			bar.Detail+", which is not dialled: give the proxy an address that others can reach, or run the hub with --allow-local-endpoints")
	}
}

// finishStatus derives Healthy, Ready and the phase from what was staged and
// from the engine's verdict. seen is the fleet's view, nil when it has none.
func finishStatus(p *v1alpha1.Proxy, seen *fleet.Proxy, instance string) {
	var v fleet.Verdict
	same := seen != nil && seen.UID == string(p.UID) && seen.Subject() == fleet.Subject{Instance: instance, Endpoint: p.Status.Endpoint}
	if same {
		v = seen.Verdict
	}
	p.Status.LatencyMillis = 0
	switch {
	case !provisioned(p):
		setCondition(p, v1alpha1.ConditionHealthy, metav1.ConditionUnknown, v1alpha1.ReasonNotProvisioned, "nothing to probe yet")
	case same && seen.Barred.Kind != fleet.NotBarred:
		setBarred(p, seen)
	case seen != nil && seen.Lacks():
		setCondition(p, v1alpha1.ConditionHealthy, metav1.ConditionUnknown, v1alpha1.ReasonProbing, "what clients need is not known: condition Provisioned says why")
	case v.Health == fleet.Healthy:
		setCondition(p, v1alpha1.ConditionHealthy, metav1.ConditionTrue, v.Reason, v.Message)
		p.Status.LatencyMillis = v.LatencyMillis()
	case v.Health == fleet.Unhealthy:
		setCondition(p, v1alpha1.ConditionHealthy, metav1.ConditionFalse, v.Reason, v.Message)
		p.Status.LatencyMillis = v.LatencyMillis()
	default:
		setCondition(p, v1alpha1.ConditionHealthy, metav1.ConditionUnknown, v1alpha1.ReasonProbing, "no verdict yet")
	}
	if !v.Time.IsZero() && provisioned(p) {
		// The wire has whole seconds; a finer time would differ from itself
		// after the round trip and cause a write each pass.
		p.Status.LastHealthCheckTime = &metav1.Time{Time: v.Time.Truncate(time.Second)}
	}
	if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionProvisioned); c == nil || c.Reason != v1alpha1.ReasonPermanentError {
		p.Status.FailedInputs = ""
	}
	setReady(p)
	p.Status.Phase = phase(p)
	p.Status.ObservedGeneration = p.Generation
}

// setReady repeats the first condition that stands in the way.
func setReady(p *v1alpha1.Proxy) {
	for _, kind := range []string{v1alpha1.ConditionProvisioned, v1alpha1.ConditionHealthy} {
		if c := meta.FindStatusCondition(p.Status.Conditions, kind); c != nil && c.Status != metav1.ConditionTrue {
			setCondition(p, v1alpha1.ConditionReady, metav1.ConditionFalse, c.Reason, c.Message)
			return
		}
	}
	setCondition(p, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ConditionReady, "provisioned and healthy")
}

// phase sums the staged conditions up.
func phase(p *v1alpha1.Proxy) v1alpha1.Phase {
	if !p.DeletionTimestamp.IsZero() {
		return v1alpha1.PhaseDeleting
	}
	if provisioned(p) {
		switch health := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionHealthy); health.Status {
		case metav1.ConditionTrue:
			return v1alpha1.PhaseReady
		case metav1.ConditionFalse:
			return v1alpha1.PhaseUnhealthy
		default:
			return v1alpha1.PhaseProbing
		}
	}
	c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionProvisioned)
	switch {
	case c == nil:
		return v1alpha1.PhasePending
	case c.Reason == v1alpha1.ReasonReplacing:
		return v1alpha1.PhaseReplacing
	case c.Reason == v1alpha1.ReasonPermanentError:
		return v1alpha1.PhaseFailed
	case c.Reason == v1alpha1.ReasonProvisioning:
		return v1alpha1.PhaseProvisioning
	default:
		return v1alpha1.PhasePending
	}
}

// equal says that writing b over a would change nothing.
func equal(a, b *v1alpha1.ProxyStatus) bool { return equality.Semantic.DeepEqual(a, b) }
