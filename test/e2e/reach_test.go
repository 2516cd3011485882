package e2e_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/testkit/certs"
	"github.com/proxyfleet/proxy-operator/test/crawler/clients"
	"github.com/proxyfleet/proxy-operator/test/process"
	"github.com/proxyfleet/proxy-operator/test/relay"
)

// marker is in every password of this test, and nowhere else.
const marker = "kq7Zp0vWmarkerX3"

// awkward is a password with every printable character of ASCII in it.
var awkward = func() string {
	var b strings.Builder
	b.WriteString(marker)
	for c := byte(' '); c <= '~'; c++ {
		b.WriteByte(c)
	}
	return b.String()
}()

// reachWorld is a fleet whose Proxies are reached in all ways that there are.
type reachWorld struct {
	*world
	root *testing.T // of the whole world
	ca   *certs.Authority
	ways []way
}

// way is how one Proxy is reached.
type way struct {
	name     string
	protocol v1alpha1.Protocol
	// thorough says that all clients that are installed use it.
	thorough bool
}

// TestReach runs a fleet, with the hub as talkative as it gets.
func TestReach(t *testing.T) {
	w := &reachWorld{world: newWorld(t), root: t}
	w.endHub(t, w.pid(t, "HUB"), syscall.SIGTERM)
	w.startHub(t, "--zap-log-level=4")
	for _, step := range []struct {
		name string
		run  func(*testing.T, *reachWorld)
	}{
		{"however a Proxy is exposed, spoken to and logged in to, it comes up", applyAllWays},
		{"ordinary clients fetch pages with nothing but a lease", fetchAllWays},
		{"a load balancer's address outlives a replacement, and is followed when it moves", movingBalancer},
		{"a rotated password reaches pods one at a time, and no lease is ahead of its pod", rotatedPassword},
		{"nobody has written a password down", passwordsNowhere},
		{"no program has panicked or told a secret", func(t *testing.T, w *reachWorld) { cleanLogs(t, w.world) }},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, w) }) {
			return
		}
	}
}

func applyAllWays(t *testing.T, w *reachWorld) {
	eu := w.spokes[euWest]
	w.secret(t, "awkward", map[string]string{"username": "crawler", "password": awkward})
	var err error
	if w.ca, err = certs.NewAuthority("reach"); err != nil {
		t.Fatal(err)
	}
	pair, err := w.ca.Issue("proxy.example")
	if err != nil {
		t.Fatal(err)
	}
	w.secret(t, "px-tls", map[string]string{"tls.crt": string(pair.Certificate), "tls.key": string(pair.Key), "ca.crt": string(w.ca.PEM)})
	port := int32(4100)
	protocols := []v1alpha1.Protocol{v1alpha1.ProtocolHTTP, v1alpha1.ProtocolHTTPS, v1alpha1.ProtocolSOCKS5}
	for _, protocol := range protocols {
		for _, guarded := range []bool{false, true} {
			for _, expose := range []v1alpha1.Expose{v1alpha1.ExposePodIP, v1alpha1.ExposeHostPort, v1alpha1.ExposeLoadBalancer} {
				port++ // of one node's ports each is one Proxy's
				w.apply(t, eu, expose, protocol, guarded, func(p *v1alpha1.Proxy) {
					p.Spec.Provider, p.Spec.Port = v1alpha1.ProviderKubernetes, port
					p.Spec.Kubernetes = &v1alpha1.KubernetesSpec{Expose: expose}
					if protocol == v1alpha1.ProtocolHTTPS {
						p.Spec.TLS.SecretRef = &v1alpha1.SecretReference{Name: "px-tls"}
					}
				})
			}
			// Over IPv6, at proxies that somebody else runs.
			endpoint := w.externalProxy(t, protocol, guarded, pair)
			w.apply(t, eu, "External", protocol, guarded, func(p *v1alpha1.Proxy) {
				p.Spec.Mode, p.Spec.Endpoint = v1alpha1.ModeExternal, endpoint
			})
		}
	}
	began := time.Now()
	for _, way := range w.ways {
		eventually(t, 2*patience, way.name+" is Ready", func() error {
			p := eu.proxy(t, way.name)
			if p.Status.Phase == v1alpha1.PhaseReady {
				return nil
			}
			return fmt.Errorf("it is %s: %s; %s", p.Status.Phase, condition(p.Status.Conditions, v1alpha1.ConditionProvisioned), condition(p.Status.Conditions, v1alpha1.ConditionHealthy))
		})
	}
	t.Logf("%d Proxies Ready after %s", len(w.ways), time.Since(began).Round(time.Millisecond))
}

// secret makes a Secret of namespace crawl in eu-west.
func (w *reachWorld) secret(t *testing.T, name string, data map[string]string) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: crawl, Name: name}, StringData: data}
	if err := w.spokes[euWest].Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
}

// apply makes a Proxy that is reached this way, and is selected by its name.
func (w *reachWorld) apply(t *testing.T, spoke cluster, expose v1alpha1.Expose, protocol v1alpha1.Protocol, guarded bool, edit func(*v1alpha1.Proxy)) {
	t.Helper()
	name := strings.ToLower(fmt.Sprintf("%s-%s", expose, protocol))
	p := &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: crawl},
		Spec: v1alpha1.ProxySpec{
			Protocol: protocol, HealthCheck: v1alpha1.HealthCheck{IntervalSeconds: 2, TimeoutSeconds: 5},
		},
	}
	if guarded {
		name += "-guarded"
		p.Spec.AuthSecretRef = &v1alpha1.SecretReference{Name: "awkward"}
	}
	if protocol == v1alpha1.ProtocolHTTPS {
		p.Spec.TLS = &v1alpha1.TLS{ServerName: "proxy.example", CASecretRef: &v1alpha1.CASecretReference{Name: "px-tls"}}
	}
	p.Name, p.Spec.Attributes = name, map[string]v1alpha1.AttributeValue{"way": v1alpha1.AttributeValue(name)}
	edit(p)
	if err := spoke.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.ways = append(w.ways, way{name, protocol, expose == "External"})
}

