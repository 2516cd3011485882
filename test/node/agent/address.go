package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

const addressAttempts = 100

// addresses hands out the loopback addresses of pods. Each one in use is locked for every
// node on this host by an abstract unix socket of its name, which goes with this process: a
// pod that is between two lives listens nowhere, and its address must stay its own.
type addresses struct {
	mu   sync.Mutex
	held map[string]net.Listener
}

func newAddresses() *addresses { return &addresses{held: map[string]net.Listener{}} }

// acquire returns an address where the ports are free: preferred if it can, else a random one.
func (a *addresses) acquire(ctx context.Context, preferred string, ports []corev1.ContainerPort) (string, error) {
	if inRange(preferred) {
		if a.tryAcquire(ctx, preferred, ports) == nil {
			return preferred, nil
		}
	}
	var last error
	for range addressAttempts {
		// 127.16.0.0-127.254.255.255, without the last octets that look like networks.
		address := fmt.Sprintf("127.%d.%d.%d", 16+rand.IntN(239), rand.IntN(256), 1+rand.IntN(254))
		if last = a.tryAcquire(ctx, address, ports); last == nil {
			return address, nil
		}
	}
	return "", fmt.Errorf("no free loopback address in %d attempts: %w", addressAttempts, last)
}

func (a *addresses) tryAcquire(ctx context.Context, address string, ports []corev1.ContainerPort) error {
	var config net.ListenConfig
	lock, err := config.Listen(ctx, "unix", "@proxy-operator-test-node/"+address)
	if err != nil {
		return err
	}
	for _, port := range ports {
		probe, err := config.Listen(ctx, "tcp4", net.JoinHostPort(address, strconv.Itoa(int(port.ContainerPort))))
		if err != nil {
			_ = lock.Close()
			return err
		}
		_ = probe.Close()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held[address] = lock
	return nil
}

func (a *addresses) release(address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if lock, ok := a.held[address]; ok {
		_ = lock.Close()
		delete(a.held, address)
	}
}

// inRange says whether an address is one that this package hands out.
func inRange(address string) bool {
	parsed, err := netip.ParseAddr(address)
	if err != nil || !parsed.Is4() {
		return false
	}
	octets := parsed.As4()
	return octets[0] == 127 && octets[1] >= 16 && octets[1] <= 254
}
