package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/proxyfleet/proxy-operator/cmd/forwardproxy/proxy"
	"github.com/proxyfleet/proxy-operator/test/controlplane"
	"github.com/proxyfleet/proxy-operator/test/process"
)

const (
	patience = 60 * time.Second
	nodeName = "node-1"

	proxyImage = "example.test/proxy:1"
	shellImage = "example.test/shell:1"

	// asVariable makes this test binary be the node, or what a pod runs, so that all are real
	// processes without building anything.
	asVariable = "NODE_TEST_AS"
)

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	code := 0
	switch os.Getenv(asVariable) {
	case "node":
		code = run(ctx, os.Args[1:], os.Stderr)
	case "proxy":
		code = runProxy(ctx)
	case "server":
		code = runServer(ctx)
	default:
		stop() // the tests themselves end as usual
		code = m.Run()
	}
	stop()
	os.Exit(code)
}

func runProxy(ctx context.Context) int {
	port, _ := strconv.Atoi(os.Getenv("PROXY_PORT"))
	address, _ := netip.ParseAddr(os.Getenv("PROXY_BIND_ADDRESS"))
	options := proxy.Options{Port: uint16(port), BindAddress: address, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	if dir := os.Getenv("PROXY_FILES_DIR"); dir != "" {
		var err error
		if options.Credentials, err = proxy.ReadCredentials(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	server, err := proxy.Listen(ctx, options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stderr, "secret:", os.Getenv("FROM_SECRET"), "ip:", os.Getenv("FROM_FIELD"))
	if err := server.Serve(ctx); err != nil {
		return 1
	}
	return 0
}

// cluster is an API server, with a namespace to put pods into.
type cluster struct {
	t     *testing.T // of the test that all others are part of
	plane *controlplane.ControlPlane
	core  *corev1client.CoreV1Client
	dir   string // kubeconfig and pod logs
}

const namespace = "pods"

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, plane: controlplane.StartForTest(t, 1)[0], dir: t.TempDir()}
	var err error
	if c.core, err = corev1client.NewForConfig(c.plane.Admin()); err != nil {
		t.Fatal(err)
	}
	_, err = c.core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := controlplane.Kubeconfig(controlplane.Context{Name: "spoke", Config: rest.CopyConfig(c.plane.Admin())})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "kubeconfig"), kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// startNode starts the node as a process; starting it again is another life of the same node.
// It may run for longer than the subtest that starts it.
func (c *cluster) startNode() *process.Process {
	t := c.t
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	node, err := process.Start(process.Spec{
		Name: nodeName, Path: self, LogFile: filepath.Join(c.dir, "node.log"),
		Env: []string{asVariable + "=node"},
		Args: []string{
			"--kubeconfig", filepath.Join(c.dir, "kubeconfig"), "--name", nodeName,
			"--image", proxyImage + "=" + self, "--image", shellImage + "=/bin/sh",
			"--log-dir", filepath.Join(c.dir, "pods"),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = node.Stop()
		if t.Failed() {
			t.Logf("the end of the node's log:\n%s", node.LogTail(40))
		}
	})
	return node
}

// proxyPod is a pod as the operator makes it.
func proxyPod(name string, modify ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](10),
			AutomountServiceAccountToken:  ptr.To(false),
			Containers: []corev1.Container{{
				Name: "proxy", Image: proxyImage,
				Env: []corev1.EnvVar{
					{Name: "PROXY_PORT", Value: "3128"},
					{Name: "PROXY_PROTOCOL", Value: "http"},
					{Name: asVariable, Value: "proxy"},
				},
				Ports: []corev1.ContainerPort{{Name: "proxy", ContainerPort: 3128}},
				ReadinessProbe: &corev1.Probe{
					PeriodSeconds: 1,
					ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("proxy")}},
				},
			}},
		},
	}
	for _, f := range modify {
		f(pod)
	}
	return pod
}

// shell turns a pod into one that runs a script and is ready at once.
func shell(script string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		c := &pod.Spec.Containers[0]
		c.Image, c.Args, c.ReadinessProbe = shellImage, []string{"-c", script}, nil
	}
}

func env(v corev1.EnvVar) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		c := &pod.Spec.Containers[0]
		c.Env = append(slices.DeleteFunc(c.Env, func(old corev1.EnvVar) bool { return old.Name == v.Name }), v)
	}
}

func (c *cluster) create(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if _, err := c.core.Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// delete deletes a pod, with the grace that it asks for if none is given.
func (c *cluster) delete(t *testing.T, name string, grace *int64) {
	t.Helper()
	if err := c.core.Pods(namespace).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: grace}); err != nil {
		t.Fatal(err)
	}
}

// until watches a pod until ok, which is shown each state in turn and nil for gone.
func (c *cluster) until(t *testing.T, name, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var last *corev1.Pod
	// A watch ends with its API server; then all begins again.
	for ctx.Err() == nil {
		selected := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
		list, err := c.core.Pods(namespace).List(ctx, selected)
		if err != nil {
			continue
		}
		present := (*corev1.Pod)(nil)
		if len(list.Items) > 0 {
			present = &list.Items[0]
			last = present
		}
		if ok(present) {
			return present
		}
		selected.ResourceVersion = list.ResourceVersion
		events, err := c.core.Pods(namespace).Watch(ctx, selected)
		if err != nil {
			continue
		}
		if pod, found := firstOf(events, &last, ok); found {
			return pod
		}
	}
	t.Fatalf("pod %s: waited in vain for: %s; its last state: %+v", name, what, last)
	return nil
}

// firstOf reads events up to the first state that is ok; it leaves the newest in last.
func firstOf(events watch.Interface, last **corev1.Pod, ok func(*corev1.Pod) bool) (*corev1.Pod, bool) {
	defer events.Stop()
	for event := range events.ResultChan() {
		pod, isPod := event.Object.(*corev1.Pod)
		if !isPod {
			return nil, false
		}
		*last = pod
		if event.Type == watch.Deleted {
			pod = nil
		}
		if ok(pod) {
			return pod, true
		}
	}
	return nil, false
}

func (c *cluster) untilReady(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	return c.until(t, name, "ready", isReady)
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range conditionsOf(pod) {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func conditionsOf(pod *corev1.Pod) []corev1.PodCondition {
	if pod == nil {
		return nil
	}
	return pod.Status.Conditions
}

// isWaiting is a condition for until: the container waits for this reason.
func isWaiting(reason string) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool {
		return pod != nil && len(pod.Status.ContainerStatuses) == 1 &&
			pod.Status.ContainerStatuses[0].State.Waiting != nil &&
			pod.Status.ContainerStatuses[0].State.Waiting.Reason == reason
	}
}

func isGone(pod *corev1.Pod) bool { return pod == nil }

// pid is the PID of a pod's process.
func pid(t *testing.T, pod *corev1.Pod) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "process://"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// untilEnded waits for a process that is not this one's child.
func untilEnded(t *testing.T, pid int) {
	t.Helper()
	untilNot(t, fmt.Sprintf("process %d still runs", pid), func() bool { return process.Alive(pid) })
}

// untilNot waits until what nobody tells of has ended.
func untilNot(t *testing.T, complaint string, lasts func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for lasts() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal(complaint)
		}
	}
}

// output is what a pod's processes have written.
func (c *cluster) output(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(c.dir, "pods", fmt.Sprintf("%s_%s_%s.log", pod.Namespace, pod.Name, pod.UID)))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
