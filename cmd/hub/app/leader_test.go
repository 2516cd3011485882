package app_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/test/relay"
)

// handover is two replicas, of which the first is elected, and a Proxy in each spoke.
type handover struct {
	*replicated
	first, second *replica
	ways          map[*replica]*way
	near, far     *v1alpha1.Proxy // in the hubs' own cluster, and in another
}

// TestReplicas runs two hubs of one cluster, each with a way of its own to it.
func TestReplicas(t *testing.T) {
	t.Parallel()
	r := newReplicated(t, "eu")
	h := &handover{replicated: r, ways: map[*replica]*way{}, near: externalAt("near", r.port), far: externalAt("far", r.port)}
	run(r.world, h, []step[*handover]{
		{"one leads, and the other follows", oneLeads},
		{"what the leader finds out the other shows, and writes nothing", follower},
		{"when the leader stops the other is there at once, and no spoke is lost", handedOver},
		{"the other does what the leader did", tookOver},
	})
}

func (h *handover) start() *replica {
	x := newWay(h.root, h.plane)
	one := h.replica(x.reach)
	h.ways[one] = x
	return one
}

func oneLeads(t *testing.T, h *handover) {
	h.create(h.home, h.near)
	h.create(h.spokes["eu"], h.far)
	h.register("eu", h.spokes["eu"].kubeconfig)
	h.first = h.start()
	h.eventually("the first leads", func() error {
		if !h.first.leadership.Leading() {
			return errors.New("it does not")
		}
		return nil
	})
	h.second = h.start()
	for _, name := range []string{"home", "eu"} {
		h.spokeShows(name, v1alpha1.ConditionReady, "True/Connected", "")
	}
	h.proxyShows(h.home, h.near, v1alpha1.PhaseReady)
	h.proxyShows(h.spokes["eu"], h.far, v1alpha1.PhaseReady)
	h.showsOf(h.second, true)
	if h.second.leadership.Leading() || h.second.leadership.Holds() || !h.first.leadership.Leading() {
		t.Errorf("the first leads: %v, the second: %v", h.first.leadership.Leading(), h.second.leadership.Leading())
	}
	for _, address := range []string{h.second.api + "/healthz", h.second.health + "/readyz", h.second.health + "/healthz", h.second.metrics + "/metrics"} {
		if _, err := fetch(address); err != nil {
			t.Errorf("a replica that does not lead: %v", err)
		}
	}
	of := *h.world
	of.runningHub = h.second.runningHub
	var refused leaseReply
	if status := of.call("POST", "/v1/leases", `{}`, &refused); status != http.StatusServiceUnavailable || refused.Error != "not_leader" {
		t.Errorf("a replica that does not lead answers %d %+v to who wants a lease", status, refused)
	}
	if holder := *h.electionLease().Spec.HolderIdentity; holder == "" {
		t.Error("nobody holds the Lease")
	}
	h.eventually("it is told who leads", func() error {
		var events eventsv1.EventList
		if err := h.hub.List(t.Context(), &events, client.InNamespace(system)); err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Kind == "Lease" && strings.Contains(e.Note, "became leader")
		}) {
			return errors.New("it is not")
		}
		return nil
	})
}

// showsOf waits until the replica lists both Proxies, healthy or not, and both spokes.
func (h *handover) showsOf(one *replica, healthy bool) {
	h.t.Helper()
	of := *h.world
	of.runningHub = one.runningHub
	h.eventually("a replica lists both Proxies", func() error {
		items, err := of.list("")
		if err != nil {
			return err
		}
		for _, name := range []string{"home/near", "eu/far"} {
			phase := "Ready"
			if !healthy {
				phase = "Unhealthy"
			}
			if item, there := items[name]; !there || item.Healthy != healthy || item.Phase != phase {
				return fmt.Errorf("%s is listed: %v, as %+v", name, there, item)
			}
		}
		return nil
	})
	var answer struct {
		Clusters []struct{ Name, Reason string }
	}
	if status := of.call("GET", "/v1/clusters", "", &answer); status != http.StatusOK || len(answer.Clusters) < 2 {
		h.t.Errorf("clusters: %d, %+v", status, answer)
	}
	for _, c := range answer.Clusters {
		if (c.Name == "home" || c.Name == "eu") && c.Reason != v1alpha1.ReasonConnected {
			h.t.Errorf("cluster %s is %s", c.Name, c.Reason)
		}
	}
}

