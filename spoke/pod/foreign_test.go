package pod

import (
	"context"
	"net/http"
	"reflect"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

func TestAServiceOfThatNameThatWeDidNotMakeStopsTheInstanceAndIsLeftAlone(t *testing.T) {
	cases := map[string]func(*corev1.Service){
		"somebody else's":   func(s *corev1.Service) { s.Labels, s.OwnerReferences, s.Spec.Selector = nil, nil, nil },
		"without any label": func(s *corev1.Service) { s.Labels = nil },
	}
	for label := range ownership(request().Owner) {
		cases["without "+label] = func(s *corev1.Service) { delete(s.Labels, label) }
		cases["with another "+label] = func(s *corev1.Service) { s.Labels[label] = "another" }
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			req := b.request(byBalancer, someFiles)
			taken := buildService(req)
			change(taken)
			b.make(taken)
			b.balance("elsewhere.example")
			taken = b.service()
			untouched := func(err error, class string, words ...string) {
				t.Helper()
				isOf(t, err, class, words...)
				b.serviceIs(taken)
			}
			_, err := b.Create(t.Context(), req)
			untouched(err, "lasting", "create service "+b.namespace+"/"+req.Ref.Name, "is not what the hub made: remove it")
			if b.pod() != nil {
				t.Fatal("there is a pod that nobody reaches")
			}
			untouched(b.Repair(t.Context(), req), "lasting", "remove it")

			// An instance that was made before the Service was taken.
			b.make(build(req, "proxy:1"))
			b.run()
			if inst := b.mustGet(); inst.Host != "" || inst.State != provider.StateProvisioning || inst.Lacks != "the Service of its name is not what the hub made" {
				t.Errorf("is %+v", inst)
			}
			b.mustAbandon(req, b.pod().UID)
			b.serviceIs(taken)
			b.remove()
			untouched(b.Clear(t.Context(), req.Ref, req.Owner), "")
			b.mustCreate(b.request(byPodIP)) // it stands in nobody else's way
			b.serviceIs(taken)
		})
	}
}

// held makes the instance's Service go and a cloud hold it.
func (b *bench) held() {
	b.t.Helper()
	b.edit(func(s *corev1.Service) {
		s.Finalizers = append(s.Finalizers, "service.kubernetes.io/load-balancer-cleanup")
	})
	b.drop(b.service())
}

func TestAServiceThatIsGoingIsWaitedForByNobodyButItsSuccessor(t *testing.T) {
	b := newBench(t)
	req := b.request(byBalancer)
	b.mustCreate(req)
	b.run()
	b.balance("lb.example")
	b.held()
	going := b.service()
	if inst := b.mustGet(); inst.Lacks != "its Service is being deleted" || inst.Host != "lb.example" || inst.State != provider.StateRunning {
		t.Errorf("is %+v: the load balancer works while it lasts", inst)
	}
	isOf(t, b.Repair(t.Context(), req), "transient", "create service", "being deleted")
	b.remove()
	_, err := b.Create(t.Context(), req)
	isOf(t, err, "transient", "being deleted")
	if b.pod() != nil {
		t.Error("there is a pod whose address goes")
	}
	if err := b.Clear(t.Context(), req.Ref, req.Owner); err != nil {
		t.Error(err)
	}
	b.mustCreate(b.request(byPodIP))
	b.serviceIs(going)

	b.remove()
	b.edit(func(s *corev1.Service) { s.Finalizers = nil })
	b.mustCreate(req)
	if s := b.service(); s == nil || s.UID == going.UID {
		t.Errorf("the Service is %+v", s)
	}
}

