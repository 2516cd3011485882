package registry

import (
	"compress/gzip"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/testkit/apiserver"
)

func TestEachFaultHasItsOwnReasonOrMessageAndDelaysNoGoodSpoke(t *testing.T) {
	closed := httptest.NewTLSServer(nil)
	closed.Close()
	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts and never answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mute.Close() })
	standIn := apiserver.Start(t)
	with := func(name, path string, a apiserver.Answer) []byte {
		c := standIn.Cluster(name)
		c.Answer(path, a)
		return c.Kubeconfig(theToken)
	}
	oldCRD, noPods, muteWatches := standIn.Cluster("old-crd"), standIn.Cluster("no-pods"), standIn.Cluster("mute-watches")
	oldCRD.SetCRD("0", true)
	noPods.Deny("create", "pods")
	noPods.Deny("patch", "proxies/status")
	muteWatches.MuteWatches(true)
	muteSecrets := standIn.Cluster("mute-secrets")
	muteSecrets.AnswerWatches(apiserver.SecretsPath, apiserver.Answer{Hang: true})
	// Gateways that refuse a request like to show it.
	echo := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "blocked: "+r.Header.Get("Authorization"), http.StatusForbidden)
	}))
	t.Cleanup(echo.Close)
	var led atomic.Int32 // requests that a redirect led to
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { led.Add(1) }))
	t.Cleanup(elsewhere.Close)
	redirect := httptest.NewTLSServer(http.RedirectHandler(elsewhere.URL, http.StatusFound))
	t.Cleanup(redirect.Close)
	endless := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}))
	t.Cleanup(endless.Close)
	bomb := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		for range 1000 {
			if _, err := z.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
		_ = z.Close()
	}))
	t.Cleanup(bomb.Close)
	r, e := started(t)
	bad := []struct {
		name            string
		kubeconfig      []byte
		reason, message string
	}{
		{"closed", kubeconfigOf(t, closed, true), v1alpha1.ReasonUnreachable, "refused"},
		{"mute", kubeconfigTo(t, "https://"+mute.Addr().String(), nil), v1alpha1.ReasonUnreachable, "in time"},
		{"hangs", with("hangs", apiserver.VersionPath, apiserver.Answer{Hang: true}), v1alpha1.ReasonUnreachable, "in time"},
		{"stranger", kubeconfigTo(t, standIn.Cluster("stranger").URL(), nil), v1alpha1.ReasonUnreachable, "certificate"},
		{"not-kubernetes", with("not-kubernetes", apiserver.VersionPath, apiserver.Answer{Body: "<html>hello</html>"}), v1alpha1.ReasonUnreachable, "does not answer as a Kubernetes API server"},
		{"expired", with("expired", apiserver.VersionPath, apiserver.Status(401, "Unauthorized", "Unauthorized")), v1alpha1.ReasonUnauthorized, "credential"},
		{"no-identity", with("no-identity", apiserver.KubeSystemPath, apiserver.Status(403, "Forbidden", `namespaces "kube-system" is forbidden: cannot get`)), v1alpha1.ReasonForbidden, "get namespaces kube-system"},
		{"no-crd", with("no-crd", apiserver.CRDPath, apiserver.Status(404, "NotFound", "not found")), v1alpha1.ReasonCRDMissing, "config/crd"},
		{"old-crd", oldCRD.Kubeconfig(theToken), v1alpha1.ReasonCRDOutdated, "schema version 0"},
		{"no-pods", noPods.Kubeconfig(theToken), v1alpha1.ReasonForbidden, "create pods; patch proxies.crawl.proxyfleet.dev/status"},
		{"no-reviews", with("no-reviews", apiserver.AccessReviewsPath, apiserver.Status(403, "Forbidden", "selfsubjectaccessreviews is forbidden")), v1alpha1.ReasonForbidden, "selfsubjectaccessreviews"},
		{"nobody", with("nobody", apiserver.KubeSystemPath, apiserver.Answer{Body: `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1"}`}), v1alpha1.ReasonUnreachable, "does not answer as a Kubernetes API server"},
		{"parrot", with("parrot", apiserver.KubeSystemPath, apiserver.Answer{Body: `{"you-are":"` + theToken + `"}`}), v1alpha1.ReasonUnreachable, "does not answer as a Kubernetes API server"},
		{"no-list", with("no-list", apiserver.ProxiesPath, apiserver.Status(403, "Forbidden", "proxies is forbidden: cannot list")), v1alpha1.ReasonForbidden, "list proxies.crawl.proxyfleet.dev"},
		{"no-list-of-pods", with("no-list-of-pods", apiserver.PodsPath, apiserver.Status(403, "Forbidden", "pods is forbidden")), v1alpha1.ReasonForbidden, "list pods"},
		{"no-list-of-secrets", with("no-list-of-secrets", apiserver.SecretsPath, apiserver.Status(403, "Forbidden", "secrets is forbidden")), v1alpha1.ReasonForbidden, "list secrets"},
		// Some tunnels hold back the bookmark that the informer waits for.
		{"mute-watches", muteWatches.Kubeconfig(theToken), v1alpha1.ReasonUnreachable, "hold back watches"},
		{"mute-secrets", muteSecrets.Kubeconfig(theToken), v1alpha1.ReasonUnreachable, "first list of Secrets did not end"},
		{"echo", kubeconfigOf(t, echo, true), v1alpha1.ReasonForbidden, "not said as a Kubernetes API server would"},
		{"traitor", with("traitor", apiserver.VersionPath, apiserver.Status(403, "Forbidden", "you are the-token")), v1alpha1.ReasonForbidden, "not said as"},
		{"redirect", kubeconfigOf(t, redirect, true), v1alpha1.ReasonUnreachable, "redirect"},
		{"endless", kubeconfigOf(t, endless, true), v1alpha1.ReasonUnreachable, "longer than"},
		{"bomb", kubeconfigOf(t, bomb, true), v1alpha1.ReasonUnreachable, "longer than"},
		{"chatterbox", with("chatterbox", apiserver.VersionPath, apiserver.Status(403, "Forbidden", strings.Repeat("because ", 10_000))), v1alpha1.ReasonForbidden, ""},
		{"garbage", []byte("nonsense"), v1alpha1.ReasonKubeconfigInvalid, "not a kubeconfig"},
	}
	for _, b := range bad {
		put(r, b.name, b.kubeconfig)
	}
	began := time.Now()
	goodOne := put(r, "good", standIn.Cluster("good").Kubeconfig(theToken))
	st := until(t, goodOne, "connected", reason(v1alpha1.ReasonConnected))
	t.Logf("the good spoke is connected after %s", time.Since(began).Round(time.Millisecond))
	if !st.Ready || st.ClusterUID != "uid-good" || st.Version != "v1.36.3" {
		t.Errorf("state %+v", st)
	}
	for _, b := range bad {
		s := r.spokes[b.name]
		// A machine that is busy may make of any of them one that does not answer, at first.
		st := until(t, s, b.name+": "+b.message, func(st State) bool { return st.Reason == b.reason && strings.Contains(st.Message, b.message) })
		if st.Ready {
			t.Errorf("%s: %+v", b.name, st)
		}
		if strings.Contains(st.Message, theToken) {
			t.Errorf("%s shows the token: %s", b.name, st.Message)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.names) != 1 || e.names[0] != "good" {
		t.Errorf("engaged %v, want the good one alone", e.names)
	}
	if led.Load() != 0 {
		t.Errorf("a redirect was followed %d times", led.Load())
	}
	if counts := r.Reasons(); counts[v1alpha1.ReasonConnected] != 1 || counts[v1alpha1.ReasonUnreachable] != 12 {
		t.Errorf("counted %v", counts)
	}
}

// hanging is the kubeconfig of a server that takes requests and answers none.
func hanging(t *testing.T) []byte {
	t.Helper()
	c := apiserver.Start(t).Cluster("hangs")
	c.Answer(apiserver.VersionPath, apiserver.Answer{Hang: true})
	return c.Kubeconfig(theToken)
}

func TestAKubeconfigThatIsNoLongerInTheSecretIsNotTaken(t *testing.T) {
	r, _ := started(t)
	s := put(r, "x", apiserver.Start(t).Cluster("good").Kubeconfig(theToken))
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
	serving := s.State().Server
	// Offered, not there yet, and replaced by a typo before it comes up.
	late := httptest.NewUnstartedServer(nil)
	t.Cleanup(late.Close)
	put(r, "x", kubeconfigTo(t, "https://"+late.Listener.Addr().String(), nil))
	until(t, s, "refused", func(st State) bool { return st.CredentialReason == v1alpha1.ReasonUnreachable })
	put(r, "x", []byte("typo"))
	st := until(t, s, "refused for the typo", func(st State) bool { return st.CredentialReason == v1alpha1.ReasonKubeconfigInvalid })
	if !st.Ready || st.Server != serving {
		t.Errorf("the one before it does not serve on: %+v", st)
	}
	if s.wanted() != nil {
		t.Error("the spoke still wants the kubeconfig that is no longer there")
	}
}

func TestAGoodKubeconfigIsNeverTakenForARefusedOne(t *testing.T) {
	r := New(Options{Fleet: fleet.New(fleet.Options{AllowLocal: true}), Recorder: forgetful{}, Log: logr.Discard()})
	raw := kubeconfigTo(t, "https://127.0.0.1:1", nil)
	for range 200 {
		s := newSpoke("x", registration{}, r)
		offered := make(chan struct{})
		go func() { s.offer(registration{kubeconfig: raw}); close(offered) }()
		for waiting := true; waiting; {
			select {
			case <-offered:
				waiting = false
			default:
			}
			if s.isSettled() {
				t.Fatal("settled before it has been connected or refused")
			}
		}
	}
}

func TestAStartingHubWaitsForTheSpokesItKnowsOf(t *testing.T) {
	r, _ := started(t)
	r.expected = nil
	waiting := func() bool { return !r.Settled() }
	if !waiting() {
		t.Error("settled before the Secrets were listed")
	}
	r.expect([]string{"good", "garbage", "hangs"})
	if !waiting() {
		t.Error("settled although none has been looked at")
	}
	until(t, put(r, "good", apiserver.Start(t).Cluster("good").Kubeconfig(theToken)), "connected", reason(v1alpha1.ReasonConnected))
	put(r, "garbage", []byte("nonsense"))
	put(r, "hangs", hanging(t))
	if !waiting() {
		t.Error("settled although one has neither been connected nor refused")
	}
	r.deregister("hangs")
	if waiting() {
		t.Error("waits for a spoke that was deregistered")
	}
}

func TestARemovedSpokeIsForgottenEvenWhileItConnects(t *testing.T) {
	r, e := started(t)
	put(r, "hangs", hanging(t))
	s := put(r, "good", apiserver.Start(t).Cluster("good").Kubeconfig(theToken))
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
	began := time.Now()
	r.deregister("hangs")
	r.deregister("good")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("removal took %s", took)
	}
	if _, err := r.Get(t.Context(), "good"); !errors.Is(err, multicluster.ErrClusterNotFound) {
		t.Errorf("still engaged: %v", err)
	}
	e.mu.Lock()
	ctx := e.ctxs[0]
	e.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-time.After(30 * time.Second):
		t.Error("its controllers run on")
	}
}

func TestAFailedEngagementIsTriedAgain(t *testing.T) {
	r, e := started(t)
	e.mu.Lock()
	e.fail = errors.New("no room")
	e.mu.Unlock()
	s := put(r, "good", apiserver.Start(t).Cluster("good").Kubeconfig(theToken))
	until(t, s, "refused", func(st State) bool { return strings.Contains(st.Message, "no room") })
	e.mu.Lock()
	e.fail = nil
	e.mu.Unlock()
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
}

func TestOnlyTheConnectionThatIsPresentFeedsTheFleet(t *testing.T) {
	f := fleet.New(fleet.Options{AllowLocal: true})
	old, present := &connection{}, &connection{}
	g := gate{current: present}
	hear := func(from *connection, name string) {
		g.pass(from, func() { f.Upsert(fleet.Proxy{Key: fleet.Key{Cluster: "eu", Name: name}, UID: name}) })
	}
	hear(present, "a")
	hear(old, "late")
	if all := f.All(); len(all) != 1 || all[0].Name != "a" {
		t.Errorf("the fleet has %d Proxies, want the present connection's alone", len(all))
	}
	g.shut(func() { f.Retain("eu", nil) })
	hear(present, "later")
	if n := len(f.All()); n != 0 {
		t.Errorf("%d Proxies came back after the end", n)
	}
}
