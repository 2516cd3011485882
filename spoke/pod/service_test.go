package pod

import (
	"encoding/json"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// access writes on a pod how it is reached.
func access(text string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Annotations[v1alpha1.AnnotationAccess] = text }
}

// exposed is a pod that was made to be dialled that way, and listens on a port of
// its own.
func exposed(e v1alpha1.Expose) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { *pod = *build(request(exposedBy(e), withPort(8080)), "proxy:1") }
}

func node(ip string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.HostIP = ip }
}

// serviceThat is the Service in front of such a pod but for the changes.
func serviceThat(changes ...func(*corev1.Service)) *corev1.Service {
	s := buildService(request(exposedBy(v1alpha1.ExposeLoadBalancer), withPort(8080)))
	for _, change := range changes {
		change(s)
	}
	return s
}

func ingress(entries ...corev1.LoadBalancerIngress) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = entries }
}

var given192 = ingress(corev1.LoadBalancerIngress{IP: "192.0.2.1"})

func TestClientsDialTheAddressThatTheInstanceWasMadeToBeReachedAt(t *testing.T) {
	podIP, hostPort := exposed(v1alpha1.ExposePodIP), exposed(v1alpha1.ExposeHostPort)
	type is = []func(*corev1.Pod)
	for _, tc := range []struct {
		name string
		is   is
		want string
	}{
		{"by the pod's address", is{podIP, address("10.0.0.1"), node("192.0.2.7")}, "10.0.0.1"},
		{"by the pod's IPv6 address", is{podIP, address("fd00::1"), node("2001:db8::7")}, "fd00::1"},
		{"by the pod's, which it has not got", is{podIP, node("192.0.2.7")}, ""},
		{"by its node's address", is{hostPort, address("10.0.0.1"), node("192.0.2.7")}, "192.0.2.7"},
		{"by its node's IPv6 address", is{hostPort, address("fd00::1"), node("2001:db8::7")}, "2001:db8::7"},
		{"by its node's, which is not known", is{hostPort, address("10.0.0.1")}, ""},
		{"by a load balancer's, which was not asked", is{exposed(v1alpha1.ExposeLoadBalancer), address("10.0.0.1"), node("192.0.2.7")}, ""},
		{"made before there was a choice", is{func(pod *corev1.Pod) { pod.Annotations = nil }, address("10.0.0.1"), node("192.0.2.7")}, "10.0.0.1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inst := instance(podThat(append(tc.is, phase(corev1.PodRunning), runs())...))
			state := provider.StateRunning
			if tc.want == "" {
				state = provider.StateProvisioning
			}
			if inst.Host != tc.want || inst.State != state || inst.Lacks != "" {
				t.Errorf("%s at %q, lacks %q, want %s at %q", inst.State, inst.Host, inst.Lacks, state, tc.want)
			}
		})
	}
}

func TestAPodSaysHowItIsReachedWhateverTheSpecSaysByNow(t *testing.T) {
	req := request(exposedBy(v1alpha1.ExposeHostPort), func(req *provider.CreateRequest) {
		req.Spec.Protocol, req.Spec.TLS = v1alpha1.ProtocolHTTPS, &v1alpha1.TLS{ServerName: "proxy.example"}
		req.Spec.AuthSecretRef = &v1alpha1.SecretReference{Name: "login"}
	})
	pod := build(req, "proxy:1")
	want := &v1alpha1.Access{Protocol: v1alpha1.ProtocolHTTPS, Expose: v1alpha1.ExposeHostPort, ServerName: "proxy.example", Authentication: true}
	if got := instance(pod).Access; !reflect.DeepEqual(got, want) || !reflect.DeepEqual(got, req.Spec.AccessTo()) {
		t.Errorf("reads back as %+v, want %+v", got, want)
	}
	var written v1alpha1.Access
	if err := json.Unmarshal([]byte(pod.Annotations[v1alpha1.AnnotationAccess]), &written); err != nil || written != *want {
		t.Errorf("the annotation %q is %+v, %v", pod.Annotations[v1alpha1.AnnotationAccess], written, err)
	}
	if got := instance(build(request(), "proxy:1")).Access; got == nil || *got != (v1alpha1.Access{Protocol: v1alpha1.ProtocolHTTP, Expose: v1alpha1.ExposePodIP}) {
		t.Errorf("a plain one reads back as %+v", got)
	}
}

