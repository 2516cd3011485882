package main

import (
	"bytes"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
	"github.com/proxyfleet/proxy-operator/test/process"
)

// TestNode runs the node as a process against a real API server. First many pods at once, then
// the accidents, one at a time, because they hit everything that runs.
func TestNode(t *testing.T) {
	c := newCluster(t)
	node := c.startNode()
	t.Run("pods", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *cluster){
			"a pod becomes a proxy on an address of its own":     podBecomesProxy,
			"a killed process is started again":                  killedProcessRestarts,
			"a deleted pod ends gracefully":                      deletedPodEndsGracefully,
			"a process that ignores SIGTERM is killed":           stubbornProcessIsKilled,
			"a pod deleted at once takes its process along":      forcedDeletionKills,
			"an unknown image is told and can be repaired":       unknownImage,
			"a missing secret is told and can be repaired":       missingSecret,
			"a mounted secret is files for its pod, and goes":    mountedSecret,
			"an optional secret that is missing is no file":      optionalSecret,
			"a missing mounted secret is told and waited for":    missingMountedSecret,
			"what the node cannot do is told, not done wrongly":  unsupportedPod,
			"a pod for other nodes is left alone":                foreignPod,
			"a deleted pod that never started goes away as well": neverStarted,
			"a host port leads to its pod while that runs":       hostPortLeadsToPod,
			"a host port that another pod has is waited for":     hostPortIsOnePods,
			"a process is given its protocol and its files":      protocolsAreThePods,
			"a load balancer leads to its pod":                   loadBalancerLeadsToPod,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, c)
			})
		}
	})
	t.Run("a killed node takes its processes along and runs its pods again", func(t *testing.T) {
		node = killedNode(t, c, node)
	})
	t.Run("without an API server the pods run on", func(t *testing.T) { absentAPIServer(t, c) })
	t.Run("a stopped node stops its processes", func(t *testing.T) { stoppedNode(t, c, node) })
}

