package app_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/testkit/apiserver"
	"github.com/proxyfleet/proxy-operator/test/controlplane"
)

// TestSpokes runs the whole hub against real API servers, and a stand-in for
// the faults that a real one cannot play, and registers spokes in every way.
func TestSpokes(t *testing.T) {
	w := bareWorld(t)
	w.spokes["eu"].prepare(t, "crd/crawl.proxyfleet.dev_proxies.yaml") // us has none yet
	w.startHub("--zap-log-level", "10")
	r := &registrations{world: w, standIn: apiserver.Start(t)}
	run(w, r, []step[*registrations]{
		{"bad spokes registered first delay no good one, and each says what is wrong", faultsFirst},
		{"a bad spoke goes within 5 s", removals},
		{"the CRD appears, and its spoke is connected within 45 s", crdAppears},
		{"missing rights are named, verb by verb", missingRights},
		{"a hundred rotations under a stream of changes", rotations},
		{"an API server away for a minute takes nothing away", minuteAway},
		{"the name of a spoke leads to another cluster", otherCluster},
		{"two names lead to one cluster", twoNames},
		{"two hubs have one spoke", twoHubs},
		{"a spoke limited to some namespaces", namespacesOnly},
		{"the hub's own cluster as a spoke", localSpoke},
		{"a hub that starts again", restarted},
		{"a hundred spokes at once", hundredSpokes},
		{"a deregistered spoke leaves the fleet, and keeps its instances", deregistered},
		{"nothing of a kubeconfig is anywhere", nothingLeaked},
	})
}

// registrations is a world with what its spokes were registered with.
type registrations struct {
	*world
	standIn *apiserver.Server
	secrets []string // what must not be seen anywhere
	logs    []*syncBuffer
}

// add registers a spoke, and remembers what must stay secret.
func (r *registrations) add(name string, kubeconfig []byte, annotations ...string) *corev1.Secret {
	r.t.Helper()
	r.remember(kubeconfig)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: system, Name: name, Labels: map[string]string{v1alpha1.LabelKubeconfig: "true"},
			Annotations: map[string]string{v1alpha1.AnnotationPodNetwork: v1alpha1.PodNetworkRoutable},
		},
		Data: map[string][]byte{v1alpha1.KubeconfigKey: kubeconfig},
	}
	for i := 0; i < len(annotations); i += 2 {
		secret.Annotations[annotations[i]] = annotations[i+1]
	}
	r.create(r.hub, secret)
	return secret
}

func (r *registrations) remember(kubeconfig []byte) {
	r.secrets = append(r.secrets, base64.StdEncoding.EncodeToString(kubeconfig))
	file, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return
	}
	for _, user := range file.AuthInfos {
		r.secrets = append(r.secrets, user.Token, base64.StdEncoding.EncodeToString(user.ClientKeyData))
	}
	for _, cluster := range file.Clusters {
		r.secrets = append(r.secrets, base64.StdEncoding.EncodeToString(cluster.CertificateAuthorityData))
	}
}

// edit changes a Secret of the hub's namespace.
func (r *registrations) edit(name string, change func(*corev1.Secret)) {
	r.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}}
	r.eventually("Secret "+name+" is changed", func() error {
		if err := r.get(r.hub, secret); err != nil {
			return err
		}
		change(secret)
		return r.hub.Update(r.t.Context(), secret)
	})
}

func (r *registrations) rotate(name string, kubeconfig []byte) {
	r.t.Helper()
	r.remember(kubeconfig)
	r.edit(name, func(s *corev1.Secret) { s.Data[v1alpha1.KubeconfigKey] = kubeconfig })
}

