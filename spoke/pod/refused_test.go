package pod

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/provider"
	"github.com/proxyfleet/proxy-operator/test/process"
)

// classes are all there are, by name.
var classes = map[string]error{
	"not found": provider.ErrNotFound, "exists": provider.ErrExists, "quota": provider.ErrQuotaExceeded,
	"permanent": provider.ErrPermanent, "transient": provider.ErrTransient, "lasting": provider.ErrLasting,
}

// isOf fails unless err is of this class and no other, and says these words.
func isOf(t *testing.T, err error, class string, words ...string) {
	t.Helper()
	for name, sentinel := range classes {
		want := name == class || name == "transient" && class == "lasting"
		if errors.Is(err, sentinel) != want {
			t.Errorf("is %s: %v, and should be %s: %v", name, !want, class, err)
		}
	}
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("says %v, without %q", err, word)
		}
	}
}

// refused asks for an instance until it is refused: what refuses it takes
// effect by and by.
func (b *bench) refused(req provider.CreateRequest) error {
	b.t.Helper()
	var refusal error
	b.until(func(ctx context.Context) bool {
		if _, refusal = b.Create(ctx, req); errors.Is(refusal, provider.ErrExists) {
			refusal = nil
		}
		if refusal == nil {
			b.remove()
			if s := b.service(); s != nil {
				b.drop(s)
			}
		}
		return refusal != nil
	})
	return refusal
}

func amounts(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for _, pair := range pairs {
		name, amount, _ := strings.Cut(pair, "=")
		list[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	return list
}

// quota makes one and counts what is used, as a controller-manager would.
func (b *bench) quota(hard, used corev1.ResourceList) {
	b.t.Helper()
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "a-quota"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	b.make(q)
	q.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: used}
	if err := b.admin.Status().Update(b.t.Context(), q); err != nil {
		b.t.Fatal(err)
	}
}

var someFiles = withFiles(map[string]string{provider.FileUserData: "x"})

func TestAFullNamespaceIsNotAskedAgainSoonAndOneWithOtherRulesNever(t *testing.T) {
	cpu := func(amount string) func(*provider.CreateRequest) {
		return withSpec(v1alpha1.KubernetesSpec{Resources: corev1.ResourceRequirements{Limits: amounts("cpu=" + amount)}})
	}
	for _, tc := range []struct {
		name  string
		rules func(*bench)
		asks  func(*provider.CreateRequest)
		class string
		words []string
	}{
		{"no pod left", func(b *bench) { b.quota(amounts("pods=1"), amounts("pods=1")) }, cpu("1"), "quota", []string{"exceeded quota: a-quota", "limited: pods=1"}},
		{"no processor left", func(b *bench) { b.quota(amounts("limits.cpu=4"), amounts("limits.cpu=3500m")) }, cpu("1"), "quota", []string{"requested: limits.cpu=1"}},
		{"no Secret left", func(b *bench) { b.quota(amounts("secrets=2"), amounts("secrets=2")) }, someFiles, "quota", []string{"create secret", "exceeded quota: a-quota"}},
		{"no Service left", func(b *bench) { b.quota(amounts("count/services=2"), amounts("count/services=2")) }, byBalancer,
			"quota", []string{"create service", "exceeded quota: a-quota"}},
		{"no load balancer left", func(b *bench) { b.quota(amounts("services.loadbalancers=0"), amounts("services.loadbalancers=0")) }, byBalancer,
			"quota", []string{"create service", "limited: services.loadbalancers=0"}},
		{"not counted yet", func(b *bench) { b.quota(amounts("pods=1"), nil) }, cpu("1"), "transient", []string{"status unknown for quota: a-quota"}},
		{"a quota asks for limits", func(b *bench) { b.quota(amounts("limits.cpu=4"), amounts("limits.cpu=0")) }, func(*provider.CreateRequest) {},
			"permanent", []string{"must specify limits.cpu"}},
		{"more than one may have", func(b *bench) {
			b.make(&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "small"}, Spec: corev1.LimitRangeSpec{
				Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Max: amounts("cpu=100m")}}}})
		}, cpu("1"), "permanent", []string{"maximum cpu usage per Container is 100m"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			tc.rules(b)
			isOf(t, b.refused(b.request(tc.asks)), tc.class, tc.words...)
		})
	}
}

func TestPodSecurityTakesTheDefaultPodAndRefusesAPrivilegedOneForGood(t *testing.T) {
	b := newBench(t, "pod-security.kubernetes.io/enforce=restricted", "pod-security.kubernetes.io/enforce-version=latest")
	b.mustCreate(b.request(someFiles))
	b.remove()
	privileged := withSpec(v1alpha1.KubernetesSpec{SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)}})
	isOf(t, b.refused(b.request(privileged)), "permanent", `violates PodSecurity "restricted:latest"`, "privileged")
}