// externalProxy runs a proxy that is reached at ::1, from where no IPv4 site can be called.
func (w *reachWorld) externalProxy(t *testing.T, protocol v1alpha1.Protocol, guarded bool, pair certs.Pair) *v1alpha1.Endpoint {
	t.Helper()
	dir := w.root.TempDir()
	files := map[string]string{"tls.crt": string(pair.Certificate), "tls.key": string(pair.Key)}
	if guarded {
		files["username"], files["password"] = "crawler", awkward
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	port, err := process.ReservePort("")
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := process.Start(process.Spec{
		Name: fmt.Sprintf("external-%s-%v", protocol, guarded), Path: filepath.Join(bin, "forwardproxy"),
		Env:     append(w.raceEnv(), fmt.Sprintf("PROXY_PORT=%d", port.Number), "PROXY_PROTOCOL="+string(protocol), "PROXY_BIND_ADDRESS="+port.Host, "PROXY_FILES_DIR="+dir),
		LogFile: filepath.Join(w.temp, fmt.Sprintf("external-%s-%v.log", protocol, guarded)),
	})
	if err != nil {
		t.Fatal(err)
	}
	at, err := relay.Listen(w.root.Context(), netip.MustParseAddrPort("[::1]:0"), func() (string, bool) { return port.Address(), true })
	if err != nil {
		t.Fatal(err)
	}
	w.root.Cleanup(func() {
		at.Close()
		if err := proxy.Stop(); err != nil {
			w.root.Error(err)
		}
		port.Release()
	})
	return &v1alpha1.Endpoint{Host: "::1", Port: int32(at.Addr().(*net.TCPAddr).Port)}
}

func fetchAllWays(t *testing.T, w *reachWorld) {
	ca, err := os.ReadFile(w.env["ORIGIN_CA_FILE"])
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range w.ways {
		l := w.api.mustAcquire(t, fmt.Sprintf(`{"selector":{"way":%q}}`, way.name))
		var used []string
		for _, c := range clients.ForTest(t, string(way.protocol)) {
			if !way.thorough && c.Name() != "go" && c.Name() != "curl" {
				continue // they take a second each
			}
			status, body, err := clients.Fetch(t.Context(), c, l.read, w.env["ORIGIN_URL"]+"/a-page", ca)
			if err != nil || status != http.StatusOK || !strings.Contains(string(body), "/a-page") {
				t.Errorf("%s through %s: %d %.100s %v", c.Name(), way.name, status, body, err)
			}
			used = append(used, c.Name())
		}
		t.Logf("%s: %s", way.name, strings.Join(used, ", "))
		w.api.release(t, l)
	}
}

// movingBalancer edits what the pod is made of, and then moves the cloud's load balancer.
func movingBalancer(t *testing.T, w *reachWorld) {
	eu := w.spokes[euWest]
	const name = "loadbalancer-http-guarded"
	p := eu.proxy(t, name)
	endpoint, old := p.Status.Endpoint, eu.onlyPod(t, p)
	ready := func(what string, also func(*v1alpha1.Proxy) error) {
		eventually(t, 2*patience, what, func() error {
			p = eu.proxy(t, name)
			if p.Status.Phase != v1alpha1.PhaseReady || p.Status.ObservedGeneration != p.Generation {
				return fmt.Errorf("it is %s", p.Status.Phase)
			}
			return also(p)
		})
	}
	base := p.DeepCopy()
	p.Spec.Kubernetes.PodLabels = map[string]v1alpha1.LabelValue{"edited": "yes"}
	if err := eu.Patch(t.Context(), p, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
	ready("it is Ready on another pod", func(p *v1alpha1.Proxy) error {
		if pods := eu.pods(t)[p.UID]; len(pods) != 1 || pods[0].UID == old.UID {
			return errors.New("the old pod is there")
		}
		return nil
	})
	if p.Status.Endpoint != endpoint {
		t.Errorf("its address was %s and is %s", endpoint, p.Status.Endpoint)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: crawl, Name: "proxy-" + string(p.UID)}}
	if err := eu.get(t, service.Name, service); err != nil {
		t.Fatal(err)
	}
	moved := service.DeepCopy()
	moved.Annotations = map[string]string{"test.proxyfleet.dev/address": "127.6.5.4"}
	if err := eu.Patch(t.Context(), moved, client.MergeFrom(service)); err != nil {
		t.Fatal(err)
	}
	ready("the endpoint follows", func(p *v1alpha1.Proxy) error {
		if want := fmt.Sprintf("127.6.5.4:%d", p.Spec.Port); p.Status.Endpoint != want {
			return fmt.Errorf("it is %s, want %s", p.Status.Endpoint, want)
		}
		return nil
	})
	if err := eu.Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "its Service goes with it", func() error {
		return errors.Join(gone(eu.get(t, name, p)), gone(eu.get(t, service.Name, service)))
	})
}
