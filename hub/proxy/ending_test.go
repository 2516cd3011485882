package proxy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// How a Proxy goes, and what may keep it.
var endings = []scenario{
	{"an instance that does not go is told with what keeps it, and goes by force only if annotated", func(b *bench) {
		b.ready()
		b.delete()
		b.mustOnce()
		b.events = nil
		b.provided.inst.GoneBy, b.provided.inst.Message = b.now.Add(10*time.Second), "it is on node n1"
		b.now = b.now.Add(time.Minute)
		for range 3 {
			b.mustOnce()
		}
		b.shows("Deleting False Deleting")
		b.says("should have been gone by", "it is on node n1", "force-delete-instance=true")
		b.told("Warning InstanceOverdue: ")
		b.annotate(v1alpha1.AnnotationForceDelete, "yes please")
		b.mustOnce()
		if slices.Contains(b.provided.calls, "force") {
			b.t.Error("forced by another word than true")
		}
		b.annotate(v1alpha1.AnnotationForceDelete, "true")
		b.mustOnce()
		b.told("Warning InstanceForceDeleted: ")
		b.mustOnce()
		b.gone()
	}},
	{"an abandoned instance is given up before the finalizer, and never deleted", func(b *bench) {
		b.ready()
		b.events = nil
		b.annotate(v1alpha1.AnnotationAbandon, "true")
		b.mustOnce()
		if slices.Contains(b.provided.calls, "abandon") {
			b.t.Fatal("abandoned without a deletion")
		}
		b.delete()
		b.provided.fail["abandon"] = transient(1)
		if _, err := b.once(); err == nil {
			b.t.Error("not tried again")
		}
		if p := b.proxy(); !slices.Contains(p.Finalizers, v1alpha1.Finalizer) {
			b.t.Fatal("the finalizer went although the instance still refers to its owner")
		}
		b.provided.fail["abandon"] = nil
		b.events = nil
		b.mustOnce()
		b.gone()
		b.told("Warning InstanceAbandoned: ")
		if calls := strings.Join(b.provided.calls, " "); strings.Contains(calls, "delete") || strings.Contains(calls, "clear") {
			b.t.Errorf("called %s", calls)
		}
	}},
	{"a look that fails once it is to go does not call it provisioned", func(b *bench) {
		b.ready()
		b.delete()
		b.provided.fail["get"] = transient(1)
		if _, err := b.once(); err == nil {
			b.t.Error("not tried again")
		}
		b.shows("Deleting False Deleting")
		b.provided.fail["get"] = nil
		b.mustOnce()
		b.provided.inst = nil
		b.mustOnce()
		b.gone()
	}},
	{"one that has lost a label is abandoned all the same: a collector goes by the owner", func(b *bench) {
		b.ready()
		b.provided.inst.Owner.Hub = ""
		b.annotate(v1alpha1.AnnotationAbandon, "true")
		b.delete()
		b.mustOnce()
		b.gone()
		if !slices.Contains(b.provided.calls, "abandon") {
			b.t.Errorf("called %v", b.provided.calls)
		}
	}},
	{"a Proxy of a provider that this hub does not have is let alone, and not let go", func(b *bench) {
		b.ready()
		calls := len(b.provided.calls)
		b.pass.provider = nil
		b.edit(func(p *v1alpha1.Proxy) { p.Spec.MaxLeases = new(int32(3)) })
		b.mustOnce()
		b.shows("Failed False PermanentError")
		b.delete()
		b.mustOnce()
		if p := b.proxy(); !slices.Contains(p.Finalizers, v1alpha1.Finalizer) || len(b.provided.calls) > calls {
			b.t.Errorf("finalizers %v, calls %v", p.Finalizers, b.provided.calls[calls:])
		}
		b.pass.provider = b.provided
		b.mustOnce()
		b.provided.inst = nil
		b.mustOnce()
		b.gone()
	}},
	{"what an instance needed goes before its Proxy", func(b *bench) {
		b.ready()
		b.delete()
		b.mustOnce()
		b.provided.inst = nil
		b.provided.fail["clear"] = transient(1)
		if _, err := b.once(); err == nil {
			b.t.Error("not tried again")
		}
		b.shows("Deleting False Deleting")
		b.provided.fail["clear"] = nil
		b.mustOnce()
		b.gone()
	}},
	{"a deletion that is refused for good is told, and tried again slowly", func(b *bench) {
		b.ready()
		b.delete()
		b.provided.fail["delete"] = fmt.Errorf("a webhook says no: %w", provider.ErrPermanent)
		for range 2 {
			if res := b.mustOnce(); res.RequeueAfter < 48*time.Second {
				b.t.Errorf("again after %s", res.RequeueAfter)
			}
		}
		b.shows("Deleting False Deleting")
		b.says("a webhook says no")
		b.provided.fail["delete"] = nil
		b.mustOnce()
		b.provided.inst = nil
		b.mustOnce()
		b.gone()
	}},
	{"a replacement that is refused takes nothing out of service, and is tried again", func(b *bench) {
		b.ready()
		b.edit(func(p *v1alpha1.Proxy) { p.Spec.Port = 8888 })
		b.provided.fail["delete"] = fmt.Errorf("a webhook says no: %w", provider.ErrPermanent)
		for range 3 {
			if res := b.mustOnce(); res.RequeueAfter < 48*time.Second {
				b.t.Errorf("again after %s", res.RequeueAfter)
			}
		}
		b.shows("Ready True Created")
		b.says("a webhook says no")
		if !b.pass.fleet.Get(b.fleetKey()).Offerable() {
			b.t.Error("a healthy instance is offered to nobody")
		}
		if want := []string{"object", "status"}; !slices.Equal(b.writes, want) {
			b.t.Errorf("wrote %v, want %v", b.writes, want)
		}
		b.provided.fail["delete"] = nil
		b.mustOnce()
		b.provided.inst = nil
		b.mustOnce()
		b.shows("Provisioning False Provisioning")
	}},
	{"deleted while its Secret is missing, it goes all the same", func(b *bench) {
		b.cloudInit("gone-too")
		b.secret("gone-too", map[string]string{"user-data": "x"})
		b.ready()
		b.unsecret("gone-too")
		b.delete()
		b.mustOnce()
		b.provided.inst = nil
		b.mustOnce()
		b.gone()
	}},
}
