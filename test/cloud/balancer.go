package cloud

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/proxyfleet/proxy-operator/test/relay"
)

// balancer is the load balancer of one Service.
type balancer struct {
	uid     types.UID
	address netip.Addr // the zero Addr before it has any
	given   bool       // the address is from the pool
	relays  map[int32]*relay.Relay
}

func newBalancer(uid types.UID) *balancer {
	return &balancer{uid: uid, relays: map[int32]*relay.Relay{}}
}

// close ends what a Service's name has for a load balancer.
func (c *cloud) close(name cache.ObjectName) {
	c.leave(c.balancers[name])
	delete(c.balancers, name)
}

func (c *cloud) closeAll() {
	for name := range c.balancers {
		c.close(name)
	}
}

// leave ends everything at the balancer's address, and gives that back.
func (c *cloud) leave(b *balancer) {
	for port, r := range b.relays {
		r.Close()
		delete(b.relays, port)
	}
	if b.given {
		c.addresses.Release(b.address)
	}
	b.address, b.given = netip.Addr{}, false
}

// place gives the balancer the address that it is to have now. One from the pool stays until
// another is chosen: clients know it.
func (c *cloud) place(ctx context.Context, b *balancer, service *corev1.Service) error {
	chosen := c.chosen(service)
	if chosen.IsValid() && (b.given || chosen != b.address) {
		c.leave(b)
		b.address = chosen
		return nil
	}
	if chosen.IsValid() || b.given {
		return nil
	}
	var earlier netip.Addr
	if ingress := service.Status.LoadBalancer.Ingress; len(ingress) == 1 && !b.address.IsValid() {
		// Of an earlier Run; later on it is what somebody had chosen and does not any more.
		earlier, _ = netip.ParseAddr(ingress[0].IP)
	}
	c.leave(b)
	var ports []uint16
	for _, port := range tcpPorts(service) {
		ports = append(ports, uint16(port.Port))
	}
	address, err := c.addresses.Acquire(ctx, earlier, string(service.UID), ports...)
	if err != nil {
		return err
	}
	b.address, b.given = address, true
	return nil
}

// listen has the balancer listen on the Service's ports and on no others. The error names all
// ports that cannot be had.
func (c *cloud) listen(name cache.ObjectName, b *balancer, service *corev1.Service) error {
	wanted := map[int32]bool{}
	for _, port := range tcpPorts(service) {
		wanted[port.Port] = true
	}
	for port, r := range b.relays {
		if !wanted[port] {
			r.Close()
			delete(b.relays, port)
		}
	}
	if len(wanted) < len(service.Spec.Ports) {
		c.log.Warn("only TCP ports are served", "service", name.String())
	}
	var errs []error
	for port := range wanted {
		if b.relays[port] != nil {
			continue
		}
		// Its context is not the reconcile's, which ends soon: leave ends it.
		r, err := relay.Listen(context.Background(), netip.AddrPortFrom(b.address, uint16(port)), c.target(name, port))
		if err != nil {
			errs = append(errs, fmt.Errorf("port %d: %w", port, err))
			continue
		}
		b.relays[port] = r
	}
	return errors.Join(errs...)
}

func tcpPorts(service *corev1.Service) []corev1.ServicePort {
	var ports []corev1.ServicePort
	for _, port := range service.Spec.Ports {
		if port.Protocol == corev1.ProtocolTCP || port.Protocol == "" {
			ports = append(ports, port)
		}
	}
	return ports
}

// target is where a connection to a Service's port goes, as the Service and the pods are when
// it comes. So nothing has to be done when they change.
func (c *cloud) target(name cache.ObjectName, port int32) relay.Target {
	pods := listers.NewPodLister(c.pods.GetIndexer()).Pods(name.Namespace)
	return func() (string, bool) {
		service := c.service(name)
		if service == nil || len(service.Spec.Selector) == 0 {
			return "", false
		}
		// The lister cannot fail on a store of pods.
		selected, _ := pods.List(labels.SelectorFromSet(service.Spec.Selector))
		pod := choose(selected)
		if pod == nil {
			return "", false
		}
		for _, p := range tcpPorts(service) {
			if p.Port == port {
				to, ok := targetPort(p, pod)
				return net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(to))), ok
			}
		}
		return "", false
	}
}

// choose picks any of the pods that run, of those that are ready if there are such; nil if none
// runs.
func choose(pods []*corev1.Pod) *corev1.Pod {
	var running, ready []*corev1.Pod
	for _, pod := range pods {
		if pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "" || pod.DeletionTimestamp != nil {
			continue
		}
		running = append(running, pod)
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				ready = append(ready, pod)
			}
		}
	}
	if len(ready) > 0 {
		running = ready
	}
	if len(running) == 0 {
		return nil
	}
	return running[rand.IntN(len(running))]
}

// targetPort is the pod's port that a Service's port leads to; false if the pod has none of that
// name.
func targetPort(port corev1.ServicePort, pod *corev1.Pod) (int32, bool) {
	if port.TargetPort.Type == intstr.Int {
		if port.TargetPort.IntVal == 0 {
			return port.Port, true
		}
		return port.TargetPort.IntVal, true
	}
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == port.TargetPort.StrVal {
				return p.ContainerPort, true
			}
		}
	}
	return 0, false
}
