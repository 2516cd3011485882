package pod

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// instance reads a pod as an instance. What a Service would say is not known then:
// behind a load balancer it has no address.
func instance(p *corev1.Pod) provider.Instance { return instanceAt(p, entrance{host: ownHost(p)}) }

// instanceAt reads a pod as an instance with this entrance.
func instanceAt(p *corev1.Pod, at entrance) provider.Instance {
	inst := provider.Instance{
		ID:         string(p.UID),
		ProviderID: p.Namespace + "/" + p.Name + "/" + string(p.UID),
		Owner:      ownerOf(p),
		SpecHash:   p.Labels[v1alpha1.LabelSpecHash],
		Host:       at.host,
		Port:       listenPort(p),
		Access:     accessOf(p),
		Lacks:      at.lacks,
		CreatedAt:  p.CreationTimestamp.Time,
		State:      provider.StateProvisioning,
	}
	switch {
	case !p.DeletionTimestamp.IsZero():
		// The API server puts the end of the grace period there.
		inst.State, inst.GoneBy = provider.StateDeleting, p.DeletionTimestamp.Time
		inst.Forced = p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
		inst.Message = lingeringReason(p)
	case stopped(p):
		inst.State = provider.StateStopped
		inst.Message = joinReason(p.Status.Reason, p.Status.Message)
	case running(p) && inst.Host != "":
		inst.State = provider.StateRunning
	default:
		inst.Message = cmp.Or(waitingReason(p), at.why)
	}
	return inst
}

// describe writes an Access down as accessOf reads it.
func describe(access *v1alpha1.Access) string {
	text, _ := json.Marshal(access) // of strings and a truth value alone: it cannot fail
	return string(text)
}

// accessOf is how clients reach the instance that a pod was made as; nil where that
// is not written on it, or not in words of this version.
func accessOf(o metav1.Object) *v1alpha1.Access {
	access := &v1alpha1.Access{}
	if err := json.Unmarshal([]byte(o.GetAnnotations()[v1alpha1.AnnotationAccess]), access); err != nil {
		return nil
	}
	switch access.Expose {
	case v1alpha1.ExposePodIP, v1alpha1.ExposeHostPort, v1alpha1.ExposeLoadBalancer:
		return access
	default:
		return nil
	}
}

// ownHost is the address of an instance as far as its pod knows it. A pod that
// does not say how it is reached was made before there was a choice.
func ownHost(p *corev1.Pod) string {
	access := accessOf(p)
	switch {
	case access == nil || access.Expose == v1alpha1.ExposePodIP:
		return p.Status.PodIP
	case access.Expose == v1alpha1.ExposeHostPort:
		return p.Status.HostIP
	default:
		return "" // its Service's
	}
}

func stopped(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
}

// running says that every container of the pod runs. Readiness is not asked
// for: whether the proxy works is for the health engine to say.
func running(p *corev1.Pod) bool {
	if len(p.Status.ContainerStatuses) < len(p.Spec.Containers) {
		return false
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Running == nil {
			return false
		}
	}
	return true
}

// waitingReason is the kubelet's or the scheduler's own reason why the pod
// does not run yet, for a person; empty when none is given.
func waitingReason(p *corev1.Pod) string {
	// Ours has no init containers; what puts a mesh into pods adds some.
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		w := c.State.Waiting
		if w == nil {
			continue
		}
		switch w.Reason {
		case "", "ContainerCreating", "PodInitializing": // as it should be
		case "ErrImagePull", "ImagePullBackOff":
			// A kubelet says one and the other by turns, for one cause.
			return joinReason("ImagePullBackOff", pullError(w.Message))
		case "RegistryUnavailable", "SignatureValidationFailed":
			// Causes that have names of their own, which it repeats when it backs off.
			return joinReason("ImagePullBackOff", joinReason(w.Reason, w.Message))
		case "CrashLoopBackOff":
			// Its message counts the seconds; what went wrong is in the exit.
			return joinReason(w.Reason, exit(c.LastTerminationState.Terminated))
		default:
			return joinReason(w.Reason, w.Message)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return joinReason(c.Reason, c.Message)
		}
	}
	return ""
}

// backingOff is how a kubelet begins to say that it waits before it pulls again.
// Since 1.32 the cause comes after it.
var backingOff = regexp.MustCompile(`^Back-off pulling image(?: "[^"]*")?(?:: |$)`)

// pullError is what went wrong, without the words around it.
func pullError(message string) string {
	return strings.TrimPrefix(backingOff.ReplaceAllString(message, ""), "ErrImagePull: ")
}

// lingeringReason says what may keep a deleted pod; empty when nothing is known.
func lingeringReason(p *corev1.Pod) string {
	var why []string
	if len(p.Finalizers) > 0 {
		why = append(why, "it has the finalizers "+strings.Join(p.Finalizers, ", "))
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			why = append(why, joinReason(c.Reason, c.Message))
		}
	}
	if p.Status.Reason != "" {
		why = append(why, joinReason(p.Status.Reason, p.Status.Message))
	}
	if p.Spec.NodeName != "" {
		why = append(why, "it is on node "+p.Spec.NodeName)
	}
	return strings.Join(why, "; ")
}

// exit says how a container ended; empty when that is not known.
func exit(t *corev1.ContainerStateTerminated) string {
	if t == nil {
		return ""
	}
	code := fmt.Sprintf("exit code %d", t.ExitCode)
	if t.Reason == "OOMKilled" { // the others say less than the code
		code += ", " + t.Reason
	}
	// Not the message: it is the program's, which may write there what it was told.
	return code
}

func joinReason(reason, message string) string {
	if reason == "" || message == "" {
		return reason + message
	}
	return reason + ": " + message
}
