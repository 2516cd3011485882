package pod

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// patience is how long a test waits for what an API server does by and by.
const patience = 30 * time.Second

// bench is a namespace of the API server and the provider in it.
type bench struct {
	server
	Provider
	t         *testing.T
	namespace string
}

func newBench(t *testing.T, labels ...string) *bench {
	t.Helper()
	s, err := theServer()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{server: s, t: t, Provider: Provider{Reader: s.hub, Writer: s.hub, DefaultImage: "registry.example/proxy:1"}}
	b.namespace = b.newNamespace(labels...)
	return b
}

// newNamespace makes one, with what a controller-manager puts into it.
func (b *bench) newNamespace(labels ...string) string {
	b.t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "crawl-", Labels: map[string]string{}}}
	for _, label := range labels {
		key, value, _ := strings.Cut(label, "=")
		ns.Labels[key] = value
	}
	b.make(ns)
	b.make(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "default"}})
	return ns.Name
}

func (b *bench) make(o client.Object) {
	b.t.Helper()
	if err := b.admin.Create(b.t.Context(), o); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) drop(o client.Object) {
	b.t.Helper()
	if err := b.admin.Delete(b.t.Context(), o); err != nil {
		b.t.Fatal(err)
	}
}

// request asks for an instance in the bench's namespace.
func (b *bench) request(changes ...func(*provider.CreateRequest)) provider.CreateRequest {
	return request(append([]func(*provider.CreateRequest){func(req *provider.CreateRequest) { req.Ref.Namespace = b.namespace }}, changes...)...)
}

func (b *bench) mustCreate(req provider.CreateRequest) provider.Instance {
	b.t.Helper()
	inst, err := b.Create(b.t.Context(), req)
	if err != nil {
		b.t.Fatal(err)
	}
	return inst
}

// as returns the provider with the rights of a ServiceAccount that has these
// rules in the bench's namespace alone.
func (b *bench) as(rules ...rbacv1.PolicyRule) Provider {
	b.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, GenerateName: "hub-"}}
	b.make(account)
	b.make(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: account.Name}, Rules: rules})
	b.make(&rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: account.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: account.Name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: b.namespace, Name: account.Name}},
	})
	config, err := b.plane.ServiceAccount(b.t.Context(), b.namespace, account.Name)
	if err != nil {
		b.t.Fatal(err)
	}
	c, err := client.New(unthrottled(config), client.Options{Scheme: b.scheme})
	if err != nil {
		b.t.Fatal(err)
	}
	p := b.Provider
	p.Reader, p.Writer = c, c
	for _, rule := range rules { // until the authorizer has seen the binding
		b.until(func(ctx context.Context) bool { return b.allowed(ctx, account, rule) })
	}
	return p
}

// allowed says whether an account may do what the rule says.
func (b *bench) allowed(ctx context.Context, account *corev1.ServiceAccount, rule rbacv1.PolicyRule) bool {
	b.t.Helper()
	resource, sub, _ := strings.Cut(rule.Resources[0], "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + account.Namespace + ":" + account.Name,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: b.namespace, Verb: rule.Verbs[0], Group: rule.APIGroups[0], Resource: resource, Subresource: sub,
		},
	}}
	if err := b.admin.Create(ctx, review); err != nil {
		b.t.Fatal(err)
	}
	return review.Status.Allowed
}

// may is a rule about resources of the core group, or of this project's.
func may(resource string, verbs ...string) rbacv1.PolicyRule {
	group := ""
	if strings.HasPrefix(resource, "proxies") {
		group = v1alpha1.GroupVersion.Group
	}
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// until waits for a condition.
func (b *bench) until(done func(context.Context) bool) {
	b.t.Helper()
	err := wait.PollUntilContextTimeout(b.t.Context(), 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) { return done(ctx), nil })
	if err != nil {
		b.t.Fatal(err)
	}
}

// pod is the instance's, nil where there is none.
func (b *bench) pod() *corev1.Pod {
	b.t.Helper()
	var pod corev1.Pod
	err := b.admin.Get(b.t.Context(), client.ObjectKey{Namespace: b.namespace, Name: b.request().Ref.Name}, &pod)
	if client.IgnoreNotFound(err) != nil {
		b.t.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return &pod
}

// secretNames are those of the namespace.
func (b *bench) secretNames() []string {
	b.t.Helper()
	var list corev1.SecretList
	if err := b.admin.List(b.t.Context(), &list, client.InNamespace(b.namespace)); err != nil {
		b.t.Fatal(err)
	}
	names := []string{}
	for _, s := range list.Items {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	return names
}

// has fails unless the namespace's Secrets are exactly these.
func (b *bench) has(want ...string) {
	b.t.Helper()
	slices.Sort(want)
	if got := b.secretNames(); !slices.Equal(got, want) {
		b.t.Errorf("Secrets %q, want %q", got, want)
	}
}

func (b *bench) secret(name string) *corev1.Secret {
	b.t.Helper()
	var s corev1.Secret
	if err := b.admin.Get(b.t.Context(), client.ObjectKey{Namespace: b.namespace, Name: name}, &s); err != nil {
		b.t.Fatal(err)
	}
	return &s
}

// bind puts the pod onto a node: from now on its deletion waits for a kubelet.
func (b *bench) bind(pod *corev1.Pod) {
	b.t.Helper()
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: "node-1"}}
	if err := b.admin.SubResource("binding").Create(b.t.Context(), pod, binding); err != nil {
		b.t.Fatal(err)
	}
	// A deletion begins with what the API server's cache has, and a pod without a
	// node goes at once: until the cache has seen it.
	b.until(func(ctx context.Context) bool {
		var cached corev1.Pod
		err := b.admin.Get(ctx, client.ObjectKeyFromObject(pod), &cached, &client.GetOptions{Raw: &metav1.GetOptions{ResourceVersion: "0"}})
		return err == nil && cached.UID == pod.UID && cached.Spec.NodeName != ""
	})
}

// remove takes the instance's pod away at once.
func (b *bench) remove() {
	b.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: b.request().Ref.Name}}
	if err := b.admin.Delete(b.t.Context(), pod, &client.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); client.IgnoreNotFound(err) != nil {
		b.t.Fatal(err)
	}
}
