package pod

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// containerName is the one container of an instance.
const containerName = "proxy"

// gracePeriodSeconds is what a deleted pod gets to let its tunnels finish.
const gracePeriodSeconds = 10

// build makes the pod of an instance. It is a pure function: what the pod is
// depends on the request alone.
func build(req provider.CreateRequest) *corev1.Pod {
	port := intstr.FromInt32(req.Port)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: req.Ref.Namespace,
			Name:      req.Ref.Name,
			Labels: map[string]string{
				"app.kubernetes.io/name":       "proxy",
				"app.kubernetes.io/managed-by": "proxy-operator",
				v1alpha1.LabelUID:              req.Owner.ProxyUID,
				v1alpha1.LabelHub:              req.Owner.Hub,
				v1alpha1.LabelCluster:          req.Owner.ClusterUID,
				v1alpha1.LabelSpecHash:         req.SpecHash,
			},
			Annotations: map[string]string{v1alpha1.AnnotationSpoke: req.Spoke},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion:         v1alpha1.GroupVersion.String(),
				Kind:               "Proxy",
				Name:               req.ProxyName,
				UID:                types.UID(req.Owner.ProxyUID),
				Controller:         ptr.To(true),
				BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyAlways,
			TerminationGracePeriodSeconds: ptr.To[int64](gracePeriodSeconds),
			// A forward proxy has no business with the cluster it runs in.
			AutomountServiceAccountToken: ptr.To(false),
			EnableServiceLinks:           ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   ptr.To(true),
				RunAsUser:      ptr.To[int64](65532),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name:  containerName,
				Image: req.Image,
				Env: []corev1.EnvVar{
					{Name: "PROXY_PORT", Value: strconv.Itoa(int(req.Port))},
					{Name: "PROXY_PROTOCOL", Value: req.Protocol},
				},
				Ports: []corev1.ContainerPort{{Name: "proxy", ContainerPort: req.Port, Protocol: corev1.ProtocolTCP}},
				ReadinessProbe: &corev1.Probe{
					ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}},
					PeriodSeconds: 2,
				},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false),
					ReadOnlyRootFilesystem:   ptr.To(true),
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// instance reads a pod as an instance.
func instance(p *corev1.Pod) provider.Instance {
	inst := provider.Instance{
		ID:         string(p.UID),
		ProviderID: p.Namespace + "/" + p.Name + "/" + string(p.UID),
		Owner: provider.Owner{
			ProxyUID:   p.Labels[v1alpha1.LabelUID],
			Hub:        p.Labels[v1alpha1.LabelHub],
			ClusterUID: p.Labels[v1alpha1.LabelCluster],
		},
		SpecHash:  p.Labels[v1alpha1.LabelSpecHash],
		IP:        p.Status.PodIP,
		CreatedAt: p.CreationTimestamp.Time,
		State:     provider.StateProvisioning,
	}
	switch {
	case !p.DeletionTimestamp.IsZero():
		inst.State = provider.StateDeleting
	case p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded:
		inst.State = provider.StateStopped
		inst.Message = p.Status.Reason
	case running(p) && inst.IP != "":
		inst.State = provider.StateRunning
	default:
		inst.Message = waitingReason(p)
	}
	return inst
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
	for _, c := range p.Status.ContainerStatuses {
		w := c.State.Waiting
		switch {
		case w == nil || w.Reason == "":
		case w.Reason == "CrashLoopBackOff":
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

// exit says how a container ended; empty when that is not known.
func exit(t *corev1.ContainerStateTerminated) string {
	if t == nil {
		return ""
	}
	return joinReason(fmt.Sprintf("exit code %d", t.ExitCode), t.Message)
}

func joinReason(reason, message string) string {
	if message == "" {
		return reason
	}
	return reason + ": " + message
}
