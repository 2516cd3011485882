package proxy

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
// fails the next one it is told to.
type provided struct {
	calls []string
	inst  *provider.Instance
	fail  map[string]error // by call
}

func (p *provided) call(op string) error {
	p.calls = append(p.calls, op)
	return p.fail[op]
}

func (p *provided) Create(_ context.Context, req provider.CreateRequest) (provider.Instance, error) {
	if err := p.call("create"); err != nil {
		return provider.Instance{}, err
	}
	p.inst = &provider.Instance{ID: "1", ProviderID: "id-1", Owner: req.Owner, SpecHash: req.SpecHash, State: provider.StateProvisioning}
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

func (p *provided) Delete(context.Context, provider.Ref, string) error {
	if err := p.call("delete"); err != nil {
		return err
	}
	p.inst.State = provider.StateDeleting
	return nil
}

func (p *provided) run() {
	p.inst.State, p.inst.IP = provider.StateRunning, "10.0.0.1"
}

// bench runs passes over one Proxy of a real API server.
type bench struct {
	t     *testing.T
	admin client.Client
	// writes are those that the passes made.
	writes []string
	// conflict makes the next write of that kind conflict, once.
	conflict map[string]bool
	provided *provided
	pass     pass
	key      client.ObjectKey
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
	b := &bench{t: t, admin: api.admin, provided: &provided{fail: map[string]error{}}, conflict: map[string]bool{}}
	p := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: "crawl", GenerateName: "p-"}, Spec: spec}
	if err := b.admin.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	b.key = client.ObjectKeyFromObject(p)
	written := func(kind string) error {
		if b.conflict[kind] {
			b.conflict[kind] = false
			return apierrors.NewConflict(schema.GroupResource{Resource: "proxies"}, p.Name, errors.New("somebody was faster"))
		}
		b.writes = append(b.writes, kind)
		return nil
	}
	watched := interceptor.NewClient(api.hub, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if err := written("object"); err != nil {
				return err
			}
			return c.Patch(ctx, o, patch, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			if err := written("status"); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, o, patch, opts...)
		},
	})
	b.pass = pass{spoke: "eu", owner: provider.Owner{Hub: "hub", ClusterUID: "cluster"}, client: watched, provider: b.provided, fleet: fleet.New(), image: "image"}
	return b
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

var managedSpec = v1alpha1.ProxySpec{Provider: v1alpha1.ProviderKubernetes}