func TestPodSecurityThatForbidsANodesPortForbidsItForGood(t *testing.T) {
	for _, level := range []string{"baseline", "restricted"} {
		t.Run(level, func(t *testing.T) {
			b := newBench(t, "pod-security.kubernetes.io/enforce="+level, "pod-security.kubernetes.io/enforce-version=latest")
			for _, e := range []func(*provider.CreateRequest){byPodIP, byBalancer} {
				b.mustCreate(b.request(e))
				b.remove()
			}
			isOf(t, b.refused(b.request(byHostPort)), "permanent", `violates PodSecurity "`+level+`:latest"`, "hostPort 3128")
		})
	}
}

// What stands in the way is in the Service, not in the spec: no edit of the Proxy
// would help, and nobody tells the hub when it is out of the way.
func TestAServiceThatCannotBePutRightIsTriedAgain(t *testing.T) {
	b := newBench(t)
	b.mustCreate(b.request(byBalancer))
	b.edit(func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "elsewhere.example"
	})
	b.edit(func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalName, s.Spec.ClusterIP = corev1.ServiceTypeClusterIP, "", corev1.ClusterIPNone
	})
	was := b.service()
	isOf(t, b.Repair(t.Context(), b.request(byBalancer)), "lasting", "correct service", "spec.clusterIP")
	b.remove()
	_, err := b.Create(t.Context(), b.request(byBalancer))
	isOf(t, err, "lasting", "correct service", "spec.clusterIP")
	b.serviceIs(was)
}

func TestAPodThatIsNotValidIsRefusedForGoodAndItsFieldNamed(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for _, tc := range []struct {
		name  string
		spec  v1alpha1.KubernetesSpec
		words string
	}{
		{"image", v1alpha1.KubernetesSpec{Image: " proxy:1"}, "spec.containers[0].image"},
		{"environment", v1alpha1.KubernetesSpec{Env: []corev1.EnvVar{{Name: "A=B"}}}, "spec.containers[0].env[2].name"},
		{"resources", v1alpha1.KubernetesSpec{Resources: corev1.ResourceRequirements{Requests: amounts("memory=-1")}}, "spec.containers[0].resources.requests[memory]"},
		{"labels", v1alpha1.KubernetesSpec{PodLabels: map[string]v1alpha1.LabelValue{"a b": "c"}}, "metadata.labels"},
		{"node selector", v1alpha1.KubernetesSpec{NodeSelector: map[string]string{"a b": "c"}}, "spec.nodeSelector"},
		{"size", v1alpha1.KubernetesSpec{Args: []string{long, long, long}}, "too large"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			_, err := b.Create(t.Context(), b.request(withSpec(tc.spec)))
			isOf(t, err, "permanent", tc.words)
		})
	}
}

func TestAServiceAccountThatIsMissingMayBeMade(t *testing.T) {
	b := newBench(t)
	req := b.request(withSpec(v1alpha1.KubernetesSpec{ServiceAccountName: "proxies"}))
	_, err := b.Create(t.Context(), req)
	isOf(t, err, "lasting", `error looking up service account `+b.namespace+`/proxies`)
	b.make(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "proxies"}})
	b.mustCreate(req)
}

func TestANamespaceThatIsGoneOrGoingIsNoMissingInstance(t *testing.T) {
	for _, tc := range []struct {
		files       func(*provider.CreateRequest)
		going, gone string
	}{
		{someFiles, "for a reason Forbidden", "for a reason NotFound"}, // no words about a Secret
		{func(*provider.CreateRequest) {}, "because it is being terminated", `namespaces "no-such-namespace" not found`},
	} {
		files := tc.files
		b := newBench(t)
		if err := b.admin.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.namespace}}); err != nil {
			t.Fatal(err)
		}
		isOf(t, b.refused(b.request(files)), "transient", tc.going)

		b.namespace = "no-such-namespace"
		_, err := b.Create(t.Context(), b.request(files))
		isOf(t, err, "transient", tc.gone)
		_, err = b.Get(t.Context(), b.request().Ref)
		isOf(t, err, "not found")
	}
}

// calls are all that a Provider can be asked.
func calls(p Provider, req provider.CreateRequest) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"create": func(ctx context.Context) error { _, err := p.Create(ctx, req); return err },
		"get":    func(ctx context.Context) error { _, err := p.Get(ctx, req.Ref); return err },
		"repair": func(ctx context.Context) error {
			req := req
			spec := *req.Spec
			spec.Kubernetes = &v1alpha1.KubernetesSpec{Expose: v1alpha1.ExposeLoadBalancer}
			req.Spec = &spec
			return p.Repair(ctx, req)
		},
		"files":   func(ctx context.Context) error { _, err := p.Files(ctx, req.Ref, req.SpecHash); return err },
		"delete":  func(ctx context.Context) error { return p.Delete(ctx, req.Ref, "id", false) },
		"clear":   func(ctx context.Context) error { return p.Clear(ctx, req.Ref, req.Owner) },
		"abandon": func(ctx context.Context) error { return p.Abandon(ctx, req.Ref, req.Owner, "id") },
		"list":    func(ctx context.Context) error { _, err := p.ListByTag(ctx, req.Owner.Hub); return err },
	}
}

