package e2e_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/test/crawler/clients"
)

// rotation is Proxies of one Secret whose password changes.
type rotation struct {
	*reachWorld
	old       map[string]types.UID // the pods that they have at first, by name
	passwords map[string]string    // by a name that may be told
}

// rotatedPassword has crawlers lease all the time while a password changes.
func rotatedPassword(t *testing.T, w *reachWorld) {
	const proxies = 4
	r := &rotation{reachWorld: w, old: map[string]types.UID{}, passwords: map[string]string{"one": marker + "-one", "two": marker + "-two"}}
	r.apply(t, proxies)
	crawlers := w.crawl(t, 2, r.passwords)
	began := time.Now()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: crawl, Name: "rotating"}}
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"stringData":{"password":%q}}`, r.passwords["two"]))
	if err := w.spokes[euWest].Patch(t.Context(), secret, patch); err != nil {
		t.Fatal(err)
	}
	least := proxies
	eventually(t, 4*patience, "all have the new password", func() error {
		least = min(least, r.healthy(t))
		return r.replaced(t)
	})
	took := time.Since(began)
	used := crawlers.stop()
	if least < proxies-1 {
		t.Errorf("of %d Proxies %d served at a time, want %d", proxies, least, proxies-1)
	}
	if used["one"] == 0 || used["two"] == 0 {
		t.Errorf("the crawlers have used %v: the test has seen no rotation", used)
	}
	if last := w.api.mustAcquire(t, `{"selector":{"way":"rotating"}}`); !strings.Contains(last.Proxy.URL, url.QueryEscape(r.passwords["two"])) {
		t.Error("a lease after the rotation has the old password")
	}
	t.Logf("rotated within %s; pages fetched with each password: %v; %d ended with their pod", took.Round(time.Millisecond), used, used["cut"])
}

// apply makes the Proxies and waits until all serve.
func (r *rotation) apply(t *testing.T, proxies int) {
	t.Helper()
	r.secret(t, "rotating", map[string]string{"username": "crawler", "password": r.passwords["one"]})
	for i := range proxies {
		p := &v1alpha1.Proxy{
			ObjectMeta: metav1.ObjectMeta{Namespace: crawl, Name: fmt.Sprintf("rotating-%d", i)},
			Spec: v1alpha1.ProxySpec{
				Provider: v1alpha1.ProviderKubernetes, AuthSecretRef: &v1alpha1.SecretReference{Name: "rotating"},
				Attributes: map[string]v1alpha1.AttributeValue{"way": "rotating"}, HealthCheck: v1alpha1.HealthCheck{IntervalSeconds: 1, TimeoutSeconds: 5},
			},
		}
		if err := r.spokes[euWest].Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		r.old[p.Name] = ""
	}
	eventually(t, 2*patience, "all of them serve", func() error {
		if n := r.healthy(t); n < proxies {
			return fmt.Errorf("%d do", n)
		}
		return nil
	})
	for name := range r.old {
		r.old[name] = r.spokes[euWest].onlyPod(t, r.spokes[euWest].proxy(t, name)).UID
	}
}

// healthy is how many of them are leased.
func (r *rotation) healthy(t *testing.T) (n int) {
	t.Helper()
	for _, p := range r.api.list(t, "?attr.way=rotating") {
		if p.Healthy {
			n++
		}
	}
	return n
}

// replaced says which of them is not Ready on another pod.
func (r *rotation) replaced(t *testing.T) error {
	t.Helper()
	eu := r.spokes[euWest]
	for name, old := range r.old {
		p := eu.proxy(t, name)
		if pods := eu.pods(t)[p.UID]; p.Status.Phase != v1alpha1.PhaseReady || len(pods) != 1 || pods[0].UID == old {
			return fmt.Errorf("%s is %s on %d pods", name, p.Status.Phase, len(pods))
		}
	}
	return nil
}

// crawlers lease, fetch and release until they are stopped.
type crawlers struct {
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu   sync.Mutex
	used map[string]int
}

// crawl runs some. What fails them is a lease with a password that its proxy does not take.
func (w *reachWorld) crawl(t *testing.T, n int, passwords map[string]string) *crawlers {
	t.Helper()
	ca, err := os.ReadFile(w.env["ORIGIN_CA_FILE"])
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c := &crawlers{cancel: cancel, used: map[string]int{}}
	for range n {
		c.wait.Go(func() {
			for ctx.Err() == nil {
				what, err := w.crawlOnce(ctx, ca, passwords)
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				c.mu.Lock()
				c.used[what]++
				c.mu.Unlock()
			}
		})
	}
	t.Cleanup(func() { c.stop() })
	return c
}

// crawlOnce says which password it has used, or that the proxy went meanwhile ("cut").
func (w *reachWorld) crawlOnce(ctx context.Context, ca []byte, passwords map[string]string) (string, error) {
	r, err := w.api.do(ctx, http.MethodPost, "/v1/leases", `{"selector":{"way":"rotating"}}`)
	if err != nil || r.status != http.StatusCreated {
		return "", fmt.Errorf("lease: %s, %w", r, err)
	}
	var l lease
	read, err := clients.ParseLease(r.body)
	if err := errors.Join(err, json.Unmarshal(r.body, &l)); err != nil {
		return "", err
	}
	defer func() { _, _ = w.api.do(ctx, http.MethodDelete, "/v1/leases/"+l.LeaseID, "") }()
	used := ""
	for name, password := range passwords {
		if strings.Contains(l.Proxy.URL, url.QueryEscape(password)) {
			used = name
		}
	}
	switch _, _, err := clients.Fetch(ctx, clients.Go(), read, w.env["ORIGIN_URL"]+"/a-page", ca); {
	case err == nil:
		return used, nil
	case errors.Is(err, clients.ErrCredentials):
		return "", fmt.Errorf("a lease with password %s of %s: %w", used, l.Proxy.key(), err)
	default:
		return "cut", nil
	}
}

func (c *crawlers) stop() map[string]int {
	c.cancel()
	c.wait.Wait()
	return c.used
}

// spelled are the ways in which a password's marker may be written.
func spelled() []string {
	all := []string{marker, strings.ToLower(marker), hex.EncodeToString([]byte(marker))}
	for skip := range 3 { // base64 of a text is another for each place of a part in it
		whole := (len(marker) - skip) / 3 * 3
		all = append(all, base64.StdEncoding.EncodeToString([]byte(marker[skip:skip+whole])))
	}
	return all
}

func passwordsNowhere(t *testing.T, w *reachWorld) {
	wrong := &v1alpha1.Proxy{}
	w.spokes[euWest].proxy(t, "external-http-guarded").DeepCopyInto(wrong)
	w.secret(t, "wrong", map[string]string{"username": "crawler", "password": marker + "-wrong"})
	wrong.ObjectMeta = metav1.ObjectMeta{Namespace: crawl, Name: "wrong"}
	wrong.Spec.AuthSecretRef.Name = "wrong"
	if err := w.spokes[euWest].Create(t.Context(), wrong); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "a wrong password is told", func() error {
		if got := condition(w.spokes[euWest].proxy(t, "wrong").Status.Conditions, v1alpha1.ConditionHealthy); !strings.HasPrefix(got, "False/ProxyAuthRequired") {
			return fmt.Errorf("Healthy is %s", got)
		}
		return nil
	})
	written := w.written(t)
	size := 0
	for where, text := range written {
		size += len(text)
		for _, secret := range spelled() {
			if i := bytes.Index(text, []byte(secret)); i >= 0 {
				t.Errorf("%s has a password, at byte %d", where, i)
			}
		}
	}
	t.Logf("%d texts, %d kB", len(written), size>>10)
}

// written is all that programs have written and that API servers and the hub answer, Secrets and
// leases apart, by where it is.
func (w *reachWorld) written(t *testing.T) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, dir := range []string{filepath.Join(w.dir, "logs"), w.temp} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".log") {
				return err
			}
			all[path], err = os.ReadFile(path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]cluster{"hub": w.hub, euWest: w.spokes[euWest], usEast: w.spokes[usEast]} {
		for _, list := range []client.ObjectList{&v1alpha1.ProxyList{}, &v1alpha1.SpokeList{}, &corev1.PodList{}, &corev1.ServiceList{}, &corev1.NodeList{}, &corev1.EventList{}, &eventsv1.EventList{}} {
			if err := c.List(t.Context(), list); err != nil {
				if _, spokes := list.(*v1alpha1.SpokeList); spokes && name != "hub" {
					continue // a spoke has no such kind
				}
				t.Fatal(err)
			}
			text, err := json.Marshal(list)
			if err != nil {
				t.Fatal(err)
			}
			all[fmt.Sprintf("%s %T", name, list)] = text
		}
	}
	for _, path := range []string{"/v1/proxies?limit=5000", "/v1/clusters", "/v1/leases/unknown", "/nowhere", "/v1/proxies?attr.way=" + url.QueryEscape("no;such")} {
		all[path] = []byte(w.api.call(t, http.MethodGet, path, "").String())
	}
	all["refusal"] = []byte(w.api.call(t, http.MethodPost, "/v1/leases", `{"selector":{"way":"nowhere"}}`).String())
	r, err := api{base: w.env["METRICS_URL"]}.do(t.Context(), http.MethodGet, "", "")
	if err != nil {
		t.Fatal(err)
	}
	all["metrics"] = r.body
	for _, pid := range w.pids(t) {
		for _, file := range []string{"cmdline", "environ"} {
			path := fmt.Sprintf("/proc/%d/%s", pid, file)
			if text, err := os.ReadFile(path); err == nil { // or it has just ended
				all[path] = text
			}
		}
	}
	return all
}