// Of what is to be removed, a cloud holds a part for minutes.
func TestAServiceThatACloudHoldsDoesNotHoldUpAnybody(t *testing.T) {
	b := newBench(t)
	req := b.request(byBalancer)
	b.mustCreate(req)
	b.edit(func(s *corev1.Service) {
		s.Finalizers = append(s.Finalizers, "service.kubernetes.io/load-balancer-cleanup")
	})
	b.remove()
	b.mustCreate(b.request(byPodIP, withHash("v2-edited")))
	if s := b.service(); s == nil || s.DeletionTimestamp.IsZero() {
		t.Errorf("the Service is %+v", s)
	}
	p, calls := b.counted()
	if err := p.Clear(t.Context(), req.Ref, req.Owner); err != nil || calls.Load() != 2 {
		t.Errorf("%v after %d calls, and all there is to do is done", err, calls.Load())
	}
}

func TestAnAbandonedInstanceIsReachedAsBefore(t *testing.T) {
	b := newBench(t)
	req := b.request(byBalancer, someFiles)
	was := b.dressed(req)
	b.mustCreate(req)
	b.run()
	id := b.pod().UID
	for range 2 {
		b.mustAbandon(req, id)
		s, pod := b.service(), b.pod()
		if !same(s, given(was, req.Owner)) {
			t.Errorf("the Service was %+v, is %+v", was, s)
		}
		if selector := labels.SelectorFromSet(s.Spec.Selector); selector.Empty() || !selector.Matches(labels.Set(pod.Labels)) {
			t.Errorf("selector %s, the pod has %v", selector, pod.Labels)
		}
	}
	s := b.service()
	if err := b.Clear(t.Context(), req.Ref, req.Owner); err != nil {
		t.Fatal(err)
	}
	b.serviceIs(s)
	if inst := b.mustGet(); inst.Host != "lb.example" || inst.Owner != (provider.Owner{}) {
		t.Errorf("is %+v", inst)
	}
}

func TestACrashWhileAnInstanceIsAbandonedLosesNoService(t *testing.T) {
	b := newBench(t)
	req := b.request(byBalancer)
	was := b.dressed(req)
	b.mustCreate(req)
	id := b.pod().UID
	crashing := b.patching(func(o client.Object) error {
		if o.GetObjectKind().GroupVersionKind().Kind == "Pod" {
			return context.Canceled
		}
		return nil
	})
	isOf(t, crashing.Abandon(t.Context(), req.Ref, req.Owner, string(id)), "transient", "disown pod")
	if now := b.service(); !same(now, given(was, req.Owner)) {
		t.Errorf("the pod is to be the last, and the Service is %+v", now)
	}
	b.mustAbandon(req, id)
	if now := b.service(); !same(now, given(was, req.Owner)) {
		t.Errorf("the Service was %+v, is %+v", was, now)
	}
	if owner := ownerOf(b.pod()); owner != (provider.Owner{}) {
		t.Errorf("the pod is %+v's", owner)
	}
}

// A cloud may hold one whose instance has got a new kind of address since.
func TestAServiceThatAnAbandonedInstanceDoesNotNeedIsCollected(t *testing.T) {
	b := newBench(t)
	left := buildService(b.request(byBalancer))
	b.mustCreate(b.request(byPodIP))
	b.make(left)
	b.mustAbandon(b.request(byPodIP), b.pod().UID)
	b.serviceIs(left)
}