func TestAPodThatDoesNotSayHowItIsReachedIsNotGuessedAt(t *testing.T) {
	for _, text := range []string{"", "garbage", "null", "[]", `"PodIP"`, "{}", `{"expose":7}`, `{"protocol":"http"}`, `{"expose":"Ingress"}`, `{"expose":"LoadBalancer"`} {
		if inst := instance(podThat(access(text), address("10.0.0.1"))); inst.Access != nil || inst.Host != "10.0.0.1" {
			t.Errorf("%q: at %q by %+v", text, inst.Host, inst.Access)
		}
	}
}

func TestANodesPortIsTakenWhereItIsAskedForAlone(t *testing.T) {
	for e, want := range map[v1alpha1.Expose]int32{"": 0, v1alpha1.ExposePodIP: 0, v1alpha1.ExposeHostPort: 8080, v1alpha1.ExposeLoadBalancer: 0} {
		if got := build(request(exposedBy(e), withPort(8080)), "proxy:1").Spec.Containers[0].Ports; len(got) != 1 || got[0].HostPort != want {
			t.Errorf("%q: ports %+v", e, got)
		}
	}
}

func TestAServiceIsMarkedAsOursAndLeadsToItsPodAlone(t *testing.T) {
	req := request(exposedBy(v1alpha1.ExposeLoadBalancer), withPort(8080))
	pod, s := build(req, "proxy:1"), buildService(req)
	if s.Namespace != pod.Namespace || s.Name != pod.Name || ownerOf(s) != req.Owner || !reflect.DeepEqual(s.OwnerReferences, pod.OwnerReferences) {
		t.Errorf("the Service is %+v", s.ObjectMeta)
	}
	if _, marked := s.Labels[v1alpha1.LabelSpecHash]; marked || len(s.Annotations) != 1 {
		t.Errorf("labels %v, annotations %v: it outlives the instance", s.Labels, s.Annotations)
	}
	other := build(request(func(req *provider.CreateRequest) { req.Ref.Name = provider.NameFromUID("u-2") }), "proxy:1")
	selector := labels.SelectorFromSet(s.Spec.Selector)
	if !selector.Matches(labels.Set(pod.Labels)) || selector.Matches(labels.Set(other.Labels)) || selector.Empty() {
		t.Errorf("selector %s, the pod has %v, another %v", selector, pod.Labels, other.Labels)
	}
	if port := s.Spec.Ports[0]; s.Spec.Type != corev1.ServiceTypeLoadBalancer || len(s.Spec.Ports) != 1 || port.Port != 8080 || port.TargetPort != intstr.FromInt32(8080) ||
		port.Protocol != corev1.ProtocolTCP || port.Name != "proxy" {
		t.Errorf("a %s with ports %+v", s.Spec.Type, s.Spec.Ports)
	}
	again := buildService(req)
	overwrite(reflect.ValueOf(s))
	if !reflect.DeepEqual(buildService(req), again) {
		t.Error("one Service's change is another's")
	}
}

