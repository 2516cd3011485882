package pod

import (
	"context"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

var (
	byPodIP    = exposedBy(v1alpha1.ExposePodIP)
	byHostPort = exposedBy(v1alpha1.ExposeHostPort)
	byBalancer = exposedBy(v1alpha1.ExposeLoadBalancer)
)

// service is the instance's, nil where there is none.
func (b *bench) service() *corev1.Service {
	b.t.Helper()
	var s corev1.Service
	err := b.admin.Get(b.t.Context(), client.ObjectKey{Namespace: b.namespace, Name: b.request().Ref.Name}, &s)
	if client.IgnoreNotFound(err) != nil {
		b.t.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return &s
}

// edit changes the instance's Service as an administrator does.
func (b *bench) edit(change func(*corev1.Service)) {
	b.t.Helper()
	s := b.service()
	change(s)
	if err := b.admin.Update(b.t.Context(), s); err != nil {
		b.t.Fatal(err)
	}
}

// balance gives the instance's Service an address as a cloud does.
func (b *bench) balance(host string) {
	b.t.Helper()
	s := b.service()
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: host}}
	if err := b.admin.Status().Update(b.t.Context(), s); err != nil {
		b.t.Fatal(err)
	}
}

// run has the instance's pod run as a kubelet does.
func (b *bench) run() {
	b.t.Helper()
	pod := b.pod()
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}, HostIP: "192.0.2.7", HostIPs: []corev1.HostIP{{IP: "192.0.2.7"}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: containerName, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
	}
	if err := b.admin.Status().Update(b.t.Context(), pod); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) mustGet() provider.Instance {
	b.t.Helper()
	inst, err := b.Get(b.t.Context(), b.request().Ref)
	if err != nil {
		b.t.Fatal(err)
	}
	return inst
}

func (b *bench) mustRepair(req provider.CreateRequest) {
	b.t.Helper()
	if err := b.Repair(b.t.Context(), req); err != nil {
		b.t.Fatal(err)
	}
}

// serviceIs fails unless the Service is as it was.
func (b *bench) serviceIs(was *corev1.Service) {
	b.t.Helper()
	if now := b.service(); now == nil || now.UID != was.UID || now.ResourceVersion != was.ResourceVersion {
		b.t.Errorf("the Service was %+v, is %+v", was, now)
	}
}

func TestAnInstanceRunsAtTheAddressOfItsKind(t *testing.T) {
	for e, want := range map[v1alpha1.Expose]string{"": "10.0.0.1", v1alpha1.ExposePodIP: "10.0.0.1", v1alpha1.ExposeHostPort: "192.0.2.7", v1alpha1.ExposeLoadBalancer: "lb.example"} {
		t.Run(string(e), func(t *testing.T) {
			b := newBench(t)
			created := b.mustCreate(b.request(exposedBy(e)))
			b.run()
			if s := b.service(); (s != nil) != (e == v1alpha1.ExposeLoadBalancer) {
				t.Fatalf("the Service is %+v", s)
			} else if s != nil {
				if inst := b.mustGet(); inst.State != provider.StateProvisioning || inst.Host != "" || inst.Message != "the load balancer has no address yet" {
					t.Errorf("without an address it is %+v", inst)
				}
				b.balance(want)
			}
			inst := b.mustGet()
			if inst.State != provider.StateRunning || inst.Host != want || inst.Lacks != "" || inst.Message != "" {
				t.Errorf("is %+v", inst)
			}
			if inst.Access == nil || created.Access == nil || *inst.Access != *created.Access || inst.Access.Expose != b.request(exposedBy(e)).Spec.ExposedAs() {
				t.Errorf("made by %+v, is reached by %+v", created.Access, inst.Access)
			}
		})
	}
}

func TestAListedInstanceBehindALoadBalancerHasNoAddressAndCostsNoCall(t *testing.T) {
	b := newBench(t)
	hub := b.namespace
	b.mustCreate(b.request(byBalancer, func(req *provider.CreateRequest) { req.Owner.Hub = hub }))
	b.run()
	b.balance("lb.example")
	p := b.as(may("pods", "list"))
	p.Namespaces = []string{b.namespace}
	listing, err := p.ListByTag(t.Context(), hub)
	if err != nil {
		t.Fatal(err)
	}
	want := instance(b.pod())
	if want.Host != "" || want.State != provider.StateProvisioning || want.Access.Expose != v1alpha1.ExposeLoadBalancer {
		t.Errorf("is %+v", want)
	}
	lists(t, listing, []provider.Instance{want})
}

