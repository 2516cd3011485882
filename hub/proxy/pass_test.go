package proxy

import (
	"fmt"
	"slices"
	"testing"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// scenario is one story of one Proxy.
type scenario struct {
	name string
	run  func(*bench)
}

func transient(n int) error { return fmt.Errorf("port %d: %w", n, provider.ErrTransient) }

var managedSpec = v1alpha1.ProxySpec{Provider: v1alpha1.ProviderKubernetes}

var lives = []scenario{
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
		for range 3 {
			if res := b.mustOnce(); res.RequeueAfter != 0 {
				b.t.Errorf("again after %s", res.RequeueAfter)
			}
		}
		b.shows("Failed False PermanentError")
		b.says("no such field", v1alpha1.AnnotationRetry)
		if n := b.provided.creates(); n != 1 {
			b.t.Errorf("asked for %d times", n)
		}
		b.told("Warning PermanentError: ")
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
		b.meddle = 1
		b.ready()
		if n := b.provided.creates(); n != 1 {
			b.t.Errorf("%d creates", n)
		}
		b.delete()
		b.mustOnce()
		b.provided.inst = nil
		b.mustOnce()
		b.gone()
	}},
	{"a user who changes labels and annotations all the time loses no write and holds nothing up", func(b *bench) {
		b.meddle = attempts - 1
		b.ready()
		p := b.proxy()
		if p.Annotations["example.com/times"] != fmt.Sprint(b.meddled) || p.Labels["example.com/times"] != fmt.Sprint(b.meddled) || b.meddled < 2*4 { // each of four writes, more than once
			b.t.Errorf("the user wrote %d times, and there is %v, %v", b.meddled, p.Annotations, p.Labels)
		}
		if p.Annotations[v1alpha1.AnnotationHub] != "hub" || p.Annotations[v1alpha1.AnnotationSpecHash] == "" {
			b.t.Errorf("annotations %v", p.Annotations)
		}
	}},
	{"a user who is faster every time is left to the next pass", func(b *bench) {
		b.meddle = attempts
		if res := b.mustOnce(); res.RequeueAfter == 0 || res.RequeueAfter > 2*retrySoon {
			b.t.Errorf("again after %s", res.RequeueAfter)
		}
		if len(b.provided.calls) > 0 {
			b.t.Errorf("called %v for a Proxy that is not claimed", b.provided.calls)
		}
		b.meddle = 0
		b.ready()
	}},
	{"a spec that is edited under a pass is looked at anew, not written over", func(b *bench) {
		b.edited = func(p *v1alpha1.Proxy) { p.Spec.Port = 8888 }
		if res := b.mustOnce(); res.RequeueAfter == 0 {
			b.t.Error("not tried again")
		}
		if len(b.provided.calls) > 0 {
			b.t.Error("asked for an instance of a spec that is not any more")
		}
		b.ready()
		if b.provided.request.Spec.Port != 8888 {
			b.t.Error("the instance is another's")
		}
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
}

func TestPass(t *testing.T) {
	api := newAPI(t)
	for _, group := range [][]scenario{lives, latches, contents, reached, endings} {
		for _, tc := range group {
			t.Run(tc.name, func(t *testing.T) { tc.run(newBench(t, api, managedSpec)) })
		}
	}
	t.Run("what an External Proxy lacks is told in full", func(t *testing.T) {
		b := newBench(t, api, v1alpha1.ProxySpec{
			Mode: v1alpha1.ModeExternal, Endpoint: &v1alpha1.Endpoint{Host: "203.0.113.7", Port: 8080}, Protocol: v1alpha1.ProtocolHTTPS,
			AuthSecretRef: &v1alpha1.SecretReference{Name: "no-auth"}, TLS: &v1alpha1.TLS{CASecretRef: &v1alpha1.CASecretReference{Name: "no-ca"}},
		})
		b.mustOnce()
		b.mustOnce() // the fleet has seen it
		b.shows("Probing True ExternalEndpoint")
		b.says("there is no Secret no-auth", "there is no Secret no-ca")
		b.isHealthy("Unknown/Probing: not probed", "there is no Secret no-auth")
	})
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