// each calls all of them.
func each(t *testing.T, p Provider, req provider.CreateRequest, check func(*testing.T, error)) {
	t.Helper()
	for name, call := range calls(p, req) {
		t.Run(name, func(t *testing.T) { check(t, call(t.Context())) })
	}
}

func TestWithoutRightsNothingIsRefusedForGood(t *testing.T) {
	b := newBench(t)
	each(t, b.as(), b.request(someFiles), func(t *testing.T, err error) {
		isOf(t, err, "lasting", `User "system:serviceaccount:`+b.namespace)
	})
}

func TestOneMissingRightIsNamedAndLasts(t *testing.T) {
	b := newBench(t)
	b.mustCreate(b.request(someFiles))
	pod := b.pod()
	all := []string{"get", "list", "create", "delete", "patch"}
	without := func(verb string) (rest []string) {
		for _, v := range all {
			if v != verb {
				rest = append(rest, v)
			}
		}
		return rest
	}
	finalizers := may("proxies/finalizers", "update")
	create := func(name string) func(Provider) error {
		req := b.request(someFiles, func(req *provider.CreateRequest) { req.Ref.Name, req.Owner.ProxyUID = name, name })
		return func(p Provider) error { _, err := p.Create(t.Context(), req); return err }
	}
	abandon := func(p Provider) error {
		return p.Abandon(t.Context(), b.request().Ref, b.request().Owner, string(pod.UID))
	}
	for _, tc := range []struct {
		name string
		p    Provider
		call func(Provider) error
		says string
	}{
		{"to make a pod", b.as(may("pods", without("create")...), may("secrets", all...), may("services", "get"), finalizers), create("u-2"), `cannot create resource "pods"`},
		{"to make a Secret", b.as(may("pods", all...), may("secrets", without("create")...), finalizers), create("u-3"), `cannot create resource "secrets"`},
		{"to block a Proxy's deletion", b.as(may("pods", all...), may("secrets", all...), may("services", "get")), create("u-4"), "cannot set blockOwnerDeletion if"},
		{"to change a Secret", b.as(may("pods", all...), may("secrets", without("patch")...)), abandon, `cannot patch resource "secrets"`},
		{"to delete what is given away", b.as(may("pods", all...), may("secrets", without("delete")...)), abandon, "cannot set an ownerRef on a resource you can't delete"},
	} {
		t.Run(tc.name, func(t *testing.T) { isOf(t, tc.call(tc.p), "lasting", tc.says) })
	}
	if now := b.pod(); now.ResourceVersion != pod.ResourceVersion {
		t.Errorf("the pod has changed: %+v", now.ObjectMeta)
	}
}

func TestAClusterThatDoesNotKnowProxiesYetIsNotRefusingForGood(t *testing.T) {
	b := newBench(t)
	pod := build(b.request(), "proxy:1")
	pod.OwnerReferences[0].Kind = "Unheard"
	err := b.as(may("pods", "create")).Writer.Create(t.Context(), pod)
	isOf(t, Classified(err), "lasting", "cannot set blockOwnerDeletion in this case because cannot find RESTMapping")
}

func TestAnExpiredTokenLasts(t *testing.T) {
	b := newBench(t)
	each(t, b.at(func(config *rest.Config) { config.BearerToken = "expired" }), b.request(someFiles), func(t *testing.T, err error) {
		isOf(t, err, "lasting", "Unauthorized")
	})
}

// at is the provider as the hub with a client that is configured otherwise.
func (b *bench) at(change func(*rest.Config)) Provider {
	b.t.Helper()
	config, err := b.plane.ServiceAccount(b.t.Context(), "proxy-operator-system", "proxy-operator-hub")
	if err != nil {
		b.t.Fatal(err)
	}
	change(config)
	c, err := client.New(unthrottled(config), client.Options{Scheme: b.scheme, Mapper: b.hub.RESTMapper()})
	if err != nil {
		b.t.Fatal(err)
	}
	p := b.Provider
	p.Reader, p.Writer = c, c
	return p
}

func TestWhatIsNotAnsweredIsTriedAgain(t *testing.T) {
	b := newBench(t)
	req := b.request(someFiles)
	t.Run("cancelled", func(t *testing.T) {
		for name, call := range calls(b.Provider, req) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			err := call(ctx)
			isOf(t, err, "transient")
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	t.Run("too late", func(t *testing.T) {
		for name, call := range calls(b.Provider, req) {
			ctx, cancel := context.WithTimeout(t.Context(), 0)
			defer cancel()
			err := call(ctx)
			isOf(t, err, "transient")
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	t.Run("nobody there", func(t *testing.T) {
		port, err := process.ReservePort("")
		if err != nil {
			t.Fatal(err)
		}
		defer port.Release()
		away := b.at(func(config *rest.Config) { config.Host = fmt.Sprint("https://", port.Address()) })
		each(t, away, req, func(t *testing.T, err error) { isOf(t, err, "transient") })
	})
	b.has()
}