func podBecomesProxy(t *testing.T, c *cluster) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "known"}, StringData: map[string]string{"key": "hush"}}
	if _, err := c.core.Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.create(t, proxyPod("proxy",
		env(corev1.EnvVar{Name: "FROM_SECRET", ValueFrom: secretKey("known", "key")}),
		env(corev1.EnvVar{Name: "FROM_FIELD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}),
	))
	pod := c.untilReady(t, "proxy")
	if pod.Spec.NodeName != nodeName || pod.Status.Phase != corev1.PodRunning {
		t.Errorf("node %q, phase %s", pod.Spec.NodeName, pod.Status.Phase)
	}
	if want := "secret: hush ip: " + pod.Status.PodIP; !strings.Contains(c.output(t, pod), want) {
		t.Errorf("the process wrote %q, want %q in it", c.output(t, pod), want)
	}

	site := origin.Start(t)
	transport := &http.Transport{
		Proxy:           http.ProxyURL(&url.URL{Scheme: "http", Host: net.JoinHostPort(pod.Status.PodIP, "3128")}),
		TLSClientConfig: &tls.Config{RootCAs: site.CertPool()},
	}
	defer transport.CloseIdleConnections()
	reply, err := origin.Fetch(t.Context(), &http.Client{Transport: transport}, site.URL)
	if err != nil {
		t.Fatal(err)
	}
	if reply.RemoteAddr != pod.Status.PodIP {
		t.Errorf("the origin saw %s, want the pod's %s", reply.RemoteAddr, pod.Status.PodIP)
	}
}

func killedProcessRestarts(t *testing.T, c *cluster) {
	c.create(t, proxyPod("killed"))
	before := c.untilReady(t, "killed")
	kill(t, pid(t, before), syscall.SIGKILL)
	waiting := c.until(t, "killed", "CrashLoopBackOff", isWaiting("CrashLoopBackOff"))
	if isReady(waiting) {
		t.Error("ready without a process")
	}
	after := c.untilReady(t, "killed")
	status := after.Status.ContainerStatuses[0]
	if status.RestartCount != 1 || status.LastTerminationState.Terminated == nil || status.LastTerminationState.Terminated.ExitCode != 137 {
		t.Errorf("status %+v, want one restart after exit code 137", status)
	}
	if after.Status.PodIP != before.Status.PodIP {
		t.Errorf("address %s became %s", before.Status.PodIP, after.Status.PodIP)
	}
}

func deletedPodEndsGracefully(t *testing.T, c *cluster) {
	c.create(t, proxyPod("deleted"))
	pod := c.untilReady(t, "deleted")
	c.delete(t, "deleted", nil)
	c.until(t, "deleted", "gone", isGone)
	if process.Alive(pid(t, pod)) {
		t.Error("the pod is gone, its process is not")
	}
	if !strings.Contains(c.output(t, pod), "msg=stopped") {
		t.Errorf("the process did not end by itself: %s", c.output(t, pod))
	}
}

func stubbornProcessIsKilled(t *testing.T, c *cluster) {
	c.create(t, proxyPod("stubborn", shell("trap '' TERM; exec sleep 1000")))
	pod := c.untilReady(t, "stubborn")
	c.delete(t, "stubborn", ptr.To[int64](1))
	c.until(t, "stubborn", "gone", isGone)
	if process.Alive(pid(t, pod)) {
		t.Error("the pod is gone, its process is not")
	}
}

func forcedDeletionKills(t *testing.T, c *cluster) {
	c.create(t, proxyPod("forced"))
	pod := c.untilReady(t, "forced")
	c.delete(t, "forced", ptr.To[int64](0))
	untilEnded(t, pid(t, pod))
}

func unknownImage(t *testing.T, c *cluster) {
	c.create(t, proxyPod("image", func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "example.test/typo:1" }))
	c.until(t, "image", "ErrImagePull", isWaiting("ErrImagePull"))
	pod := c.until(t, "image", "ImagePullBackOff", isWaiting("ImagePullBackOff"))
	if message := pod.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(message, "example.test/typo:1") {
		t.Errorf("message %q does not name the image", message)
	}
	if pod.Status.Phase != corev1.PodPending {
		t.Errorf("phase %s, want Pending", pod.Status.Phase)
	}
	patch := []byte(`[{"op":"replace","path":"/spec/containers/0/image","value":"` + proxyImage + `"}]`)
	if _, err := c.core.Pods(namespace).Patch(t.Context(), "image", types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.untilReady(t, "image")
}

func missingSecret(t *testing.T, c *cluster) {
	c.create(t, proxyPod("secret", env(corev1.EnvVar{Name: "FROM_SECRET", ValueFrom: secretKey("late", "key")})))
	c.until(t, "secret", "CreateContainerConfigError", isWaiting("CreateContainerConfigError"))
	late := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "late"}, StringData: map[string]string{"key": "x"}}
	if _, err := c.core.Secrets(namespace).Create(t.Context(), late, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.untilReady(t, "secret")
}

func unsupportedPod(t *testing.T, c *cluster) {
	c.create(t, proxyPod("exec", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].ReadinessProbe.ProbeHandler = corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}
	}))
	pod := c.until(t, "exec", "CreateContainerConfigError", isWaiting("CreateContainerConfigError"))
	if message := pod.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(message, "readiness probes") {
		t.Errorf("message %q does not say what is wrong", message)
	}
}

func foreignPod(t *testing.T, c *cluster) {
	c.create(t, proxyPod("foreign", func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{"other": "node"} }))
	// Pods are claimed in the order in which they come: once this one runs, the other was passed over.
	c.create(t, proxyPod("after-foreign"))
	c.untilReady(t, "after-foreign")
	pod, err := c.core.Pods(namespace).Get(t.Context(), "foreign", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if pod.Spec.NodeName != "" {
		t.Errorf("bound to %s", pod.Spec.NodeName)
	}
}

func neverStarted(t *testing.T, c *cluster) {
	c.create(t, proxyPod("never", func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "example.test/typo:1" }))
	c.until(t, "never", "ErrImagePull", isWaiting("ErrImagePull"))
	c.delete(t, "never", nil)
	c.until(t, "never", "gone", isGone)
}

