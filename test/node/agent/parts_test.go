package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func tcpContainer() *corev1.Container {
	return &corev1.Container{
		Ports: []corev1.ContainerPort{{Name: "proxy", ContainerPort: 3128, HostPort: 3128, Protocol: corev1.ProtocolTCP}},
		ReadinessProbe: &corev1.Probe{
			InitialDelaySeconds: 5, PeriodSeconds: 10, SuccessThreshold: 2, FailureThreshold: 3,
			ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("proxy")}},
		},
	}
}

// Readiness follows the thresholds and periods that the pod asks for.
func TestReadiness(t *testing.T) {
	now := time.Now()
	r := newReadiness(tcpContainer(), "127.20.0.1", now)
	if r.address != "127.20.0.1:3128" || !r.due().Equal(now.Add(5*time.Second)) {
		t.Fatalf("probes %s at %s", r.address, r.due())
	}
	steps := []struct {
		ok, ready bool
		wait      time.Duration
	}{
		{false, false, firstProbes},
		{true, false, firstProbes},
		{true, true, 10 * time.Second},
		{false, true, 10 * time.Second},
		{false, true, 10 * time.Second},
		{true, true, 10 * time.Second},
		{false, true, 10 * time.Second},
		{false, true, 10 * time.Second},
		{false, false, 10 * time.Second},
		{true, false, 10 * time.Second},
		{true, true, 10 * time.Second},
	}
	for i, step := range steps {
		r.underWay = true
		if !r.due().IsZero() {
			t.Fatal("a second probe is due while one is under way")
		}
		r.record(step.ok, now)
		if r.ready != step.ready || r.due().Sub(now) != step.wait {
			t.Errorf("step %d: ready %t, next in %s; want %+v", i, r.ready, r.due().Sub(now), step)
		}
	}
	if r := newReadiness(&corev1.Container{}, "127.20.0.1", now); !r.ready || !r.due().IsZero() {
		t.Error("a container without a probe is not simply ready")
	}
}

// Running a pod otherwise than it says would make tests pass that must not.
func TestUnsupported(t *testing.T) {
	good := func() *corev1.Pod {
		c := tcpContainer()
		c.VolumeMounts = []corev1.VolumeMount{{Name: "files", MountPath: "/etc/proxy-operator/", ReadOnly: true}}
		return &corev1.Pod{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{*c},
			Volumes: []corev1.Volume{
				{Name: "files", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}},
				{Name: "unused", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
		}}
	}
	if what := unsupported(good()); what != "" {
		t.Errorf("a plain pod: %q", what)
	}
	for want, change := range map[string]func(*corev1.PodSpec){
		"more than one container":      func(s *corev1.PodSpec) { s.Containers = append(s.Containers, corev1.Container{}) },
		"init containers":              func(s *corev1.PodSpec) { s.InitContainers = []corev1.Container{{}} },
		"restartPolicy Never":          func(s *corev1.PodSpec) { s.RestartPolicy = corev1.RestartPolicyNever },
		"of another kind than secret":  func(s *corev1.PodSpec) { s.Containers[0].VolumeMounts[0].Name = "unused" },
		"than at /etc/proxy-operator":  func(s *corev1.PodSpec) { s.Containers[0].VolumeMounts[0].MountPath = "/etc/elsewhere" },
		"subPath in volumeMounts":      func(s *corev1.PodSpec) { s.Containers[0].VolumeMounts[0].SubPath = "username" },
		"volume devices":               func(s *corev1.PodSpec) { s.Containers[0].VolumeDevices = []corev1.VolumeDevice{{}} },
		"envFrom":                      func(s *corev1.PodSpec) { s.Containers[0].EnvFrom = []corev1.EnvFromSource{{}} },
		"liveness and startup probes":  func(s *corev1.PodSpec) { s.Containers[0].LivenessProbe = &corev1.Probe{} },
		"lifecycle hooks":              func(s *corev1.PodSpec) { s.Containers[0].Lifecycle = &corev1.Lifecycle{} },
		"probes other than tcpSocket":  func(s *corev1.PodSpec) { s.Containers[0].ReadinessProbe = &corev1.Probe{} },
		"hostNetwork":                  func(s *corev1.PodSpec) { s.HostNetwork = true },
		"hostPort of protocol UDP":     func(s *corev1.PodSpec) { s.Containers[0].Ports[0].Protocol = corev1.ProtocolUDP },
		"hostIP in ports":              func(s *corev1.PodSpec) { s.Containers[0].Ports[0].HostIP = "127.0.0.1" },
		"tcpSocket probe of no port x": func(s *corev1.PodSpec) { s.Containers[0].ReadinessProbe.TCPSocket.Port = intstr.FromString("x") },
	} {
		pod := good()
		change(&pod.Spec)
		if what := unsupported(pod); !strings.HasSuffix(what, want) {
			t.Errorf("got %q, want %q", what, want)
		}
	}
}

// A volume's files are for their pod alone, and lead nowhere else whatever they are called.
func TestFilesStayInTheirDirectory(t *testing.T) {
	root := newFilesRoot(t.TempDir(), "node-1")
	if err := root.make(); err != nil {
		t.Fatal(err)
	}
	mode := int32(0o640)
	files := map[string]file{"username": {[]byte("crawler"), fileMode(nil, nil)}, "deep/down": {[]byte("x"), fileMode(&mode, nil)}}
	if err := writeFiles(root.of("uid"), files); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{".": 0o700, "uid": 0o700, "uid/username": 0o600, "uid/deep": 0o700, "uid/deep/down": 0o640} {
		info, err := os.Stat(filepath.Join(string(root), path))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %s", path, info, err, want)
		}
	}
	for _, path := range []string{"../uid/username", "../out", "/out", ""} {
		if err := writeFiles(root.of("other"), map[string]file{path: {}}); err == nil {
			t.Errorf("%q was written", path)
		}
		root.remove("other")
	}
	if err := root.make(); err != nil { // as the next life of a killed node does
		t.Fatal(err)
	}
	if left, err := os.ReadDir(string(root)); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A pod that crashes at once must not take the host down, and one that ran well must not wait
// half a minute for its next life.
func TestBackoff(t *testing.T) {
	now := time.Now()
	w := &worker{log: slog.New(slog.DiscardHandler), pod: testPod}
	end := func(ran time.Duration) time.Duration {
		w.proc = &container{exit: corev1.ContainerStateTerminated{
			StartedAt: metav1.NewTime(now.Add(-ran)), FinishedAt: metav1.NewTime(now),
		}}
		w.ended(now)
		return w.startAt.Sub(now)
	}
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		if got := end(0); got != want*time.Second {
			t.Errorf("crash %d: next life in %s, want %s", i+1, got, want*time.Second)
		}
	}
	if got := end(backoffReset); got != time.Second {
		t.Errorf("after a long life: next one in %s", got)
	}
}