// drop deletes a Secret and says how long its Spoke outlives it.
func (r *registrations) drop(name string) time.Duration {
	r.t.Helper()
	began := time.Now()
	if err := r.hub.Delete(r.t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}}); err != nil {
		r.t.Fatal(err)
	}
	r.eventually("spoke "+name+" goes with its Secret", func() error {
		err := r.get(r.hub, &v1alpha1.Spoke{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("still there (%w)", err)
	})
	return time.Since(began)
}

const standInProxies = "/apis/crawl.proxyfleet.dev/v1alpha1/proxies"

func faultsFirst(t *testing.T, r *registrations) {
	mute := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0")) // accepts and never answers
	t.Cleanup(func() { mute.Close() })
	refuses := r.standIn.Cluster("refuses-the-list")
	refuses.Answer(standInProxies, apiserver.Status(http.StatusForbidden, "Forbidden", "proxies is forbidden: the list is"))
	eu, us := r.spokes["eu"], r.spokes["us"]
	moved := func(server string) []byte {
		return []byte(strings.Replace(string(eu.kubeconfig), eu.plane.Admin().Host, server, 1))
	}
	wrongCA := must[[]byte](t)(controlplane.Kubeconfig(controlplane.Context{Name: "x", Config: &rest.Config{
		Host: eu.plane.Admin().Host, BearerToken: "bearer-of-wrong-ca", TLSClientConfig: rest.TLSClientConfig{CAData: us.plane.Admin().CAData},
	}}))
	ran, fifo := filepath.Join(t.TempDir(), "ran"), filepath.Join(t.TempDir(), "token")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	userOf := func(user string) []byte {
		return fmt.Appendf(nil, "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"+
			"clusters: [{name: c, cluster: {server: '%s'}}]\nusers: [{name: u, user: {%s}}]\n", eu.plane.Admin().Host, user)
	}
	bad := []struct {
		name         string
		kubeconfig   []byte
		reason, says string
	}{
		{"mute", moved("https://" + mute.Addr().String()), v1alpha1.ReasonUnreachable, "in time"},
		{"refuses-the-list", refuses.Kubeconfig("token-of-refuses"), v1alpha1.ReasonForbidden, "list proxies"},
		{"us", us.kubeconfig, v1alpha1.ReasonCRDMissing, "config/crd"},
		{"wrong-ca", wrongCA, v1alpha1.ReasonUnreachable, "certificate"},
		{"closed", moved("https://127.0.0.1:1"), v1alpha1.ReasonUnreachable, "refused"},
		{"garbage", []byte("\x00not a kubeconfig"), v1alpha1.ReasonKubeconfigInvalid, "not a kubeconfig"},
		{"plugin", userOf(fmt.Sprintf("exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: touch, args: ['%s']}", ran)),
			v1alpha1.ReasonKubeconfigForbidden, "exec"},
		{"token-file", userOf("tokenFile: '" + fifo + "'"), v1alpha1.ReasonKubeconfigForbidden, "tokenFile"},
		{"not.a.label", eu.kubeconfig, v1alpha1.ReasonKubeconfigInvalid, "name"},
	}
	for _, b := range bad {
		r.add(b.name, b.kubeconfig)
	}
	began := time.Now()
	r.add("eu", eu.kubeconfig)
	spoke := r.spokeShows("eu", v1alpha1.ConditionReady, "True/Connected", "")
	connected := time.Since(began)
	p := managed("first", r.forwardProxy())
	r.create(eu, p)
	pod := r.podOf(eu, p, "")
	took := time.Since(began)
	t.Logf("the good spoke is Connected after %s, the pod of its first Proxy made after %s", connected.Round(time.Millisecond), took.Round(time.Millisecond))
	if took > 10*time.Second {
		t.Errorf("it took %s, want 10 s at most", took)
	}
	r.bind(eu, pod)
	r.run(eu, pod)
	r.proxyShows(eu, p, v1alpha1.PhaseReady)
	uid := must[string](t)(eu.plane.UID(t.Context()))
	if spoke.Status.ClusterUID != uid || spoke.Status.Server != strings.TrimSuffix(eu.plane.Admin().Host, "/") || !strings.HasPrefix(spoke.Status.Version, "v1.") {
		t.Errorf("status %+v", spoke.Status)
	}
	for _, b := range bad {
		r.spokeShows(b.name, v1alpha1.ConditionReady, "False/"+b.reason, b.says)
	}
	if _, err := os.Stat(ran); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the command of the exec plugin has run: %v", err)
	}
	// Whoever opened the pipe to read would still wait for a writer, and one
	// that asks not to wait itself would find it.
	if fd, err := syscall.Open(fifo, syscall.O_WRONLY|syscall.O_NONBLOCK, 0); !errors.Is(err, syscall.ENXIO) {
		t.Errorf("the tokenFile is open for reading: %d, %v", fd, err)
	}
	r.clustersSay(map[string]string{"eu": "Connected", "closed": "Unreachable", "plugin": "KubeconfigForbidden"})
	r.eventHappened("eu", corev1.EventTypeNormal, "Connected")
	r.eventHappened("closed", corev1.EventTypeWarning, "Unreachable")
}

// clustersSay checks what GET /v1/clusters gives as reasons.
func (r *registrations) clustersSay(want map[string]string) {
	r.t.Helper()
	r.eventually("GET /v1/clusters shows it", func() error {
		var list struct {
			Clusters []struct {
				Name, Reason, LastContactTime string
				Ready                         bool
				Proxies, Instances            int
			}
		}
		if status := r.call("GET", "/v1/clusters", "", &list); status != http.StatusOK {
			return fmt.Errorf("status %d", status)
		}
		found := map[string]bool{}
		for _, c := range list.Clusters {
			reason, asked := want[c.Name]
			found[c.Name] = true
			if asked && (c.Reason != reason || c.Ready != (reason == "Connected") || c.Ready && c.LastContactTime == "") {
				return fmt.Errorf("%+v, want %s", c, reason)
			}
		}
		for name := range want {
			if !found[name] {
				return fmt.Errorf("%s is missing", name)
			}
		}
		return nil
	})
}

