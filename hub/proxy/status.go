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

// setInstance stages what the status says about the instance; nil for none. Only one
// that is known to be what the spec asks for is known to be reached as it says.
func setInstance(p *v1alpha1.Proxy, inst *provider.Instance, known bool) {
	if inst == nil {
		p.Status.ProviderID, p.Status.IP, p.Status.Endpoint, p.Status.Access = "", "", "", nil
		return
	}
	if p.Status.ProviderID != inst.ProviderID {
		p.Status.IP, p.Status.Endpoint, p.Status.Access = "", "", nil
	}
	p.Status.ProviderID = inst.ProviderID
	was := p.Status.Access
	if p.Status.Access = access(p, inst, known); inst.Host == "" {
		// A restarting instance may show no address for a moment, and keeps the one it
		// had. A load balancer's that is gone may be somebody else's by now.
		if a := p.Status.Access; a != nil && a.Expose == v1alpha1.ExposeLoadBalancer || was != nil && (a == nil || a.Expose != was.Expose) {
			p.Status.IP, p.Status.Endpoint = "", ""
		}
		return
	}
	p.Status.IP = inst.Host
	port := ""
	switch {
	case inst.Port != 0:
		port = strconv.Itoa(int(inst.Port))
	case known:
		port = strconv.Itoa(int(p.Spec.ListenPort()))
	default:
		_, port, _ = net.SplitHostPort(p.Status.Endpoint) // of none there is none
	}
	if port != "" {
		p.Status.Endpoint = net.JoinHostPort(inst.Host, port)
	}
}

// access is how clients reach the instance: as the spec says if it is known to be
// made of that, as before or as it says itself otherwise. Whose address it has can
// only be said by who has found it.
func access(p *v1alpha1.Proxy, inst *provider.Instance, known bool) *v1alpha1.Access {
	a := p.Status.Access
	switch {
	case known:
		a = p.Spec.AccessTo()
	case a == nil:
		a = inst.Access
	}
	if a == nil {
		return nil
	}
	a = a.DeepCopy()
	a.Expose = v1alpha1.ExposePodIP
	if inst.Access != nil {
		a.Expose = inst.Access.Expose
	}
	return a
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
			bar.Detail+", which is not dialled: give the proxy an address that others can reach. Only a hub that runs with --allow-local-endpoints dials such a one")
	}
}

// finishStatus derives Healthy, Ready and the phase from what was staged and
// from the engine's verdict. seen is the fleet's view, nil when it has none.
func finishStatus(p *v1alpha1.Proxy, seen *fleet.Proxy, instance string) {
	var v fleet.Verdict
	same := seen != nil && seen.Subject() == subject(p, instance)
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
		why := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionProvisioned).Message
		setCondition(p, v1alpha1.ConditionHealthy, metav1.ConditionUnknown, v1alpha1.ReasonProbing, "not probed, since not all is known that clients need: "+why)
	case seen != nil && seen.AccessUnknown && p.Status.Access == nil && p.Spec.Mode != v1alpha1.ModeExternal:
		setCondition(p, v1alpha1.ConditionHealthy, metav1.ConditionUnknown, v1alpha1.ReasonProbing, "not probed, since the instance does not say how it is reached: annotation "+v1alpha1.AnnotationAccess+" is missing on it")
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

// subject is what a verdict on the Proxy, as it is staged, is about.
func subject(p *v1alpha1.Proxy, instance string) fleet.Subject {
	protocol := p.Spec.AccessTo().Protocol
	if p.Status.Access != nil && p.Spec.Mode != v1alpha1.ModeExternal {
		protocol = p.Status.Access.Protocol
	}
	return fleet.Subject{UID: string(p.UID), Instance: instance, Endpoint: p.Status.Endpoint, Protocol: string(protocol)}
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
