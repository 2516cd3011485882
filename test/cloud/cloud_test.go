package cloud_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/proxyfleet/proxy-operator/test/cloud"
	"github.com/proxyfleet/proxy-operator/test/node/address"
	"github.com/proxyfleet/proxy-operator/test/process"
)

const finalizer = "service.kubernetes.io/load-balancer-cleanup"

// TestCloud runs the cloud against a real API server. First many Services at once, then what
// hits all of them.
func TestCloud(t *testing.T) {
	c := newCluster(t)
	stop := c.start(t)
	t.Run("services", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *cluster){
			"a Service has an address that leads to its pod":        leadsToPod,
			"a replacement takes over the traffic":                  followsReplacement,
			"a changed Service is followed":                         followsService,
			"a Service moves with its annotation":                   movesWithAnnotation,
			"a Service may have a hostname":                         hasHostname,
			"a port that is taken is had when it is free":           takenPort,
			"a deleted Service is let go of":                        deletionEnds,
			"a Service that changes its type is let go of":          changeOfTypeEnds,
			"a Service of somebody else's class is left alone":      foreignClass,
			"a chosen address may be that of several Services":      sharedAddress,
			"a Service without a pod lets its clients know of that": withoutPod,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, c)
			})
		}
	})
	t.Run("another takes over where one ends", func(t *testing.T) { anotherTakesOver(t, c, stop) })
	t.Run("what happens without a cloud is made up for", func(t *testing.T) { madeUpFor(t, c) })
}

func leadsToPod(t *testing.T, c *cluster) {
	c.create(t, "plain")
	c.create(t, "other", func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolTCP })
	c.runPod(t, "plain-1", "plain", podPort)
	host := c.addressOf(t, "plain")
	wantAnswer(t, host, 80, "plain-1:3128")
	if parsed, err := netip.ParseAddr(host); err != nil || !address.LoadBalancers.Contains(parsed) {
		t.Errorf("address %s", host)
	}
	if other := c.addressOf(t, "other"); other == host {
		t.Errorf("two Services have the address %s", host)
	}
	c.until(t, "plain", "the finalizer", func(s *corev1.Service) bool { return slices.Contains(s.Finalizers, finalizer) })
}

func followsReplacement(t *testing.T, c *cluster) {
	c.create(t, "replaced")
	host := c.addressOf(t, "replaced")
	old := c.runPod(t, "old", "replaced", podPort)
	wantAnswer(t, host, 80, "old:3128")

	// One that is not ready yet gets no traffic while another is.
	next := c.runPod(t, "new", "replaced", podPort)
	unready := next.Status
	unready.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	c.setPodStatus(t, "new", unready)
	eventually(t, func() error {
		for range 20 {
			if got, err := ask(t, host, 80); err != nil || got != "old:3128" {
				return fmt.Errorf("%q answers, %w", got, err)
			}
		}
		return nil
	})
	// It does when it is the only one that runs.
	if err := c.core.Pods(namespace).Delete(t.Context(), old.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	wantAnswer(t, host, 80, "new:3128")
}

func followsService(t *testing.T, c *cluster) {
	c.create(t, "changed", func(s *corev1.Service) {
		s.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: 80, TargetPort: intstr.FromInt32(podPort)}, {Name: "b", Port: 8080}}
	})
	c.runPod(t, "one", "changed", podPort, 8080, 9090)
	c.runPod(t, "two", "changed-too", podPort)
	host := c.addressOf(t, "changed")
	wantAnswer(t, host, 80, "one:3128")
	wantAnswer(t, host, 8080, "one:8080")
	c.patch(t, "changed", `{"spec":{"ports":[{"name":"a","port":80,"targetPort":9090},{"name":"c","port":81,"targetPort":3128}]}}`)
	wantAnswer(t, host, 80, "one:9090")
	wantAnswer(t, host, 81, "one:3128")
	wantError(t, host, 8080, syscall.ECONNREFUSED)
	c.patch(t, "changed", `{"spec":{"selector":{"app":"changed-too"}}}`)
	wantAnswer(t, host, 81, "two:3128")
	if now := c.addressOf(t, "changed"); now != host {
		t.Errorf("the address %s became %s", host, now)
	}
}