func TestALoadBalancersAddressIsTheFirstThatItHas(t *testing.T) {
	type entries = []corev1.LoadBalancerIngress
	const none = "the load balancer has no address yet"
	for _, tc := range []struct {
		name string
		has  entries
		want string
	}{
		{"none", nil, ""},
		{"an entry without", entries{{}}, ""},
		{"an IPv4 address", entries{{IP: "192.0.2.1"}}, "192.0.2.1"},
		{"an IPv6 address", entries{{IP: "2001:db8::1"}}, "2001:db8::1"},
		{"a name", entries{{Hostname: "lb.example"}}, "lb.example"},
		{"both", entries{{Hostname: "lb.example", IP: "192.0.2.1"}}, "192.0.2.1"},
		{"several", entries{{Hostname: "lb.example"}, {IP: "192.0.2.1"}}, "lb.example"},
		{"several, the first without", entries{{}, {IP: "192.0.2.2"}, {IP: "192.0.2.1"}}, "192.0.2.2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := podThat(exposed(v1alpha1.ExposeLoadBalancer), phase(corev1.PodRunning), runs(), address("10.0.0.1"), node("192.0.2.7"))
			inst := instanceAt(pod, behind(pod, serviceThat(ingress(tc.has...))))
			state, says := provider.StateRunning, ""
			if tc.want == "" {
				state, says = provider.StateProvisioning, none
			}
			if inst.Host != tc.want || inst.State != state || inst.Message != says || inst.Lacks != "" {
				t.Errorf("%s at %q, says %q, lacks %q, want %s at %q", inst.State, inst.Host, inst.Message, inst.Lacks, state, tc.want)
			}
		})
	}
}

func TestWhatHoldsAnInstanceUpIsSaidOfItsContainersFirst(t *testing.T) {
	// The condition is one that Cilium writes when its pools are empty.
	pool := func(s *corev1.Service) {
		s.Status.Conditions = []metav1.Condition{{Type: "cilium.io/IPAMRequestSatisfied", Status: "False", Reason: "no_pool", Message: "There are no enabled pools"}, {Type: "Seen", Status: "True"}}
	}
	const none = "the load balancer has no address yet"
	for _, tc := range []struct {
		name string
		pod  func(*corev1.Pod)
		s    *corev1.Service
		says string
	}{
		{"nothing is up", waits("ContainerCreating", ""), serviceThat(), none},
		{"the image cannot be pulled", waits("ErrImagePull", "not found"), serviceThat(), "ImagePullBackOff: not found"},
		{"the image cannot be pulled, the address is there", waits("ErrImagePull", "not found"), serviceThat(given192), "ImagePullBackOff: not found"},
		{"no address", runs(), serviceThat(), none},
		{"no address, and the cloud says why", runs(), serviceThat(pool), none + ": cilium.io/IPAMRequestSatisfied is False: no_pool: There are no enabled pools; Seen is True"},
		{"no Service", runs(), nil, none},
		{"an address, whatever the cloud says", runs(), serviceThat(pool, given192), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := podThat(exposed(v1alpha1.ExposeLoadBalancer), tc.pod)
			if inst := instanceAt(pod, behind(pod, tc.s)); inst.Message != tc.says {
				t.Errorf("%s, says %q, want %q", inst.State, inst.Message, tc.says)
			}
		})
	}
}

// edits are what may befall a Service that is the hub's, with the words about it;
// none for what is nobody's business but the cloud's.
var edits = []struct {
	name string
	edit func(*corev1.Service)
	says string
}{
	{"nothing", func(*corev1.Service) {}, ""},
	{"annotations, labels and a finalizer", func(s *corev1.Service) {
		s.Annotations["example.com/internal"], s.Labels["team"] = "true", "net"
		s.Finalizers = append(s.Finalizers, "service.kubernetes.io/load-balancer-cleanup")
	}, ""},
	{"a node port", func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 0 }, ""}, // another one is given then
	{"the protocol above TCP", func(s *corev1.Service) { s.Spec.Ports[0].AppProtocol = ptr.To("http") }, ""},
	{"who may come in", func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"} }, ""},
	{"the way of the traffic", func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }, ""},

	{"type ClusterIP", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }, "type"},
	{"type NodePort", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }, "type"},
	{"type ExternalName", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "elsewhere.example"
	}, "type"},
	{"another selector", func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "other"} }, "selector"},
	{"a narrower selector", func(s *corev1.Service) { s.Spec.Selector["app"] = "other" }, "selector"},
	{"no selector", func(s *corev1.Service) { s.Spec.Selector = nil }, "selector"},
	{"another port", func(s *corev1.Service) { s.Spec.Ports[0].Port = 80 }, "ports"},
	{"another target", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(80) }, "ports"},
	{"a target by name", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("proxy") }, "ports"},
	{"another name of the port", func(s *corev1.Service) { s.Spec.Ports[0].Name = "http" }, "ports"},
	{"one more port", func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "metrics", Protocol: corev1.ProtocolTCP, Port: 9090, TargetPort: intstr.FromInt32(9090)})
	}, "ports"},
	{"all of it", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.Selector["app"], s.Spec.Ports[0].Port = corev1.ServiceTypeNodePort, "other", 80
	}, "type, selector, ports"},
}