func TestPass(t *testing.T) {
	api := newAPI(t)
	transient := func(n int) error { return fmt.Errorf("port %d: %w", n, provider.ErrTransient) }
	for _, tc := range []struct {
		name string
		run  func(*bench)
	}{
		{"a quiet Proxy is read and not written to", func(b *bench) {
			b.ready()
			for range 3 {
				b.mustOnce()
			}
			if len(b.writes) > 0 {
				b.t.Errorf("wrote %v", b.writes)
			}
		}},
		{"from apply to Ready takes four writes", func(b *bench) {
			b.mustOnce()
			b.provided.run()
			b.mustOnce()
			p := fleet.FromObject("eu", b.proxy())
			b.pass.fleet.SetVerdict(p.Key, p.Subject(), fleet.Verdict{Health: fleet.Healthy, Reason: "ProbeSucceeded"})
			b.mustOnce()
			if want := []string{"object", "status", "status", "status"}; !slices.Equal(b.writes, want) {
				b.t.Errorf("wrote %v, want %v", b.writes, want)
			}
		}},
		{"a provider's hiccup takes no running Proxy away", func(b *bench) {
			b.ready()
			b.provided.fail["get"] = transient(1)
			if _, err := b.once(); err == nil {
				b.t.Error("not tried again")
			}
			b.shows("Ready True Created")
		}},
		{"errors that differ in their text alone are written once", func(b *bench) {
			for n := range 4 {
				b.provided.fail["create"] = transient(n)
				if _, err := b.once(); err == nil {
					b.t.Error("not tried again")
				}
			}
			b.shows("Pending False TransientError")
			if want := []string{"object", "status"}; !slices.Equal(b.writes, want) {
				b.t.Errorf("wrote %v, want %v", b.writes, want)
			}
			b.provided.fail["create"] = nil
			b.mustOnce()
			b.shows("Provisioning False Provisioning")
		}},
		{"an instance that vanished and cannot be made again is not called provisioned", func(b *bench) {
			b.ready()
			b.provided.inst, b.provided.fail["create"] = nil, transient(1)
			_, _ = b.once()
			b.shows("Pending False TransientError")
			if p := b.proxy(); p.Status.ProviderID != "" || p.Status.Endpoint != "" {
				b.t.Errorf("it is still shown at %q", p.Status.Endpoint)
			}
		}},
		{"what will never work is Failed and not hammered", func(b *bench) {
			b.provided.fail["create"] = fmt.Errorf("no such field: %w", provider.ErrPermanent)
			if res := b.mustOnce(); res.RequeueAfter != 0 {
				b.t.Errorf("again after %s", res.RequeueAfter)
			}
			b.shows("Failed False PermanentError")
		}},
		{"an instance made by a pass that was cut short is found at the next", func(b *bench) {
			b.provided.fail["create"] = provider.ErrExists
			if res := b.mustOnce(); res.RequeueAfter == 0 {
				b.t.Error("not looked at again")
			}
		}},
		{"an instance that cannot be deleted is withdrawn all the same and tried again", func(b *bench) {
			b.ready()
			b.edit(func(p *v1alpha1.Proxy) { p.Spec.Port = 8888 })
			b.provided.fail["delete"] = transient(1)
			if _, err := b.once(); err == nil {
				b.t.Error("not tried again")
			}
			b.shows("Replacing False Replacing")
			if b.pass.fleet.Get(fleet.Key{Cluster: "eu", Namespace: "crawl", Name: b.key.Name}).Offerable() {
				b.t.Error("still offered")
			}
		}},
		{"a replacement that is taken back is probed again and serves on", func(b *bench) {
			b.ready()
			b.edit(func(p *v1alpha1.Proxy) { p.Spec.Port = 8888 })
			b.provided.fail["delete"] = transient(1)
			_, _ = b.once()
			b.edit(func(p *v1alpha1.Proxy) { p.Spec.Port = 0 })
			b.mustOnce()
			if p := b.pass.fleet.Get(fleet.Key{Cluster: "eu", Namespace: "crawl", Name: b.key.Name}); !p.Probeable() || p.Offerable() {
				b.t.Errorf("probeable %v, offerable %v", p.Probeable(), p.Offerable())
			}
		}},
		{"conflicts at every first write lead to the same end", func(b *bench) {
			for _, kind := range []string{"object", "status"} {
				b.conflict[kind] = true
				if res := b.mustOnce(); res.RequeueAfter == 0 {
					b.t.Errorf("not tried again after a conflict at %s", kind)
				}
			}
			b.ready()
			if n := strings.Count(strings.Join(b.provided.calls, " "), "create"); n != 1 {
				b.t.Errorf("%d creates", n)
			}
			b.delete()
			b.mustOnce()
			b.provided.inst = nil
			b.conflict["object"] = true
			if res := b.mustOnce(); res.RequeueAfter == 0 {
				b.t.Error("the finalizer is not tried again after a conflict")
			}
			b.mustOnce()
			b.gone()
		}},
		{"a deletion waits until the instance is gone", func(b *bench) {
			b.ready()
			b.delete()
			b.provided.fail["delete"] = transient(1)
			if _, err := b.once(); err == nil {
				b.t.Error("not tried again")
			}
			b.provided.fail["delete"] = nil
			b.mustOnce()
			b.mustOnce()
			b.shows("Deleting False Deleting")
			b.provided.inst = nil
			b.mustOnce()
			b.gone()
		}},
		{"another hub's Proxy is not touched", func(b *bench) {
			b.edit(func(p *v1alpha1.Proxy) { p.Annotations = map[string]string{v1alpha1.AnnotationHub: "another"} })
			b.mustOnce()
			if len(b.writes)+len(b.provided.calls) > 0 {
				b.t.Errorf("wrote %v, called %v", b.writes, b.provided.calls)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(newBench(t, api, managedSpec)) })
	}
	t.Run("an External Proxy held by somebody's finalizer shows that it goes", func(t *testing.T) {
		b := newBench(t, api, v1alpha1.ProxySpec{Mode: v1alpha1.ModeExternal, Endpoint: &v1alpha1.Endpoint{Host: "203.0.113.7", Port: 8080}})
		b.edit(func(p *v1alpha1.Proxy) { p.Finalizers = []string{"example.com/hold"} })
		b.mustOnce()
		b.shows("Probing True ExternalEndpoint")
		b.delete()
		b.mustOnce()
		b.shows("Deleting True ExternalEndpoint")
		if len(b.provided.calls) > 0 {
			t.Errorf("asked a provider: %v", b.provided.calls)
		}
	})
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