func movesWithAnnotation(t *testing.T, c *cluster) {
	// Of the test's own, so that nobody else is there.
	pool := address.NewPool(address.Nodes)
	elsewhere, err := pool.Acquire(t.Context(), netip.Addr{}, t.Name(), 80)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Release(elsewhere)

	c.create(t, "moving", func(s *corev1.Service) { s.Annotations[cloud.AddressAnnotation] = "no address" })
	c.runPod(t, "moving-1", "moving", podPort)
	host := c.addressOf(t, "moving")
	wantAnswer(t, host, 80, "moving-1:3128")
	isAt := func(address string) func(*corev1.Service) bool {
		return func(s *corev1.Service) bool {
			return len(s.Status.LoadBalancer.Ingress) == 1 && s.Status.LoadBalancer.Ingress[0].IP == address
		}
	}
	c.patch(t, "moving", fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, cloud.AddressAnnotation, elsewhere))
	c.until(t, "moving", "the new address", isAt(elsewhere.String()))
	wantAnswer(t, elsewhere.String(), 80, "moving-1:3128")
	wantError(t, host, 80, syscall.ECONNREFUSED)

	c.patch(t, "moving", fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, cloud.AddressAnnotation))
	c.until(t, "moving", "its own address again", isAt(host))
	wantAnswer(t, host, 80, "moving-1:3128")
	wantError(t, elsewhere.String(), 80, syscall.ECONNREFUSED)
}

// freePort is a port of 127.0.0.1 that nobody else is given.
func freePort(t *testing.T) int {
	t.Helper()
	port, err := process.ReservePort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(port.Release)
	return port.Number
}

// localhost has a Service be at these ports of 127.0.0.1.
func localhost(ports ...int) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Labels["address"], s.Spec.Ports = "127.0.0.1", nil
		for _, port := range ports {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
				Name: fmt.Sprintf("port-%d", port), Port: int32(port), TargetPort: intstr.FromInt32(podPort),
			})
		}
	}
}

func hasHostname(t *testing.T, c *cluster) {
	port := freePort(t)
	c.create(t, "named", localhost(port), func(s *corev1.Service) { s.Labels["hostname"] = "localhost" })
	c.runPod(t, "named-1", "named", podPort)
	c.until(t, "named", "a hostname instead of an address", func(s *corev1.Service) bool {
		ingress := s.Status.LoadBalancer.Ingress
		return len(ingress) == 1 && ingress[0].Hostname == "localhost" && ingress[0].IP == ""
	})
	wantAnswer(t, "localhost", port, "named-1:3128")
	c.patch(t, "named", `{"metadata":{"labels":{"hostname":null}}}`)
	if host := c.addressOf(t, "named"); host != "127.0.0.1" {
		t.Errorf("address %s", host)
	}
}

func sharedAddress(t *testing.T, c *cluster) {
	for _, name := range []string{"sharing-a", "sharing-b"} {
		port := freePort(t)
		c.create(t, name, localhost(port))
		c.runPod(t, name+"-1", name, podPort)
		wantAnswer(t, c.addressOf(t, name), port, name+"-1:3128")
	}
}

func takenPort(t *testing.T, c *cluster) {
	taken, free := freePort(t), freePort(t)
	var config net.ListenConfig
	somebody, err := config.Listen(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(taken)))
	if err != nil {
		t.Fatal(err)
	}
	defer somebody.Close()
	c.create(t, "patient", localhost(taken, free))
	c.runPod(t, "patient-1", "patient", podPort)
	wantAnswer(t, c.addressOf(t, "patient"), free, "patient-1:3128")
	somebody.Close()
	wantAnswer(t, "127.0.0.1", taken, "patient-1:3128")
}