func TestTheServiceIsThereBeforeThePodAndSurvivesACrashInBetween(t *testing.T) {
	b := newBench(t)
	req := b.request(byBalancer, someFiles)
	ctx, crash := context.WithCancel(t.Context())
	crashing := b.before(func(o client.Object) {
		if _, ok := o.(*corev1.Pod); ok {
			crash()
		}
	})
	_, err := crashing.Create(ctx, req)
	isOf(t, err, "transient", "create pod")
	s := b.service()
	if s == nil || b.pod() != nil {
		t.Fatalf("the Service is %+v, the pod %+v", s, b.pod())
	}
	b.mustCreate(req)
	b.serviceIs(s)
}

func TestAReplacedInstanceKeepsItsServiceAndItsAddress(t *testing.T) {
	b := newBench(t)
	first := b.mustCreate(b.request(byBalancer, withHash("v2-first")))
	b.balance("lb.example")
	s := b.service()
	b.mustDelete(first.ID, false)
	b.serviceIs(s)
	second := b.mustCreate(b.request(byBalancer, withHash("v2-second")))
	b.run()
	b.serviceIs(s)
	if inst := b.mustGet(); inst.ID != second.ID || inst.ID == first.ID || inst.Host != "lb.example" || inst.State != provider.StateRunning {
		t.Errorf("was %+v, is %+v", first, inst)
	}
}

// dressed makes the instance's Service with what a cloud and its administrators
// add, some of which can be set when it is made alone.
func (b *bench) dressed(req provider.CreateRequest) *corev1.Service {
	b.t.Helper()
	s := buildService(req)
	s.Annotations["example.com/internal"], s.Labels["team"] = "true", "net"
	s.Finalizers = []string{"service.kubernetes.io/load-balancer-cleanup"}
	s.OwnerReferences = append(s.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "other"})
	s.Spec.LoadBalancerClass, s.Spec.ExternalTrafficPolicy = ptr.To("example.com/inner"), corev1.ServiceExternalTrafficPolicyLocal
	s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
	s.Spec.Ports[0].AppProtocol = ptr.To("http")
	b.make(s)
	b.balance("lb.example")
	return b.service()
}

func TestWhatOthersAddToAServiceStays(t *testing.T) {
	b := newBench(t)
	was := b.dressed(b.request(byBalancer))
	b.mustCreate(b.request(byBalancer))
	b.serviceIs(was)
	b.mustRepair(b.request(byBalancer))
	b.serviceIs(was)
	if inst := b.mustGet(); inst.Lacks != "" || inst.Host != "lb.example" {
		t.Errorf("at %q, lacks %q", inst.Host, inst.Lacks)
	}

	b.remove()
	b.mustCreate(b.request(byBalancer, withPort(8080), withHash("v2-edited")))
	now := b.service()
	if port := now.Spec.Ports[0]; port.Port != 8080 || port.TargetPort != intstr.FromInt32(8080) || port.NodePort != was.Spec.Ports[0].NodePort {
		t.Errorf("after an edit its port is %+v, was %+v", port, was.Spec.Ports[0])
	}
	now.Spec.Ports[0].Port, now.Spec.Ports[0].TargetPort = was.Spec.Ports[0].Port, was.Spec.Ports[0].TargetPort
	if !same(now, was) {
		t.Errorf("the Service was %+v, is %+v", was, now)
	}
	if inst := b.mustGet(); inst.Lacks != "" || inst.Host != "lb.example" {
		t.Errorf("at %q, lacks %q", inst.Host, inst.Lacks)
	}
}

func TestAnEditedServiceIsPutRightWithOrWithoutANewPod(t *testing.T) {
	for _, e := range edits {
		t.Run(e.name, func(t *testing.T) {
			b := newBench(t)
			req := b.request(byBalancer, withPort(8080))
			b.mustCreate(req)
			was := b.service()
			for by, correct := range map[string]func(){"Repair": func() { b.mustRepair(req) }, "Create": func() { b.remove(); b.mustCreate(req) }} {
				b.edit(e.edit)
				edited := b.service()
				lacks := b.mustGet().Lacks
				correct()
				now := b.service()
				switch {
				case now.UID != was.UID || deviation(now.Spec, was.Spec) != "" || b.mustGet().Lacks != "":
					t.Errorf("%s leaves %+v, which lacks %q", by, now.Spec, b.mustGet().Lacks)
				case (lacks != "") != (e.says != ""):
					t.Errorf("edited it lacks %q", lacks)
				case e.says == "":
					b.serviceIs(edited)
				}
			}
		})
	}
}