func TestWithoutRightsToServicesNothingIsRefusedForGood(t *testing.T) {
	b := newBench(t)
	req := b.request(byBalancer)
	b.mustCreate(req)
	b.run()
	b.edit(func(s *corev1.Service) { s.Spec.Selector = nil })
	pod, was := b.pod(), b.service()
	all := []string{"get", "list", "create", "delete", "patch"}
	others := []rbacv1.PolicyRule{may("pods", all...), may("secrets", all...), may("proxies/finalizers", "update")}
	blind, reading := b.as(others...), b.as(append(others, may("services", "get"))...)
	another := b.request(byBalancer, func(req *provider.CreateRequest) { req.Ref.Name, req.Owner.ProxyUID = "u-2", "u-2" })
	for _, tc := range []struct {
		name string
		call func() error
		says string
	}{
		{"create", func() error { _, err := blind.Create(t.Context(), req); return err }, `cannot get resource "services"`},
		{"create without one", func() error { _, err := blind.Create(t.Context(), b.request(byPodIP)); return err }, `cannot get resource "services"`},
		{"get", func() error { _, err := blind.Get(t.Context(), req.Ref); return err }, `cannot get resource "services"`},
		{"repair", func() error { return blind.Repair(t.Context(), req) }, `cannot get resource "services"`},
		{"clear", func() error { return blind.Clear(t.Context(), req.Ref, req.Owner) }, `cannot get resource "services"`},
		{"abandon", func() error { return blind.Abandon(t.Context(), req.Ref, req.Owner, string(pod.UID)) }, `cannot get resource "services"`},
		{"create, reading", func() error { _, err := reading.Create(t.Context(), another); return err }, `cannot create resource "services"`},
		{"repair, reading", func() error { return reading.Repair(t.Context(), req) }, `cannot patch resource "services"`},
		{"create without one, reading", func() error { _, err := reading.Create(t.Context(), b.request(byPodIP)); return err }, `cannot delete resource "services"`},
		{"clear, reading", func() error { return reading.Clear(t.Context(), req.Ref, req.Owner) }, `cannot delete resource "services"`},
		{"abandon, reading", func() error { return reading.Abandon(t.Context(), req.Ref, req.Owner, string(pod.UID)) }, `cannot patch resource "services"`},
	} {
		t.Run(tc.name, func(t *testing.T) { isOf(t, tc.call(), "lasting", tc.says) })
	}
	b.serviceIs(was)
	// What goes does not wait for a right to look at what stays.
	b.bind(pod)
	if err := blind.Delete(t.Context(), req.Ref, string(pod.UID), false); err != nil {
		t.Fatal(err)
	}
	if inst, err := blind.Get(t.Context(), req.Ref); err != nil || inst.State != provider.StateDeleting || inst.Lacks != "" {
		t.Errorf("is %+v, %v", inst, err)
	}
}

// counted is the provider, and how often it has called the API server.
func (b *bench) counted() (Provider, *atomic.Int64) {
	calls := &atomic.Int64{}
	return b.at(func(config *rest.Config) {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				calls.Add(1)
				return next.RoundTrip(r)
			})
		})
	}), calls
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestWhatAnInstanceCostsInCalls(t *testing.T) {
	type costs struct{ create, get, replace, repair, clear, clearAgain int64 }
	for e, want := range map[v1alpha1.Expose]costs{
		v1alpha1.ExposePodIP:        {create: 3, get: 1, replace: 3, repair: 0, clear: 2, clearAgain: 2},
		v1alpha1.ExposeHostPort:     {create: 3, get: 1, replace: 3, repair: 0, clear: 2, clearAgain: 2},
		v1alpha1.ExposeLoadBalancer: {create: 4, get: 2, replace: 3, repair: 1, clear: 3, clearAgain: 2},
	} {
		t.Run(string(e), func(t *testing.T) {
			b := newBench(t)
			p, calls := b.counted()
			req := b.request(exposedBy(e))
			took := func(call func() error) int64 {
				t.Helper()
				before := calls.Load()
				if err := call(); err != nil {
					t.Fatal(err)
				}
				return calls.Load() - before
			}
			create := func() error { _, err := p.Create(t.Context(), req); return err }
			get := func() error { _, err := p.Get(t.Context(), req.Ref); return err }
			clearUp := func() error { return p.Clear(t.Context(), req.Ref, req.Owner) }
			got := costs{create: took(create), get: took(get), repair: took(func() error { return p.Repair(t.Context(), req) })}
			b.remove()
			got.replace = took(create)
			b.remove()
			got.clear, got.clearAgain = took(clearUp), took(clearUp)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}