func deletionEnds(t *testing.T, c *cluster) {
	c.create(t, "deleted")
	c.runPod(t, "deleted-1", "deleted", podPort)
	host := c.addressOf(t, "deleted")
	wantAnswer(t, host, 80, "deleted-1:3128")
	c.delete(t, "deleted")
	c.until(t, "deleted", "gone", func(s *corev1.Service) bool { return s == nil })
	if got, err := ask(t, host, 80); err == nil {
		t.Errorf("%q answers when the Service is gone", got)
	}
}

func changeOfTypeEnds(t *testing.T, c *cluster) {
	c.create(t, "retyped", func(s *corev1.Service) { s.Finalizers = []string{"example.test/other"} })
	c.runPod(t, "retyped-1", "retyped", podPort)
	host := c.addressOf(t, "retyped")
	c.patch(t, "retyped", `{"spec":{"type":"ClusterIP"}}`)
	c.until(t, "retyped", "let go of", func(s *corev1.Service) bool {
		return len(s.Status.LoadBalancer.Ingress) == 0 && slices.Equal(s.Finalizers, []string{"example.test/other"})
	})
	wantError(t, host, 80, syscall.ECONNREFUSED)
	c.patch(t, "retyped", `{"spec":{"type":"LoadBalancer"}}`)
	wantAnswer(t, c.addressOf(t, "retyped"), 80, "retyped-1:3128")
	c.patch(t, "retyped", `{"metadata":{"finalizers":null}}`)
}

func foreignClass(t *testing.T, c *cluster) {
	c.create(t, "foreign", func(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To("example.test/other") })
	// Services are taken in the order in which they come: once this one is served, the other was passed over.
	c.create(t, "after-foreign")
	c.addressOf(t, "after-foreign")
	c.until(t, "foreign", "untouched", func(s *corev1.Service) bool {
		return len(s.Status.LoadBalancer.Ingress) == 0 && len(s.Finalizers) == 0
	})
}

func withoutPod(t *testing.T, c *cluster) {
	c.create(t, "alone")
	host := c.addressOf(t, "alone")
	wantError(t, host, 80, syscall.ECONNRESET)
	pod := c.runPod(t, "alone-1", "alone", podPort)
	wantAnswer(t, host, 80, "alone-1:3128")
	ended := pod.Status
	ended.Phase = corev1.PodFailed
	c.setPodStatus(t, "alone-1", ended)
	wantError(t, host, 80, syscall.ECONNRESET)
	c.patch(t, "alone", `{"spec":{"selector":null}}`)
	wantError(t, host, 80, syscall.ECONNRESET)
}

func anotherTakesOver(t *testing.T, c *cluster, stop func()) {
	c.create(t, "lasting")
	c.runPod(t, "lasting-1", "lasting", podPort)
	host := c.addressOf(t, "lasting")
	wantAnswer(t, host, 80, "lasting-1:3128")
	next := c.start(t)
	c.create(t, "later")
	c.runPod(t, "later-1", "later", podPort)
	later := c.addressOf(t, "later")
	stop()
	for _, s := range []struct{ name, host string }{{"lasting", host}, {"later", later}} {
		wantAnswer(t, s.host, 80, s.name+"-1:3128")
		if now := c.addressOf(t, s.name); now != s.host {
			t.Errorf("Service %s: the address %s became %s", s.name, s.host, now)
		}
	}
	next()
	wantError(t, host, 80, syscall.ECONNREFUSED)
}

func madeUpFor(t *testing.T, c *cluster) {
	c.delete(t, "lasting")
	if s := c.until(t, "lasting", "being deleted", func(s *corev1.Service) bool { return s != nil && s.DeletionTimestamp != nil }); len(s.Finalizers) == 0 {
		t.Error("nothing keeps the Service")
	}
	c.create(t, "new")
	c.runPod(t, "new-1", "new", podPort)
	c.start(t)
	c.until(t, "lasting", "gone", func(s *corev1.Service) bool { return s == nil })
	wantAnswer(t, c.addressOf(t, "new"), 80, "new-1:3128")
}