func TestWhatAnInstanceLacksIsSaid(t *testing.T) {
	pod := podThat(exposed(v1alpha1.ExposeLoadBalancer), phase(corev1.PodRunning), runs())
	check := func(name string, s *corev1.Service, host, lacks string) {
		t.Run(name, func(t *testing.T) {
			if at := behind(pod, s); at.lacks != lacks || at.host != host {
				t.Errorf("at %q, lacks %q, want %q, %q", at.host, at.lacks, host, lacks)
			}
		})
	}
	check("no Service", nil, "", "its Service is missing")
	for label := range ownership(request().Owner) {
		const foreign = "the Service of its name is not what the hub made"
		check("without "+label, serviceThat(given192, func(s *corev1.Service) { delete(s.Labels, label) }), "", foreign)
		check("other "+label, serviceThat(given192, func(s *corev1.Service) { s.Labels[label] = "another" }), "", foreign)
	}
	going := func(s *corev1.Service) { s.DeletionTimestamp = &metav1.Time{Time: goneBy} }
	check("going", serviceThat(given192, going), "192.0.2.1", "its Service is being deleted")
	for _, e := range edits {
		lacks := ""
		if e.says != "" {
			lacks = "its Service differs in " + e.says + " from what it needs"
		}
		check("edited: "+e.name, serviceThat(given192, e.edit), "192.0.2.1", lacks)
	}
	check("of another port", func() *corev1.Service {
		s := serviceThat(given192)
		s.Spec = front(s.Name, 3128)
		return s
	}(), "192.0.2.1", "its Service differs in ports from what it needs")
}

func TestAnInstanceThatGoesOrHasStoppedAsksForNoService(t *testing.T) {
	lb := exposed(v1alpha1.ExposeLoadBalancer)
	for want, pods := range map[bool][]*corev1.Pod{
		true:  {podThat(lb), podThat(lb, phase(corev1.PodRunning), runs())},
		false: {podThat(lb, deleted(goneBy)), podThat(lb, phase(corev1.PodFailed)), podThat(lb, phase(corev1.PodSucceeded)), podThat(), podThat(exposed(v1alpha1.ExposeHostPort)), podThat(access(""))},
	} {
		for _, pod := range pods {
			if balanced(pod) != want {
				t.Errorf("%s by %s: asks %v, want %v", instance(pod).State, pod.Annotations[v1alpha1.AnnotationAccess], !want, want)
			}
		}
	}
}

func TestACorrectedServiceIsTheWantedOneAndKeepsTheRest(t *testing.T) {
	want := front("proxy-u-1", 8080)
	for _, e := range edits {
		t.Run(e.name, func(t *testing.T) {
			s := serviceThat(e.edit)
			s.Spec.LoadBalancerClass, s.Spec.ClusterIP = ptr.To("example.com/inner"), "10.0.0.9"
			s.Spec.Ports[0].NodePort, s.Spec.Ports[0].AppProtocol = 30001, ptr.To("http")
			before := s.DeepCopy().Spec
			after := corrected(s.Spec, want)
			if left := deviation(after, want); left != "" {
				t.Errorf("differs in %s still: %+v", left, after)
			}
			if !reflect.DeepEqual(s.Spec, before) {
				t.Error("what was read has changed with it")
			}
			if kept := after.Ports[0].NodePort == 30001 && *after.Ports[0].AppProtocol == "http"; e.name != "another name of the port" && !kept {
				t.Errorf("port %+v", after.Ports[0])
			}
			after.Type, after.Selector, after.Ports = before.Type, before.Selector, before.Ports
			if !reflect.DeepEqual(after, before) {
				t.Errorf("is %+v, was %+v", after, before)
			}
		})
	}
}