// fetch is the content of a page.
func fetch(address string) (string, error) {
	res, err := http.Get(address)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	content, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %d", address, res.StatusCode)
	}
	return string(content), err
}

// moves lets both Proxies be at a port.
func (h *handover) moves(port int32) {
	h.t.Helper()
	at := func(p *v1alpha1.Proxy) { p.Spec.Endpoint.Port = port }
	h.change(h.home, h.near, at)
	h.change(h.spokes["eu"], h.far, at)
}

const probed = "proxy_operator_healthcheck_duration_seconds_count"

func follower(t *testing.T, h *handover) {
	h.moves(1) // nothing listens there
	h.proxyShows(h.home, h.near, v1alpha1.PhaseUnhealthy)
	h.showsOf(h.second, false)
	h.moves(h.port)
	h.showsOf(h.second, true)
	// A Secret that comes, makes its Spoke, and goes.
	h.register("bad", []byte("no kubeconfig"))
	h.spokeShows("bad", v1alpha1.ConditionReady, "False/KubeconfigInvalid", "")
	h.eventually("the other knows it, too", func() error {
		content, err := fetch(h.second.metrics + "/metrics")
		if err == nil && !strings.Contains(content, `proxy_operator_spokes{reason="KubeconfigInvalid"} 1`) {
			err = errors.New("it does not")
		}
		return err
	})
	if err := h.hub.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "bad"}}); err != nil {
		t.Fatal(err)
	}
	h.eventually("the Spoke goes", func() error {
		err := h.get(h.hub, &v1alpha1.Spoke{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "bad"}})
		if err == nil {
			return errors.New("it is there")
		}
		return client.IgnoreNotFound(err)
	})
	if wrote := h.ways[h.second].wrote(); len(wrote) > 0 {
		t.Errorf("a replica that does not lead has written: %q", wrote)
	}
	if len(h.ways[h.first].wrote()) == 0 {
		t.Error("nothing is recorded of the leader: nothing was shown")
	}
	content, err := fetch(h.second.metrics + "/metrics")
	if err != nil || strings.Contains(content, probed) {
		t.Errorf("a replica that does not lead probes (%v)", err)
	}
	if content, err := fetch(h.first.metrics + "/metrics"); err != nil || !strings.Contains(content, probed) {
		t.Errorf("the leader does not probe, or the metric has another name (%v)", err)
	}
}

// spokeLog is what becomes of the Spokes.
type spokeLog struct {
	mu   sync.Mutex
	seen []string
}

func (h *handover) watchSpokes() *spokeLog {
	t := h.root
	w, err := h.hub.Watch(context.WithoutCancel(t.Context()), &v1alpha1.SpokeList{}, client.InNamespace(system))
	if err != nil {
		h.t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	l := &spokeLog{}
	go func() {
		for e := range w.ResultChan() {
			if s, is := e.Object.(*v1alpha1.Spoke); is {
				l.mu.Lock()
				l.seen = append(l.seen, shownAs(e.Type, s))
				l.mu.Unlock()
			}
		}
	}()
	return l
}

// shownAs is all of a Spoke that an admin would be alarmed to see change. The server is
// not: each of these hubs has a way of its own to its cluster.
func shownAs(event watch.EventType, s *v1alpha1.Spoke) string {
	ready := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionReady)
	return fmt.Sprint(event == watch.Deleted, " ", s.Name, " ", ready, " ", s.Status.ClusterUID)
}

func (l *spokeLog) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(l.seen)))
}

