package cloud_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/proxyfleet/proxy-operator/test/cloud"
	"github.com/proxyfleet/proxy-operator/test/controlplane"
	"github.com/proxyfleet/proxy-operator/test/node/address"
)

const (
	patience  = 60 * time.Second
	namespace = "services"
	podPort   = 3128
)

// cluster is an API server without a node: its pods say that they run, and a listener of the
// test answers for each.
type cluster struct {
	config    *rest.Config
	core      *corev1client.CoreV1Client
	addresses *address.Pool // of pods
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	config := rest.CopyConfig(controlplane.StartForTest(t, 1)[0].Admin())
	config.QPS = -1
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{config: config, core: core, addresses: address.NewPool(address.Pods)}
}

// start runs the cloud until the test ends, or stop is called.
func (c *cluster) start(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- cloud.Run(ctx, c.config, options) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// options have a Service choose by its labels.
var options = cloud.Options{
	Address: func(service *corev1.Service) netip.Addr {
		chosen, _ := netip.ParseAddr(service.Labels["address"])
		return chosen
	},
	Hostname: func(service *corev1.Service, _ netip.Addr) string { return service.Labels["hostname"] },
}

// runPod makes a pod that is ready and answers on these ports with its name and the port.
func (c *cluster) runPod(t *testing.T, name, app string, ports ...uint16) *corev1.Pod {
	t.Helper()
	ip, err := c.addresses.Acquire(t.Context(), netip.Addr{}, t.Name()+name, ports...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.addresses.Release(ip) })
	for _, port := range ports {
		answer(t, netip.AddrPortFrom(ip, port), fmt.Sprintf("%s:%d", name, port))
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "proxy", Image: "example.test/proxy:1"}}},
	}
	if _, err := c.core.Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return c.setPodStatus(t, name, corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: ip.String(), PodIPs: []corev1.PodIP{{IP: ip.String()}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	})
}

func (c *cluster) setPodStatus(t *testing.T, name string, status corev1.PodStatus) *corev1.Pod {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		t.Fatal(err)
	}
	pod, err := c.core.Pods(namespace).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// answer is a server that says something to each client, until the test ends.
func answer(t *testing.T, at netip.AddrPort, what string) {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, what)
			conn.Close()
		}
	}()
}

// create makes a Service of type LoadBalancer that selects the app of its own name.
func (c *cluster) create(t *testing.T, name string, modify ...func(*corev1.Service)) *corev1.Service {
	t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(podPort)}},
		},
	}
	for _, f := range modify {
		f(service)
	}
	service, err := c.core.Services(namespace).Create(t.Context(), service, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return service
}

func (c *cluster) patch(t *testing.T, name, patch string) {
	t.Helper()
	_, err := c.core.Services(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) delete(t *testing.T, name string) {
	t.Helper()
	if err := c.core.Services(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// until waits for a Service to be ok, which is shown nil for gone.
func (c *cluster) until(t *testing.T, name, what string, ok func(*corev1.Service) bool) *corev1.Service {
	t.Helper()
	var service *corev1.Service
	eventually(t, func() error {
		var err error
		service, err = c.core.Services(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			service, err = nil, nil
		}
		if err == nil && !ok(service) {
			err = fmt.Errorf("waiting in vain for: %s; it is %+v", what, service)
		}
		return err
	})
	return service
}

// addressOf waits until a Service has one, and nothing else, in its status.
func (c *cluster) addressOf(t *testing.T, name string) string {
	t.Helper()
	service := c.until(t, name, "an address", func(s *corev1.Service) bool {
		ingress := s.Status.LoadBalancer.Ingress
		return len(ingress) == 1 && ingress[0].IP != "" && ingress[0].Hostname == ""
	})
	return service.Status.LoadBalancer.Ingress[0].IP
}

// wantAnswer waits until somebody answers as they should.
func wantAnswer(t *testing.T, host string, port int, want string) {
	t.Helper()
	eventually(t, func() error {
		got, err := ask(t, host, port)
		if err == nil && got != want {
			err = fmt.Errorf("at %s:%d answers %q, want %q", host, port, got, want)
		}
		return err
	})
}

// wantError waits until a client meets this error.
func wantError(t *testing.T, host string, port int, want syscall.Errno) {
	t.Helper()
	eventually(t, func() error {
		got, err := ask(t, host, port)
		if errors.Is(err, want) {
			return nil
		}
		return fmt.Errorf("at %s:%d answers %q, %w; want: %w", host, port, got, err, want)
	})
}

func ask(t *testing.T, host string, port int) (string, error) {
	dialer := net.Dialer{Timeout: patience}
	conn, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	content, err := io.ReadAll(conn)
	return string(content), err
}

// eventually tries until check is content.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal(err)
		}
	}
}
