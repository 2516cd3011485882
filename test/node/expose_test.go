package main

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/proxyfleet/proxy-operator/test/node/address"
)

// hostPort has a pod be reached at its node's address too.
func hostPort(port int32) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.Containers[0].Ports[0].HostPort = port }
}

// isUnschedulable is a condition for until: the pod waits for a host port, and says so.
func isUnschedulable(pod *corev1.Pod) bool {
	for _, c := range conditionsOf(pod) {
		if c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason == "Unschedulable" && pod.Spec.NodeName == "" &&
				pod.Status.Phase == corev1.PodPending &&
				c.Message == "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."
		}
	}
	return false
}

func hostPortLeadsToPod(t *testing.T, c *cluster) {
	c.create(t, serverPod("exposed", hostPort(4001), env(corev1.EnvVar{
		Name: "PROXY_PROTOCOL", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.hostIP"}},
	})))
	pod := c.untilReady(t, "exposed")
	host := pod.Status.HostIP
	if parsed, err := netip.ParseAddr(host); err != nil || !address.Nodes.Contains(parsed) || pod.Status.HostIPs[0].IP != host {
		t.Errorf("hostIP %s, hostIPs %v, podIP %s", host, pod.Status.HostIPs, pod.Status.PodIP)
	}
	node, err := c.core.Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil || node.Status.Addresses[0] != (corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: host}) {
		t.Errorf("addresses %v, %v; want %s first", node.Status.Addresses, err, host)
	}
	if _, greeting := call(t, host, 4001); greeting != "exposed "+host {
		t.Errorf("at the host port %q answers", greeting)
	}

	kill(t, pid(t, pod), syscall.SIGKILL)
	untilRefused(t, host, 4001)
	conn, _ := call(t, host, 4001)
	c.delete(t, "exposed", nil)
	if got := conn.rest(t); got != "goodbye\n" {
		t.Errorf("at its end the pod says %q", got)
	}
	c.until(t, "exposed", "gone", isGone)
	untilRefused(t, host, 4001)
}

func hostPortIsOnePods(t *testing.T, c *cluster) {
	c.create(t, serverPod("first", hostPort(4002)))
	first := c.untilReady(t, "first")
	c.create(t, serverPod("second", hostPort(4002)))
	c.create(t, serverPod("third", hostPort(4002)))
	c.until(t, "second", "told that it has to wait", isUnschedulable)
	c.until(t, "third", "told that it has to wait", isUnschedulable)
	if _, greeting := call(t, first.Status.HostIP, 4002); greeting != "first http" {
		t.Errorf("%q answers", greeting)
	}
	// The one that waits longest need not be the next.
	c.delete(t, "third", nil)
	c.until(t, "third", "gone", isGone)
	c.delete(t, "first", nil)
	second := c.untilReady(t, "second")
	if _, greeting := call(t, second.Status.HostIP, 4002); greeting != "second http" {
		t.Errorf("%q answers", greeting)
	}
	for _, condition := range second.Status.Conditions {
		if condition.Type == corev1.PodScheduled && (condition.Status != corev1.ConditionTrue || condition.Message != "") {
			t.Errorf("bound, it still says %+v", condition)
		}
	}
}

// heldHostPort has two pods want one host port. What it returns is to be called when the node
// has been started again.
func heldHostPort(t *testing.T, c *cluster) (check func()) {
	c.create(t, serverPod("holder", hostPort(4003)))
	before := c.untilReady(t, "holder")
	// It comes before the other by name, so that the next node learns of it first.
	c.create(t, serverPod("aspirant", hostPort(4003)))
	c.until(t, "aspirant", "told that it has to wait", isUnschedulable)
	return func() {
		after := c.until(t, "holder", "ready in a new life", func(pod *corev1.Pod) bool {
			return isReady(pod) && pod.Status.ContainerStatuses[0].ContainerID != before.Status.ContainerStatuses[0].ContainerID
		})
		if after.Status.HostIP != before.Status.HostIP {
			t.Errorf("the node's address %s became %s", before.Status.HostIP, after.Status.HostIP)
		}
		// Claimed after the other was passed over.
		c.create(t, serverPod("after-aspirant"))
		c.untilReady(t, "after-aspirant")
		c.until(t, "aspirant", "still waiting", isUnschedulable)
		if _, greeting := call(t, after.Status.HostIP, 4003); greeting != "holder http" {
			t.Errorf("%q answers", greeting)
		}
		c.delete(t, "holder", nil)
		c.untilReady(t, "aspirant")
	}
}

func protocolsAreThePods(t *testing.T, c *cluster) {
	c.createSecret(t, "served", map[string]string{"tls.crt": "certificate", "tls.key": "key"})
	for _, protocol := range []string{"https", "socks5"} {
		c.create(t, serverPod(protocol, env(corev1.EnvVar{Name: "PROXY_PROTOCOL", Value: protocol}), mount("served", nil)))
		pod := c.untilReady(t, protocol)
		want := strings.Join([]string{protocol, protocol, "tls.crt=certificate", "tls.key=key"}, " ")
		if _, greeting := call(t, pod.Status.PodIP, 3128); greeting != want {
			t.Errorf("the process was given %q, want %q", greeting, want)
		}
	}
}

func loadBalancerLeadsToPod(t *testing.T, c *cluster) {
	labels := map[string]string{"test": "balanced"}
	service, err := c.core.Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "balanced"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: labels,
			Ports: []corev1.ServicePort{{Port: 4004, TargetPort: intstr.FromInt32(3128)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.create(t, serverPod("balanced", func(pod *corev1.Pod) { pod.Labels = labels }))
	c.untilReady(t, "balanced")
	untilNot(t, "the Service gets no address", func() bool {
		service, err = c.core.Services(namespace).Get(t.Context(), "balanced", metav1.GetOptions{})
		return err != nil || len(service.Status.LoadBalancer.Ingress) == 0
	})
	conn, greeting := call(t, service.Status.LoadBalancer.Ingress[0].IP, 4004)
	if greeting != "balanced http" {
		t.Errorf("%q answers", greeting)
	}
	c.delete(t, "balanced", nil)
	if got := conn.rest(t); got != "goodbye\n" {
		t.Errorf("at its end the pod says %q", got)
	}
}
