package proxy

import (
	"fmt"
	"strings"
	"time"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// failedForGood brings the Proxy to Failed, with the provider mended behind its back.
func (b *bench) failedForGood() {
	b.t.Helper()
	b.provided.fail["create"] = fmt.Errorf("no such field: %w", provider.ErrPermanent)
	b.mustOnce()
	b.shows("Failed False PermanentError")
	b.provided.fail["create"] = nil
	b.mustOnce()
	if n := b.provided.creates(); n != 1 {
		b.t.Fatalf("asked for %d times although nothing has changed", n)
	}
}

func (b *bench) tried(what string) {
	b.t.Helper()
	b.mustOnce()
	if n := b.provided.creates(); n != 2 {
		b.t.Errorf("%s: asked for %d times, want 2", what, n)
	}
	b.shows("Provisioning False Provisioning")
	if p := b.proxy(); p.Status.FailedInputs != "" {
		b.t.Errorf("%s: still remembers %q", what, p.Status.FailedInputs)
	}
}

func (b *bench) annotate(key, value string) {
	b.t.Helper()
	b.edit(func(p *v1alpha1.Proxy) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[key] = value
	})
}

// What was tried in vain is not tried again until something that it depends on
// has changed.
var latches = []scenario{
	{"an edited spec releases the latch", func(b *bench) {
		b.failedForGood()
		b.edit(func(p *v1alpha1.Proxy) { p.Spec.Port = 8888 })
		b.tried("spec")
	}},
	{"repaired cloud-init releases the latch", func(b *bench) {
		b.cloudInit("latch-init")
		b.secret("latch-init", map[string]string{"user-data": "bad"})
		b.failedForGood()
		b.secret("latch-init", map[string]string{"user-data": "good"})
		b.tried("cloud-init")
	}},
	{"cloud-init repaired while no hub runs releases the latch", func(b *bench) {
		b.cloudInit("crash-init")
		b.secret("crash-init", map[string]string{"user-data": "bad"})
		b.failedForGood()
		b.secret("crash-init", map[string]string{"user-data": "good"})
		// A hub that claims, and is gone before it asks for the instance.
		b.provided.fail["get"] = transient(1)
		_, _ = b.once()
		b.provided.fail["get"] = nil
		b.tried("cloud-init")
	}},
	{"the provider's configuration releases the latch", func(b *bench) {
		b.failedForGood()
		b.pass.providerConfig = "another image"
		b.tried("configuration")
	}},
	{"annotation retry releases the latch, each value once", func(b *bench) {
		b.failedForGood()
		b.provided.fail["create"] = fmt.Errorf("no such field: %w", provider.ErrPermanent)
		b.annotate(v1alpha1.AnnotationRetry, "1")
		for range 3 {
			b.mustOnce()
		}
		b.shows("Failed False PermanentError")
		if n := b.provided.creates(); n != 2 {
			b.t.Errorf("one new value, asked for %d times", n)
		}
		b.provided.fail["create"] = nil
		b.annotate(v1alpha1.AnnotationRetry, "2")
		b.mustOnce()
		b.shows("Provisioning False Provisioning")
	}},
	{"a latch does not take over what was in the way meanwhile", func(b *bench) {
		b.failedForGood()
		b.provided.inst = &provider.Instance{ID: "x", ProviderID: "x", State: provider.StateRunning} // a stranger's
		b.mustOnce()
		b.says("an instance of this name exists already")
		b.provided.inst = nil
		b.tried("the stranger is gone")
	}},
	{"a latch outlives the hub", func(b *bench) {
		b.failedForGood()
		b.restart()
		b.mustOnce()
		if n := b.provided.creates(); n != 1 {
			b.t.Errorf("asked for %d times", n)
		}
	}},
	{"labels and annotations of others release nothing", func(b *bench) {
		b.failedForGood()
		b.annotate("example.com/note", "x")
		b.mustOnce()
		if n := b.provided.creates(); n != 1 {
			b.t.Errorf("asked for %d times", n)
		}
	}},
	{"an exceeded quota waits five minutes, whatever wakes the Proxy", func(b *bench) {
		b.provided.fail["create"] = fmt.Errorf("pods=10: %w", provider.ErrQuotaExceeded)
		res := b.mustOnce()
		if res.RequeueAfter < 4*time.Minute || res.RequeueAfter > 6*time.Minute {
			b.t.Errorf("again after %s", res.RequeueAfter)
		}
		b.shows("Pending False QuotaExceeded")
		b.says("pods=10")
		b.told("Warning QuotaExceeded: ")
		b.provided.fail["create"] = nil
		b.annotate("example.com/note", "x")
		b.now = b.now.Add(3 * time.Minute)
		if left := b.mustOnce().RequeueAfter; left <= 0 || left > 4*time.Minute {
			b.t.Errorf("again after %s", left)
		}
		if n := b.provided.creates(); n != 1 {
			b.t.Errorf("asked for %d times within the wait", n)
		}
		b.now = b.now.Add(4 * time.Minute)
		b.mustOnce()
		b.shows("Provisioning False Provisioning")
	}},
	{"a smaller spec does not wait for a quota", func(b *bench) {
		b.provided.fail["create"] = fmt.Errorf("pods=10: %w", provider.ErrQuotaExceeded)
		b.mustOnce()
		b.provided.fail["create"] = nil
		b.edit(func(p *v1alpha1.Proxy) { p.Spec.Port = 8888 })
		b.mustOnce()
		b.shows("Provisioning False Provisioning")
	}},
	{"a right that the hub lacks is asked for slowly, and takes no running Proxy away", func(b *bench) {
		b.provided.fail["create"] = fmt.Errorf("rbac: %w", provider.ErrLasting)
		if res := b.mustOnce(); res.RequeueAfter < 48*time.Second {
			b.t.Errorf("again after %s", res.RequeueAfter)
		}
		b.shows("Pending False TransientError")
		b.provided.fail["create"] = nil
		b.ready()
		b.provided.fail["get"] = fmt.Errorf("rbac: %w", provider.ErrLasting)
		if res := b.mustOnce(); res.RequeueAfter < 48*time.Second {
			b.t.Errorf("again after %s", res.RequeueAfter)
		}
		b.shows("Ready True Created")
	}},
	{"an instance of a newer hub is left alone, and that is told once", func(b *bench) {
		b.ready()
		b.events = nil
		b.provided.inst.SpecHash = "v9-00000000000000000000000000000000"
		b.edit(func(p *v1alpha1.Proxy) { p.Spec.Port = 8888 })
		for range 3 {
			b.mustOnce()
		}
		b.shows("Ready True Created")
		b.told("Warning NewerInstance: ")
		if calls := strings.Join(b.provided.calls, " "); strings.Contains(calls, "delete") {
			b.t.Errorf("called %s", calls)
		}
	}},
}

// restart forgets all that a hub keeps in memory.
func (b *bench) restart() {
	b.pass.fleet = routableFleet()
	b.pass.budget = newBudget(Limit{})
	b.pass.fleet.Follow(b.pass.budget.observe)
	b.pass.pauses = newPauses()
	b.pass.fleet.Upsert(fleet.FromObject("eu", b.proxy()))
}

// cloudInit has the Proxy refer to the Secret.
func (b *bench) cloudInit(name string) {
	b.t.Helper()
	b.edit(func(p *v1alpha1.Proxy) {
		p.Spec.CloudInit = &v1alpha1.CloudInit{SecretRef: &v1alpha1.SecretKeyReference{Name: name}}
	})
}
