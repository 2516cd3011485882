package agent

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// unsupported says what a pod asks for that this node would not do as it says; empty if
// nothing. Refusing beats running something else than was asked for.
func unsupported(pod *corev1.Pod) string {
	c := &pod.Spec.Containers[0]
	probe := c.ReadinessProbe
	switch {
	case len(pod.Spec.Containers) > 1:
		return "more than one container"
	case len(pod.Spec.InitContainers) > 0:
		return "init containers"
	case pod.Spec.RestartPolicy != corev1.RestartPolicyAlways:
		return "restartPolicy " + string(pod.Spec.RestartPolicy)
	case len(c.EnvFrom) > 0:
		return "envFrom"
	case c.LivenessProbe != nil || c.StartupProbe != nil:
		return "liveness and startup probes"
	case c.Lifecycle != nil:
		return "lifecycle hooks"
	case probe != nil && probe.TCPSocket == nil:
		return "readiness probes other than tcpSocket"
	case probe != nil && probePort(c) == "":
		return "a tcpSocket probe of no port " + probe.TCPSocket.Port.String()
	case pod.Spec.HostNetwork:
		return "hostNetwork"
	}
	for _, p := range c.Ports {
		switch {
		case p.HostPort == 0:
		case p.Protocol != corev1.ProtocolTCP:
			return "hostPort of protocol " + string(p.Protocol)
		case p.HostIP != "" && p.HostIP != "0.0.0.0":
			return "hostIP in ports"
		}
	}
	return unsupportedVolume(&pod.Spec)
}

// arguments are those of the pod. An entrypoint of its own replaces the image's, but there is
// only one executable in our images, so that its first word is dropped.
func arguments(c *corev1.Container) []string {
	if len(c.Command) > 0 {
		return slices.Concat(c.Command[1:], c.Args)
	}
	return c.Args
}

// environment is what the pod's process is started with. None of the node's own is in it but
// the PATH. files is the directory that stands for filesPath; empty where the pod mounts none.
func (n *node) environment(ctx context.Context, pod *corev1.Pod, podIP, files string) ([]string, error) {
	env := []string{
		"PATH=" + os.Getenv("PATH"),
		"HOSTNAME=" + pod.Name,
		// All pods share the host's interfaces, so each must be told which address is its own.
		"PROXY_BIND_ADDRESS=" + podIP,
	}
	if files != "" {
		// And they share its file system.
		env = append(env, filesVariable+"="+files)
	}
	for _, v := range pod.Spec.Containers[0].Env {
		value, set, err := n.envValue(ctx, pod, podIP, v)
		if err != nil {
			return nil, fmt.Errorf("env %s: %w", v.Name, err)
		}
		if set {
			env = append(env, v.Name+"="+value)
		}
	}
	return env, nil
}

// envValue is a variable's value; it may be unset only where the pod says optional.
func (n *node) envValue(ctx context.Context, pod *corev1.Pod, podIP string, v corev1.EnvVar) (value string, set bool, err error) {
	if v.ValueFrom == nil {
		return v.Value, true, nil
	}
	if ref := v.ValueFrom.FieldRef; ref != nil {
		switch ref.FieldPath {
		case "metadata.name":
			return pod.Name, true, nil
		case "metadata.namespace":
			return pod.Namespace, true, nil
		case "metadata.uid":
			return string(pod.UID), true, nil
		case "spec.nodeName":
			return n.name, true, nil
		case "status.hostIP":
			return n.hostIP, true, nil
		case "status.podIP":
			return podIP, true, nil
		}
		return "", false, fmt.Errorf("this node does not support the field %s", ref.FieldPath)
	}
	ref := v.ValueFrom.SecretKeyRef
	if ref == nil {
		return "", false, fmt.Errorf("this node supports only value, fieldRef and secretKeyRef")
	}
	call, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	secret, err := n.core.Secrets(pod.Namespace).Get(call, ref.Name, metav1.GetOptions{})
	if err == nil {
		if data, ok := secret.Data[ref.Key]; ok {
			return string(data), true, nil
		}
		err = fmt.Errorf("couldn't find key %s in Secret %s/%s", ref.Key, pod.Namespace, ref.Name)
	}
	if ref.Optional != nil && *ref.Optional {
		return "", false, nil
	}
	return "", false, err
}

// gracePeriod is what a pod's process gets between SIGTERM and SIGKILL: what its deletion
// says, else its spec.
func gracePeriod(pod *corev1.Pod) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		seconds = *s
	}
	if s := pod.DeletionGracePeriodSeconds; s != nil {
		seconds = *s
	}
	return time.Duration(seconds) * time.Second
}

// probePort is the port that a tcpSocket probe names or numbers; empty if it is no port of
// the container.
func probePort(c *corev1.Container) string {
	port := c.ReadinessProbe.TCPSocket.Port
	if port.Type == intstr.Int {
		return strconv.Itoa(port.IntValue())
	}
	for _, p := range c.Ports {
		if p.Name == port.StrVal {
			return strconv.Itoa(int(p.ContainerPort))
		}
	}
	return ""
}