func handedOver(t *testing.T, h *handover) {
	log := h.watchSpokes()
	h.eventually("both are watched", func() error {
		if all := log.all(); len(all) != 2 {
			return fmt.Errorf("%q", all)
		}
		return nil
	})
	before := log.all()
	h.first.stop(t)
	if h.first.leadership.Leading() {
		t.Error("a hub that has ended leads")
	}
	h.eventually("the other leads", func() error {
		if !h.second.leadership.Leading() {
			return errors.New("it does not")
		}
		return nil
	})
	of := *h.world
	of.runningHub = h.second.runningHub
	var granted leaseReply
	if status := of.call("POST", "/v1/leases", `{}`, &granted); status != http.StatusCreated {
		t.Errorf("the new leader answers %d %+v to who wants a lease", status, granted)
	}
	h.eventually("it probes", func() error {
		content, err := fetch(h.second.metrics + "/metrics")
		if err == nil && !strings.Contains(content, probed) {
			err = errors.New("it does not")
		}
		return err
	})
	if after := log.all(); !slices.Equal(before, after) {
		t.Errorf("the Spokes did not stay as they were:\n%s\nthen\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	h.showsOf(h.second, true)
}

func tookOver(t *testing.T, h *handover) {
	h.moves(1)
	h.proxyShows(h.home, h.near, v1alpha1.PhaseUnhealthy)
	h.proxyShows(h.spokes["eu"], h.far, v1alpha1.PhaseUnhealthy)
	h.register("late", []byte("no kubeconfig"))
	h.spokeShows("late", v1alpha1.ConditionReady, "False/KubeconfigInvalid", "")
	h.first = h.start() // and follows, whatever it was before
	h.showsOf(h.first, false)
	if h.first.leadership.Leading() || !h.second.leadership.Leading() {
		t.Error("a replica that comes back takes the leadership away")
	}
}

// A leader that has lost its API server must have stopped when the other begins: two
// that grant would lease one proxy twice.
func TestALeaderThatIsCutOffEndsBeforeAnotherBegins(t *testing.T) {
	t.Parallel()
	r := newReplicated(t)
	target := must[*url.URL](t)(url.Parse(r.plane.Admin().Host))
	line := must[*relay.Relay](t)(relay.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"), func() (string, bool) { return target.Host, true }))
	t.Cleanup(line.Close)
	first := r.replica(func(cfg *rest.Config) { cfg.Host = "https://" + line.Addr().String() })
	r.eventually("the first leads", func() error {
		if !first.leadership.Leading() {
			return errors.New("it does not")
		}
		return nil
	})
	second := r.replica(func(*rest.Config) {})
	r.spokeShows("home", v1alpha1.ConditionReady, "True/Connected", "")

	line.Close()
	last := r.electionLease()
	leaseEnds := last.Spec.RenewTime.Add(time.Duration(*last.Spec.LeaseDurationSeconds) * time.Second)
	within(t, patience, "the first does not lead any more", func() error {
		if second.leadership.Holds() {
			t.Fatal("the second holds the Lease while the first leads")
		}
		asked := time.Now()
		if !first.leadership.Leading() {
			return nil
		}
		if !asked.Before(leaseEnds) {
			t.Fatalf("it leads at %s, and its Lease ended at %s", asked, leaseEnds)
		}
		return errors.New("it leads")
	})
	r.eventually("the second leads", func() error {
		leads := second.leadership.Leading()
		if first.leadership.Leading() || first.leadership.Holds() {
			t.Fatal("the first leads again")
		}
		if !leads {
			return errors.New("it does not")
		}
		return nil
	})
	if again := r.electionLease(); *again.Spec.HolderIdentity == *last.Spec.HolderIdentity {
		t.Error("the Lease is still the first's")
	}
	select {
	case err := <-first.done:
		if err == nil || !strings.Contains(err.Error(), "leadership was lost") || !strings.Contains(err.Error(), system+"/proxy-operator-hub") || strings.Contains(err.Error(), "\n") {
			t.Errorf("the hub that was cut off ended with %v", err)
		}
		first.done <- nil // which is as it should be
	case <-time.After(patience):
		t.Error("the hub that was cut off does not end")
	}
	p := externalAt("after", r.port)
	r.create(r.home, p)
	r.proxyShows(r.home, p, v1alpha1.PhaseReady)
}
