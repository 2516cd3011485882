package app_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/test/relay"
)

// TestHealth runs the whole hub against real API servers, while what lies between it
// and its proxies, or behind them, breaks.
func TestHealth(t *testing.T) {
	w := &outages{world: newWorld(t)}
	run(w.world, w, []step[*outages]{
		{"two spokes are registered", func(t *testing.T, w *outages) { bothSpokes(t, w.world) }},
		{"a spoke whose proxies cannot be reached says so, and nothing is replaced for it", brokenPath},
		{"a restart keeps every verdict and writes nothing", keptVerdicts},
		{"while the probed page is down nobody is judged for it", brokenPage},
	})
}

type outages struct {
	*world
	proxies []*v1alpha1.Proxy
	pods    []*corev1.Pod
	paths   []*door
	page    *door // to the probed site
}

// door leads to an address, until it is shut: then nobody listens there.
type door struct {
	t      *testing.T
	at     netip.AddrPort
	target string
	relay  *relay.Relay
}

func (w *world) door(target string) *door {
	w.t.Helper()
	d := &door{t: w.root, at: netip.MustParseAddrPort("127.0.0.1:0"), target: target}
	d.open()
	d.at = d.relay.Addr().(*net.TCPAddr).AddrPort()
	w.root.Cleanup(d.shut)
	return d
}

func (d *door) open() {
	d.t.Helper()
	d.relay = must[*relay.Relay](d.t)(relay.Listen(context.Background(), d.at, func() (string, bool) { return d.target, true }))
}

func (d *door) shut() {
	d.relay.Close()
	d.relay.Wait()
}

func brokenPath(t *testing.T, w *outages) {
	eu, us := w.spokes["eu"], w.spokes["us"]
	for i := range 3 {
		d := w.door(fmt.Sprintf("127.0.0.1:%d", w.forwardProxy()))
		p := managed(fmt.Sprintf("path-%d", i), int32(d.at.Port()))
		w.paths, w.proxies, w.pods = append(w.paths, d), append(w.proxies, p), append(w.pods, w.up(eu, p))
	}
	elsewhere := external("elsewhere", w.forwardProxy())
	w.create(us, elsewhere)
	w.proxyShows(us, elsewhere, v1alpha1.PhaseReady)
	for _, d := range w.paths {
		d.shut()
	}
	broken := w.spokeShows("eu", v1alpha1.ConditionPathBroken, "True/EveryDialFails", "")
	if got := condition(broken.Status.Conditions, v1alpha1.ConditionReady); !strings.HasPrefix(got, "True/Connected") {
		t.Errorf("Ready is %s: the API server answers", got)
	}
	w.eventTells("Spoke", "eu", "PathBroken")
	for _, p := range w.proxies {
		w.proxyShows(eu, p, v1alpha1.PhaseUnhealthy)
	}
	w.spokeShows("us", v1alpha1.ConditionPathBroken, "absent", "")
	if err := w.get(us, elsewhere); err != nil || elsewhere.Status.Phase != v1alpha1.PhaseReady {
		t.Errorf("another spoke's is %s (%v)", elsewhere.Status.Phase, err)
	}
	for _, d := range w.paths {
		d.open()
	}
	for i, p := range w.proxies {
		w.proxyShows(eu, p, v1alpha1.PhaseReady)
		if pod := w.podOf(eu, p, ""); pod.UID != w.pods[i].UID {
			t.Errorf("the pod of %s was replaced", p.Name)
		}
	}
	w.spokeShows("eu", v1alpha1.ConditionPathBroken, "absent", "")
	w.eventTells("Spoke", "eu", "PathRestored")
}