// eventHappened waits for an Event on the Spoke.
func (r *registrations) eventHappened(spoke, kind, reason string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("Event %s on spoke %s", reason, spoke), func() error {
		var list eventsv1.EventList
		if err := r.hub.List(r.t.Context(), &list, client.InNamespace(system)); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Regarding.Kind == "Spoke" && e.Regarding.Name == spoke && e.Type == kind && e.Reason == reason {
				return nil
			}
		}
		return fmt.Errorf("not among %d", len(list.Items))
	})
}

func removals(t *testing.T, r *registrations) {
	for _, name := range []string{"mute", "refuses-the-list", "wrong-ca", "closed", "garbage", "plugin", "token-file", "not.a.label"} {
		if took := r.drop(name); took > 5*time.Second {
			t.Errorf("%s went after %s", name, took)
		}
	}
}

func crdAppears(t *testing.T, r *registrations) {
	us := r.spokes["us"]
	us.prepare(t, "crd/crawl.proxyfleet.dev_proxies.yaml")
	began := time.Now()
	r.spokeShows("us", v1alpha1.ConditionReady, "True/Connected", "")
	t.Logf("Connected %s after the CRD", time.Since(began).Round(time.Millisecond))
	if took := time.Since(began); took > 45*time.Second {
		t.Errorf("it took %s", took)
	}
}

func missingRights(t *testing.T, r *registrations) {
	us := r.spokes["us"]
	r.drop("us")
	r.create(us, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "nobody"}})
	cfg := must[*rest.Config](t)(us.plane.ServiceAccount(t.Context(), system, "nobody"))
	r.add("us", must[[]byte](t)(controlplane.Kubeconfig(controlplane.Context{Name: "us", Config: cfg})))
	spoke := r.spokeShows("us", v1alpha1.ConditionReady, "False/Forbidden", "")
	message := condition(spoke.Status.Conditions, v1alpha1.ConditionReady)
	for _, right := range []string{"config/rbac/spoke", "user system:serviceaccount:proxy-operator-system:nobody", "get namespaces kube-system", "get, list, patch, watch proxies.crawl.proxyfleet.dev;",
		"patch proxies.crawl.proxyfleet.dev/status", "create, delete, get, list, patch, watch pods", "create, delete, get, list, patch, watch secrets", "create, patch events.events.k8s.io", "customresourcedefinitions"} {
		if !strings.Contains(message, right) {
			t.Errorf("%q does not say %q", message, right)
		}
	}
	r.rotate("us", us.kubeconfig)
	r.spokeShows("us", v1alpha1.ConditionReady, "True/Connected", "")
}

func deregistered(t *testing.T, r *registrations) {
	eu := r.spokes["eu"]
	var before, after corev1.PodList
	if err := eu.List(t.Context(), &before, client.InNamespace(ns)); err != nil {
		t.Fatal(err)
	}
	if n := len(r.listed("?cluster=eu")); n == 0 {
		t.Fatal("the spoke has no Proxies")
	}
	began := time.Now()
	r.edit("eu", func(s *corev1.Secret) { delete(s.Labels, v1alpha1.LabelKubeconfig) }) // as good as deleting it
	r.eventually("eu has left the fleet", func() error {
		if left := r.listed("?cluster=eu"); len(left) > 0 {
			return fmt.Errorf("%d Proxies are still listed", len(left))
		}
		return nil
	})
	took := time.Since(began)
	t.Logf("its Proxies left after %s", took.Round(time.Millisecond))
	if took > 5*time.Second {
		t.Errorf("they left after %s", took)
	}
	if status := r.call("POST", "/v1/leases", `{"cluster":"eu"}`, nil); status != http.StatusConflict {
		t.Errorf("lease in a deregistered spoke: %d", status)
	}
	if err := eu.List(t.Context(), &after, client.InNamespace(ns)); err != nil {
		t.Fatal(err)
	}
	if len(before.Items) == 0 || len(after.Items) != len(before.Items) {
		t.Errorf("%d pods before, %d after", len(before.Items), len(after.Items))
	}
	for i := range after.Items {
		if after.Items[i].UID != before.Items[i].UID || after.Items[i].DeletionTimestamp != nil {
			t.Errorf("pod %s was touched", after.Items[i].Name)
		}
	}
}