func killedNode(t *testing.T, c *cluster, node *process.Process) *process.Process {
	c.createSecret(t, "survivor", map[string]string{"username": "crawler", "password": "hush"})
	c.create(t, proxyPod("survivor", mount("survivor", nil)))
	before := c.untilReady(t, "survivor")
	checkHostPort := heldHostPort(t, c)
	if err := node.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-node.Done()
	untilEnded(t, pid(t, before))
	stray := filepath.Join(c.files(before), "../of-a-pod-that-went-meanwhile")
	if err := os.Mkdir(stray, 0o700); err != nil {
		t.Fatal(err)
	}
	node = c.startNode()
	after := c.until(t, "survivor", "ready in a new life", func(pod *corev1.Pod) bool {
		return isReady(pod) && pod.Status.ContainerStatuses[0].RestartCount == before.Status.ContainerStatuses[0].RestartCount+1
	})
	if after.Status.PodIP != before.Status.PodIP {
		t.Errorf("address %s became %s", before.Status.PodIP, after.Status.PodIP)
	}
	if pid(t, after) == pid(t, before) {
		t.Errorf("still process %d", pid(t, after))
	}
	if _, err := os.Stat(filepath.Join(c.files(after), "password")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(stray); err == nil {
		t.Error("the killed node's secrets are still there")
	}
	checkHostPort()
	return node
}

func absentAPIServer(t *testing.T, c *cluster) {
	c.create(t, proxyPod("alone", shell("exec sleep 1000")))
	c.create(t, proxyPod("untouched"))
	alone, untouched := c.untilReady(t, "alone"), c.untilReady(t, "untouched")
	if err := c.plane.KillAPIServer(); err != nil {
		t.Fatal(err)
	}
	kill(t, pid(t, alone), syscall.SIGKILL)
	untilEnded(t, pid(t, alone))
	if err := c.plane.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.until(t, "alone", "ready after a restart nobody could be told of", func(pod *corev1.Pod) bool {
		return isReady(pod) && pod.Status.ContainerStatuses[0].RestartCount == 1
	})
	if !process.Alive(pid(t, untouched)) {
		t.Error("a process ended with the API server")
	}
	// Watches are back too.
	c.create(t, proxyPod("new"))
	c.untilReady(t, "new")
}

func stoppedNode(t *testing.T, c *cluster, node *process.Process) {
	c.create(t, proxyPod("last"))
	pod := c.untilReady(t, "last")
	if err := node.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-node.Done()
	if node.Exit() != "exit status 0" {
		t.Errorf("exit: %s", node.Exit())
	}
	if process.Alive(pid(t, pod)) {
		t.Error("the process survived its node")
	}
	if _, err := os.Stat(filepath.Dir(c.files(pod))); err == nil {
		t.Error("the pods' files survived their node")
	}
	if !strings.Contains(c.output(t, pod), "msg=stopped") {
		t.Errorf("the process did not end by itself: %s", c.output(t, pod))
	}
}

// Whoever starts the node wrongly reads why.
func TestBadFlagsExitTwo(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{}, "--kubeconfig is required"},
		{[]string{"--kubeconfig", "x"}, "--name is required"},
		{[]string{"--kubeconfig", "x", "--name", "y", "extra"}, `unexpected argument "extra"`},
		{[]string{"--address", "10.0.0.1"}, "want a loopback address"},
		{[]string{"--image", "no-executable"}, "want IMAGE=EXECUTABLE"},
		{[]string{"--image", "i=" + filepath.Join(t.TempDir(), "none")}, "no such file"},
	} {
		var stderr bytes.Buffer
		if code := run(t.Context(), c.args, &stderr); code != 2 || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("run(%q) = %d with %q on stderr, want 2 with %q", c.args, code, stderr.String(), c.want)
		}
	}
}

func kill(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
}

func secretKey(name, key string) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key,
	}}
}
