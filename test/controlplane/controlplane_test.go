package controlplane_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/proxyfleet/proxy-operator/test/controlplane"
	"github.com/proxyfleet/proxy-operator/test/process"
)

// ownerEnv makes the test binary play a program that starts a control plane and never stops it.
const ownerEnv = "CONTROLPLANE_TEST_OWNER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(ownerEnv); dir != "" {
		plane, err := controlplane.Start(context.Background(), controlplane.Options{Dir: dir})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(plane.EtcdPID(), plane.APIServerPID())
		select {}
	}
	os.Exit(m.Run())
}

func clients(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited a minute in vain: %s", what)
		case <-ticker.C:
		}
	}
}

const guests = `
# nothing in this document

---
apiVersion: v1
kind: ServiceAccount
metadata: {name: guest, namespace: guests}
---
apiVersion: v1
kind: Namespace
metadata: {name: guests}
`

const widgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.test.proxyfleet.dev}
spec:
  group: test.proxyfleet.dev
  names: {kind: Widget, listKind: WidgetList, plural: widgets, singular: widget}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

const widget = `
apiVersion: test.proxyfleet.dev/v1
kind: Widget
metadata: {name: first, namespace: guests}
size: 3
`

func writeManifests(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// One pair of control planes serves all that needs no restart: starting them is what costs.
func TestControlPlanes(t *testing.T) {
	planes := controlplane.StartForTest(t, 2)
	one, two := planes[0], planes[1]

	t.Run("two at once are two clusters", func(t *testing.T) {
		first, err := one.UID(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		second, err := two.UID(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if first == "" || first == second {
			t.Errorf("cluster UIDs are %q and %q", first, second)
		}
		for _, plane := range planes {
			if !process.Alive(plane.EtcdPID()) || !process.Alive(plane.APIServerPID()) {
				t.Errorf("%s: PIDs %d and %d are not of running processes", plane.Name(), plane.EtcdPID(), plane.APIServerPID())
			}
		}
	})
	t.Run("applying a directory works in any order and twice", func(t *testing.T) {
		dir := writeManifests(t, map[string]string{
			"1-widget.yaml": widget, "2-guests.yml": guests, "3-crd.yaml": widgets,
			"kustomization.yaml": "not: an object\n", "README.md": "no manifest",
		})
		for range 2 {
			if err := one.Apply(t.Context(), dir); err != nil {
				t.Fatal(err)
			}
		}
		content, err := clients(t, one.Admin()).RESTClient().Get().
			AbsPath("/apis/test.proxyfleet.dev/v1/namespaces/guests/widgets/first").DoRaw(t.Context())
		if err != nil || !strings.Contains(string(content), `"size":3`) {
			t.Errorf("the widget reads as %s, %v", content, err)
		}
	})
	t.Run("RBAC refuses a ServiceAccount without rights", func(t *testing.T) { testRBAC(t, one) })
	t.Run("a mistake in a manifest is told with file or object", func(t *testing.T) { testBadManifests(t, one) })
}

func testRBAC(t *testing.T, plane *controlplane.ControlPlane) {
	if err := plane.Apply(t.Context(), writeManifests(t, map[string]string{"guests.yaml": guests})); err != nil {
		t.Fatal(err)
	}
	config, err := plane.ServiceAccount(t.Context(), "guests", "guest")
	if err != nil {
		t.Fatal(err)
	}
	// By way of a file, as people get it.
	content, err := controlplane.Kubeconfig(controlplane.Context{Name: "guest", Config: config}, controlplane.Context{Name: "admin", Config: plane.Admin()})
	if err != nil {
		t.Fatal(err)
	}
	fromFile := func(name string) *kubernetes.Clientset {
		loaded, err := clientcmd.Load(content)
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.NewNonInteractiveClientConfig(*loaded, name, nil, nil).ClientConfig()
		if err != nil {
			t.Fatal(err)
		}
		return clients(t, config)
	}
	review, err := fromFile("guest").CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "system:serviceaccount:guests:guest") {
		t.Errorf("a guest lists namespaces: %v, %v; want 403 that names it", review, err)
	}
	if _, err := fromFile("admin").CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("an admin cannot list namespaces: %v", err)
	}
	if _, err := plane.Token(t.Context(), "guests", "nobody"); !apierrors.IsNotFound(errors.Unwrap(err)) {
		t.Errorf("token of a missing ServiceAccount: %v, want not found", err)
	}
}

func testBadManifests(t *testing.T, plane *controlplane.ControlPlane) {
	for name, c := range map[string]struct{ file, content, want string }{
		"not YAML":           {"broken.yaml", "a: [", "broken.yaml"},
		"missing namespace":  {"lost.yaml", "{apiVersion: v1, kind: ServiceAccount, metadata: {name: lost, namespace: nowhere}}", "ServiceAccount nowhere/lost"},
		"empty directory":    {"readme.txt", "", "holds no YAML file"},
		"rejected by schema": {"bad.yaml", "{apiVersion: v1, kind: Namespace, metadata: {name: Not_A_Label}}", "Namespace Not_A_Label"},
	} {
		t.Run(name, func(t *testing.T) {
			err := plane.Apply(t.Context(), writeManifests(t, map[string]string{c.file: c.content}))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestRestartedAPIServerIsTheSameCluster(t *testing.T) {
	plane := controlplane.StartForTest(t, 1)[0]
	admin := clients(t, plane.Admin())
	note := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "note", Namespace: "default"}, Data: map[string]string{"a": "b"}}
	if _, err := admin.CoreV1().ConfigMaps("default").Create(t.Context(), note, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	firstPID, etcdPID := plane.APIServerPID(), plane.EtcdPID()
	down := map[string]func() error{
		"stopped": plane.StopAPIServer,
		"killed":  func() error { return syscall.Kill(plane.APIServerPID(), syscall.SIGKILL) },
	}
	for _, how := range []string{"stopped", "killed"} {
		pid := plane.APIServerPID()
		if err := down[how](); err != nil {
			t.Fatal(err)
		}
		eventually(t, how+" API server is gone", func() bool { return !process.Alive(pid) })
		if _, err := admin.CoreV1().ConfigMaps("default").Get(t.Context(), "note", metav1.GetOptions{}); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s API server answers: %v", how, err)
		}
		if err := plane.StartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
		// The same client: same address, same certificates, same user.
		again, err := admin.CoreV1().ConfigMaps("default").Get(t.Context(), "note", metav1.GetOptions{})
		if err != nil || again.Data["a"] != "b" {
			t.Errorf("after it was %s the note reads as %v, %v", how, again, err)
		}
	}
	if plane.APIServerPID() == firstPID || plane.EtcdPID() != etcdPID {
		t.Errorf("PIDs: API server %d then %d, etcd %d then %d", firstPID, plane.APIServerPID(), etcdPID, plane.EtcdPID())
	}
}

func TestStopCopesWithWhatFaultTestsLeave(t *testing.T) {
	planes := controlplane.StartForTest(t, 2)
	frozen, orphaned := planes[0], planes[1]
	for _, pid := range []int{frozen.EtcdPID(), frozen.APIServerPID()} {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Kill(orphaned.EtcdPID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "etcd is gone", func() bool { return !process.Alive(orphaned.EtcdPID()) })
	for _, plane := range planes {
		etcd, apiserver := plane.EtcdPID(), plane.APIServerPID()
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
		if process.Alive(etcd) || process.Alive(apiserver) {
			t.Errorf("%s is still running", plane.Name())
		}
		if _, err := os.Stat(plane.Dir()); !os.IsNotExist(err) {
			t.Errorf("%s has left its directory: %v", plane.Name(), err)
		}
	}
}

func TestAbandonedStartLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		plane, err := controlplane.Start(ctx, controlplane.Options{Dir: dir})
		if err == nil {
			err = errors.Join(errors.New("started"), plane.Stop())
		}
		result <- err
	}()
	pid := func() int {
		var pid int
		content, _ := os.ReadFile(filepath.Join(dir, "etcd.pid"))
		_, _ = fmt.Sscan(string(content), &pid)
		return pid
	}
	eventually(t, "etcd is starting", func() bool { return pid() != 0 })
	began := time.Now()
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("start ended with %v, want canceled", err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %s to give up", took)
	}
	if process.Alive(pid()) {
		t.Error("etcd is still running")
	}
}

func TestControlPlaneDiesWithAnOwnerThatIsKilled(t *testing.T) {
	if _, err := exec.LookPath("setpriv"); err != nil || runtime.GOOS != "linux" {
		t.Logf("%s without setpriv; nothing is promised there", runtime.GOOS)
		return
	}
	owner := exec.CommandContext(t.Context(), os.Args[0])
	owner.Env = append(os.Environ(), ownerEnv+"="+t.TempDir())
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	var etcd, apiserver int
	if n, _ := fmt.Sscan(line, &etcd, &apiserver); n != 2 || !process.Alive(etcd) || !process.Alive(apiserver) {
		_ = owner.Process.Kill()
		t.Fatalf("the owner said %q, want two living PIDs", line)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	eventually(t, "etcd and kube-apiserver are gone", func() bool {
		return !process.Alive(etcd) && !process.Alive(apiserver)
	})
}
