package agent

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/proxyfleet/proxy-operator/test/relay"
)

// lastWords is how long after the end of a process its connections through host ports may go
// on: what it has written reaches its clients through the relay, and takes that much longer.
const lastWords = time.Second

// hostPorts is who has which port of the node, as a scheduler must know it to place pods, and
// who waits for one.
type hostPorts struct {
	mu      sync.Mutex
	holders map[int32]types.UID
	waiting map[claim]struct{}
}

func newHostPorts() *hostPorts {
	return &hostPorts{holders: map[int32]types.UID{}, waiting: map[claim]struct{}{}}
}

// hostPortsOf are the ports of the node that a pod asks for.
func hostPortsOf(pod *corev1.Pod) []int32 {
	var ports []int32
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				ports = append(ports, p.HostPort)
			}
		}
	}
	return ports
}

// take gives a pod all of its ports or, with an error that names one that another pod has, none.
// Taking them again is no error.
func (h *hostPorts) take(pod *corev1.Pod) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.takeLocked(pod)
}

func (h *hostPorts) takeLocked(pod *corev1.Pod) error {
	ports := hostPortsOf(pod)
	for _, port := range ports {
		if holder, taken := h.holders[port]; taken && holder != pod.UID {
			return fmt.Errorf("host port %d belongs to the pod with UID %s", port, holder)
		}
	}
	for _, port := range ports {
		h.holders[port] = pod.UID
	}
	return nil
}

// takeOrWait is take that puts a pod without its ports among those that release returns.
func (h *hostPorts) takeOrWait(pod *corev1.Pod) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.takeLocked(pod)
	if err != nil {
		h.waiting[claimOf(pod)] = struct{}{}
	}
	return err
}

// release takes the ports from a pod, which may have none, and returns the pods that waited for
// any port. Those that still have to wait are to ask again.
func (h *hostPorts) release(uid types.UID) []claim {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.waiting, func(c claim, _ struct{}) bool { return c.uid == uid })
	before := len(h.holders)
	maps.DeleteFunc(h.holders, func(_ int32, holder types.UID) bool { return holder == uid })
	if len(h.holders) == before {
		return nil
	}
	waiting := slices.Collect(maps.Keys(h.waiting))
	clear(h.waiting)
	return waiting
}

// expose listens on the node's address for the container that is about to start. Before its
// process, so that there is no process when a port cannot be had.
func (w *worker) expose(ctx context.Context, c *corev1.Container) error {
	if err := w.hostPorts.take(w.pod); err != nil {
		return err
	}
	// When ctx ends the process still has its grace, and its clients with it.
	ctx = context.WithoutCancel(ctx)
	for _, p := range c.Ports {
		if p.HostPort == 0 {
			continue
		}
		from, err := netip.ParseAddrPort(hostPort(w.hostIP, p.HostPort))
		if err != nil {
			return err
		}
		to := hostPort(w.seen.podIP, p.ContainerPort)
		r, err := relay.Listen(ctx, from, func() (string, bool) { return to, true })
		if err != nil {
			w.unexpose()
			return fmt.Errorf("host port %d: %w", p.HostPort, err)
		}
		w.relays = append(w.relays, r)
	}
	return nil
}

// unexpose stops listening when the container does not run any more.
func (w *worker) unexpose() {
	for _, r := range w.relays {
		r.Retire(lastWords)
		w.running.Go(r.Wait)
	}
	w.relays = nil
}

func hostPort(host string, port int32) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }
