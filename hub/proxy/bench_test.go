package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/provider"
	"github.com/proxyfleet/proxy-operator/test/controlplane"
)

// provided is a provider with one instance at most. It records its calls and
// fails those it is told to.
type provided struct {
	calls []string
	inst  *provider.Instance
	fail  map[string]error // by call
	// request is the last that was asked for.
	request provider.CreateRequest
}

func (p *provided) call(op string) error {
	p.calls = append(p.calls, op)
	return p.fail[op]
}

func (p *provided) Create(_ context.Context, req provider.CreateRequest) (provider.Instance, error) {
	if err := p.call("create"); err != nil {
		return provider.Instance{}, err
	}
	p.request = req
	id := fmt.Sprint(len(p.calls))
	p.inst = &provider.Instance{ID: id, ProviderID: "id-" + id, Owner: req.Owner, SpecHash: req.SpecHash, State: provider.StateProvisioning}
	return *p.inst, nil
}

func (p *provided) Get(context.Context, provider.Ref) (provider.Instance, error) {
	if err := p.call("get"); err != nil {
		return provider.Instance{}, err
	}
	if p.inst == nil {
		return provider.Instance{}, provider.ErrNotFound
	}
	return *p.inst, nil
}

func (p *provided) Files(_ context.Context, _ provider.Ref, hash string) (map[string][]byte, error) {
	if p.request.SpecHash != hash {
		return nil, p.call("files")
	}
	return p.request.Files, p.call("files")
}

func (p *provided) Delete(_ context.Context, _ provider.Ref, _ string, forced bool) error {
	op := "delete"
	if forced {
		op = "force"
	}
	if err := p.call(op); err != nil {
		return err
	}
	p.inst.State = provider.StateDeleting
	if forced {
		p.inst = nil
	}
	return nil
}

func (p *provided) Repair(context.Context, provider.CreateRequest) error {
	if err := p.call("repair"); err != nil {
		return err
	}
	p.inst.Lacks = ""
	return nil
}

func (p *provided) Clear(context.Context, provider.Ref, provider.Owner) error { return p.call("clear") }

func (p *provided) Abandon(context.Context, provider.Ref, provider.Owner, string) error {
	return p.call("abandon")
}

func (p *provided) ListByTag(context.Context, string) (provider.Listing, error) {
	return provider.Listing{}, p.call("list")
}

func (p *provided) run() {
	p.inst.State, p.inst.Host = provider.StateRunning, "10.0.0.1"
}

// creates counts the calls of Create.
func (p *provided) creates() (n int) {
	for _, call := range p.calls {
		if call == "create" {
			n++
		}
	}
	return n
}

// bench runs passes over one Proxy of a real API server.
type bench struct {
	t     *testing.T
	admin client.Client
	// writes are those that the passes made.
	writes []string
	// meddle is how often a user is faster at each write, and meddled how often
	// one was. edited is what one does once.
	meddle, meddled int
	edited          func(*v1alpha1.Proxy)
	provided        *provided
	events          []string
	pass            pass
	now             time.Time
	key             client.ObjectKey
}

// Eventf records an Event as "type reason: note".
func (b *bench) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	b.events = append(b.events, kind+" "+reason+": "+fmt.Sprintf(note, args...))
}

// spokeAPI is a real API server, as its admin and as the hub sees it.
type spokeAPI struct {
	admin client.Client
	hub   client.WithWatch // has the generated roles and nothing more
}

func newAPI(t *testing.T) spokeAPI {
	t.Helper()
	plane := controlplane.StartForTest(t, 1)[0]
	config := filepath.Join("..", "..", "config")
	if err := plane.Apply(t.Context(), filepath.Join(config, "crd", "crawl.proxyfleet.dev_proxies.yaml"), filepath.Join(config, "rbac", "spoke")); err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	admin, err := client.New(plane.Admin(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := plane.ServiceAccount(t.Context(), "proxy-operator-system", "proxy-operator-hub")
	if err != nil {
		t.Fatal(err)
	}
	hub, err := client.NewWithWatch(cfg, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "crawl"}}); err != nil {
		t.Fatal(err)
	}
	return spokeAPI{admin, hub}
}

func newBench(t *testing.T, api spokeAPI, spec v1alpha1.ProxySpec) *bench {
	t.Helper()
	b := &bench{t: t, admin: api.admin, now: noon, provided: &provided{fail: map[string]error{}}}
	p := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: "crawl", GenerateName: "p-"}, Spec: spec}
	if err := b.admin.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	b.key = client.ObjectKeyFromObject(p)
	tries := 0
	before := func() {
		if tries++; tries <= b.meddle {
			b.meddled++
			b.edit(func(p *v1alpha1.Proxy) {
				times := map[string]string{"example.com/times": fmt.Sprint(b.meddled)}
				p.Labels = times
				if p.Annotations == nil {
					p.Annotations = map[string]string{}
				}
				maps.Copy(p.Annotations, times)
			})
		}
		if edited := b.edited; edited != nil {
			b.edited = nil
			b.edit(edited)
		}
	}
	after := func(kind string, err error) error {
		if err == nil {
			tries = 0
			b.writes = append(b.writes, kind)
		}
		return err
	}
	watched := interceptor.NewClient(api.hub, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			before()
			return after("object", c.Patch(ctx, o, patch, opts...))
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			before()
			return after("status", c.SubResource(sub).Patch(ctx, o, patch, opts...))
		},
	})
	everyProxy := routableFleet()
	budget := newBudget(Limit{})
	everyProxy.Follow(budget.observe)
	b.pass = pass{
		spoke: spoke{name: "eu", clusterUID: "cluster", client: watched, direct: api.hub, secrets: newSecrets(newReferences()).of("eu", "cluster", api.hub, api.hub), provider: b.provided, recorder: b},
		hubID: "hub", providerConfig: "image", fleet: everyProxy, budget: budget, pauses: newPauses(), fresh: newFresh(), now: func() time.Time { return b.now },
	}
	return b
}

// routableFleet is one without Proxies that dials pods of spoke eu.
func routableFleet() *fleet.Fleet {
	f := fleet.New(fleet.Options{})
	f.SetRoutable("eu", true)
	return f
}

// once runs one pass as the controller does and shows the result to the fleet
// as the informer does.
func (b *bench) once() (ctrl.Result, error) {
	b.t.Helper()
	var p v1alpha1.Proxy
	if err := b.admin.Get(b.t.Context(), b.key, &p); err != nil {
		b.t.Fatal(err)
	}
	s := b.pass
	res, err := s.run(b.t.Context(), &p)
	if b.admin.Get(b.t.Context(), b.key, &p) == nil {
		b.pass.fleet.Upsert(fleet.FromObject("eu", &p))
	}
	return res, err
}

func (b *bench) proxy() *v1alpha1.Proxy {
	b.t.Helper()
	var p v1alpha1.Proxy
	if err := b.admin.Get(b.t.Context(), b.key, &p); err != nil {
		b.t.Fatal(err)
	}
	return &p
}

// ready brings the Proxy to Ready.
func (b *bench) ready() {
	b.t.Helper()
	b.mustOnce()
	b.provided.run()
	b.mustOnce()
	p := b.proxy()
	seen := fleet.FromObject("eu", p)
	b.pass.fleet.SetVerdict(seen.Key, seen.Subject(), fleet.Verdict{Health: fleet.Healthy, Reason: v1alpha1.ReasonProbeSucceeded})
	b.mustOnce()
	if p := b.proxy(); p.Status.Phase != v1alpha1.PhaseReady {
		b.t.Fatalf("not Ready: %+v", p.Status)
	}
	b.writes = nil
}

func (b *bench) mustOnce() ctrl.Result {
	b.t.Helper()
	res, err := b.once()
	if err != nil {
		b.t.Fatal(err)
	}
	return res
}

func (b *bench) shows(want string) {
	b.t.Helper()
	p := b.proxy()
	var got []string
	for _, c := range p.Status.Conditions {
		if c.Type == v1alpha1.ConditionProvisioned {
			got = append(got, string(p.Status.Phase), string(c.Status), c.Reason)
		}
	}
	if s := strings.Join(got, " "); s != want {
		b.t.Errorf("shows %q, want %q: %+v", s, want, p.Status.Conditions)
	}
}

func (b *bench) edit(change func(*v1alpha1.Proxy)) {
	b.t.Helper()
	p := b.proxy()
	change(p)
	if err := b.admin.Update(b.t.Context(), p); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) delete() {
	b.t.Helper()
	if err := b.admin.Delete(b.t.Context(), b.proxy()); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) gone() {
	b.t.Helper()
	if err := b.admin.Get(b.t.Context(), b.key, &v1alpha1.Proxy{}); !apierrors.IsNotFound(err) {
		b.t.Errorf("still there: %v", err)
	}
}

// secret makes or changes a Secret of the Proxy's namespace.
func (b *bench) secret(name string, data map[string]string) {
	b.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "crawl", Name: name}, StringData: data}
	if err := b.admin.Delete(b.t.Context(), s.DeepCopy()); client.IgnoreNotFound(err) != nil {
		b.t.Fatal(err)
	}
	if err := b.admin.Create(b.t.Context(), s); err != nil {
		b.t.Fatal(err)
	}
}

// says fails unless condition Provisioned's message contains every part.
func (b *bench) says(parts ...string) {
	b.t.Helper()
	c := find(&b.proxy().Status, v1alpha1.ConditionProvisioned)
	for _, part := range parts {
		if !strings.Contains(c.Message, part) {
			b.t.Errorf("says %q, without %q", c.Message, part)
		}
	}
}

// told fails unless exactly these Events were written, by their beginnings.
func (b *bench) told(want ...string) {
	b.t.Helper()
	if !slices.EqualFunc(b.events, want, strings.HasPrefix) {
		b.t.Errorf("Events %q, want %q", b.events, want)
	}
	b.events = nil
}