func keptVerdicts(t *testing.T, w *outages) {
	eu := w.spokes["eu"]
	before := map[string]string{}
	for _, p := range w.proxies {
		if err := w.get(eu, p); err != nil {
			t.Fatal(err)
		}
		before[p.Name] = p.ResourceVersion
	}
	w.page = w.door(strings.TrimPrefix(w.site.URL, "https://"))
	w.stopHub()
	w.startHub("--health-url", "https://"+w.page.at.String()+"/generate_204")
	w.eventually("all are offered again", func() error {
		if found, err := w.list("?cluster=eu&healthy=true"); err != nil || len(found) != len(w.proxies) {
			return fmt.Errorf("%d are (%w)", len(found), err)
		}
		return nil
	})
	w.probed(5 * len(w.proxies)) // which would have changed a verdict
	for _, p := range w.proxies {
		if err := w.get(eu, p); err != nil {
			t.Fatal(err)
		}
		if p.ResourceVersion != before[p.Name] {
			t.Errorf("%s was written to: %s", p.Name, condition(p.Status.Conditions, v1alpha1.ConditionHealthy))
		}
	}
}

func brokenPage(t *testing.T, w *outages) {
	eu := w.spokes["eu"]
	w.page.shut()
	w.eventTells("Lease", "proxy-operator-hub", "VerdictsHeld")
	if held := w.metric("proxy_operator_healthcheck_verdicts_held"); held != 1 {
		t.Errorf("the metric says %v", held)
	}
	w.probed(5 * len(w.proxies)) // all of which fail, and their threshold is two
	for _, p := range w.proxies {
		if err := w.get(eu, p); err != nil || p.Status.Phase != v1alpha1.PhaseReady {
			t.Errorf("%s is %s (%v): %s", p.Name, p.Status.Phase, err, condition(p.Status.Conditions, v1alpha1.ConditionHealthy))
		}
	}
	if status := w.call("POST", "/v1/leases", `{"cluster":"eu"}`, nil); status != http.StatusCreated {
		t.Errorf("a lease is answered with %d", status)
	}
	w.page.open()
	w.eventTells("Lease", "proxy-operator-hub", "VerdictsReleased")
	w.paths[0].shut() // and from here on who fails is judged
	w.proxyShows(eu, w.proxies[0], v1alpha1.PhaseUnhealthy)
	if held := w.metric("proxy_operator_healthcheck_verdicts_held"); held != 0 {
		t.Errorf("the metric says %v", held)
	}
	for _, p := range w.proxies[1:] {
		if err := w.get(eu, p); err != nil || p.Status.Phase != v1alpha1.PhaseReady {
			t.Errorf("%s is %s (%v)", p.Name, p.Status.Phase, err)
		}
	}
}

// eventTells waits for an Event about an object of the hub's.
func (w *world) eventTells(kind, name, reason string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("an Event %s about %s %s", reason, kind, name), func() error {
		var all eventsv1.EventList
		if err := w.hub.List(w.t.Context(), &all, client.InNamespace(system)); err != nil {
			return err
		}
		for i := range all.Items {
			if e := &all.Items[i]; e.Regarding.Kind == kind && e.Regarding.Name == name && e.Reason == reason {
				return nil
			}
		}
		return errors.New("there is none")
	})
}

// probed waits for that many more probes.
func (w *world) probed(n int) {
	w.t.Helper()
	const count = "proxy_operator_healthcheck_schedule_lag_seconds_count"
	from := w.metric(count)
	w.eventually(fmt.Sprint(n, " probes"), func() error {
		if now := w.metric(count); now < from+float64(n) {
			return fmt.Errorf("%v so far", now-from)
		}
		return nil
	})
}

// metric is the value of a metric without labels.
func (w *world) metric(name string) float64 {
	w.t.Helper()
	client := http.Client{Timeout: 10 * time.Second}
	res := must[*http.Response](w.t)(client.Get(w.metrics + "/metrics"))
	defer res.Body.Close()
	for line := range strings.Lines(string(must[[]byte](w.t)(io.ReadAll(res.Body)))) {
		var value float64
		if n, _ := fmt.Sscanf(line, name+" %g", &value); n == 1 {
			return value
		}
	}
	w.t.Fatalf("there is no metric %s", name)
	return 0
}