func TestAServiceThatIsGoneIsMissedAndMadeAgain(t *testing.T) {
	b := newBench(t)
	req := b.request(byBalancer)
	b.mustCreate(req)
	b.run()
	pod, old := b.pod(), b.service()
	b.drop(old)
	if inst := b.mustGet(); inst.Lacks != "its Service is missing" || inst.Host != "" || inst.State != provider.StateProvisioning {
		t.Errorf("is %+v", inst)
	}
	for range 2 {
		b.mustRepair(req)
	}
	if now := b.service(); now == nil || now.UID == old.UID || ownerOf(now) != req.Owner || !reflect.DeepEqual(now.OwnerReferences, old.OwnerReferences) {
		t.Errorf("the Service is %+v", now)
	}
	if now := b.pod(); now.ResourceVersion != pod.ResourceVersion {
		t.Errorf("the pod was %+v, is %+v", pod.ObjectMeta, now.ObjectMeta)
	}
}

func TestNothingIsRepairedOfWhatHasNoLoadBalancer(t *testing.T) {
	b := newBench(t)
	// An edit that has not reached the instance must not take its address.
	b.mustCreate(b.request(byBalancer))
	was := b.service()
	for _, e := range []func(*provider.CreateRequest){byPodIP, byHostPort} {
		b.mustRepair(b.request(e))
		b.serviceIs(was)
	}
}

func TestAServiceThatAnotherLeaderHasJustMadeIsUsed(t *testing.T) {
	b := newBench(t)
	late := b.before(func(o client.Object) {
		if s, ok := o.(*corev1.Service); ok {
			s = s.DeepCopy()
			s.Spec.Ports[0].Port = 80 // of an older spec
			b.make(s)
		}
	})
	if _, err := late.Create(t.Context(), b.request(byBalancer)); err != nil {
		t.Fatal(err)
	}
	if inst := b.mustGet(); inst.Lacks != "" {
		t.Errorf("lacks %q", inst.Lacks)
	}
}

func TestAnEditAtTheSameMomentIsNotLost(t *testing.T) {
	b := newBench(t)
	b.mustCreate(b.request(byBalancer))
	meddling := b.patching(func(client.Object) error {
		b.edit(func(s *corev1.Service) { s.Annotations["example.com/internal"] = "true" })
		return nil
	})
	err := meddling.Repair(t.Context(), b.request(byBalancer, withPort(8080)))
	if isOf(t, err, "transient", "correct service"); !apierrors.IsConflict(err) {
		t.Errorf("%v is no conflict", err)
	}
	b.mustRepair(b.request(byBalancer, withPort(8080)))
	if s := b.service(); s.Annotations["example.com/internal"] == "" || s.Spec.Ports[0].Port != 8080 {
		t.Errorf("the Service is %+v", s)
	}
}

func TestTheServiceGoesWithTheLoadBalancerThatTheSpecAskedFor(t *testing.T) {
	for name, e := range map[string]func(*provider.CreateRequest){"PodIP": byPodIP, "HostPort": byHostPort, "by default": func(*provider.CreateRequest) {}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.mustCreate(b.request(byBalancer))
			b.remove()
			b.mustCreate(b.request(e, withHash("v2-edited")))
			if s := b.service(); s != nil {
				t.Errorf("the Service is %+v", s)
			}
			if inst := b.mustGet(); inst.Lacks != "" {
				t.Errorf("lacks %q", inst.Lacks)
			}
		})
	}
}

func TestClearTakesTheServiceAway(t *testing.T) {
	b := newBench(t)
	req := b.request(byBalancer, someFiles)
	b.mustCreate(req)
	b.remove()
	for range 2 { // the second time there is nothing
		if err := b.Clear(t.Context(), req.Ref, req.Owner); err != nil {
			t.Fatal(err)
		}
		if s := b.service(); s != nil {
			t.Errorf("the Service is %+v", s)
		}
	}
	b.has()
}

func TestANamesakeOfTheServiceThatWasReadIsNotDeleted(t *testing.T) {
	b := newBench(t)
	req := b.request(byBalancer)
	b.mustCreate(req)
	b.remove()
	late := b.Provider
	late.Writer = interceptor.NewClient(b.hub, interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			b.drop(b.service())
			b.make(serviceThat(func(s *corev1.Service) { s.Namespace, s.Labels = b.namespace, nil }))
			return c.Delete(ctx, o, opts...)
		},
	})
	if err := late.Clear(t.Context(), req.Ref, req.Owner); err != nil {
		t.Fatal(err)
	}
	if s := b.service(); s == nil || !s.DeletionTimestamp.IsZero() {
		t.Errorf("the namesake is %+v", s)
	}
}
