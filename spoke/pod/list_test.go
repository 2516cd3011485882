package pod

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// populate makes n instances of a hub in a namespace and returns how they read.
// Every other one runs or is going.
func (b *bench) populate(namespace, hub string, n int) (all []provider.Instance) {
	b.t.Helper()
	for i := range n {
		req := b.request(func(req *provider.CreateRequest) {
			req.Ref = provider.Ref{Namespace: namespace, Name: fmt.Sprintf("proxy-%s-%d", hub, i)}
			req.Owner = provider.Owner{ProxyUID: fmt.Sprint("u-", i), Hub: hub, ClusterUID: "cluster-1"}
		})
		b.mustCreate(req)
		key := client.ObjectKey{Namespace: namespace, Name: req.Ref.Name}
		var pod corev1.Pod
		read := func() {
			if err := b.admin.Get(b.t.Context(), key, &pod); err != nil {
				b.t.Fatal(err)
			}
		}
		if read(); i%2 == 0 {
			pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fmt.Sprint("10.0.0.", i+1), PodIPs: []corev1.PodIP{{IP: fmt.Sprint("10.0.0.", i+1)}}, ContainerStatuses: []corev1.ContainerStatus{
				{Name: containerName, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
			}}
			if err := b.admin.Status().Update(b.t.Context(), &pod); err != nil {
				b.t.Fatal(err)
			}
		}
		if i%4 == 0 {
			b.bind(&pod)
			if err := b.admin.Delete(b.t.Context(), &pod); err != nil {
				b.t.Fatal(err)
			}
		}
		pod = corev1.Pod{}
		read()
		all = append(all, instance(&pod))
	}
	return all
}

func byName(list []provider.Instance) []provider.Instance {
	return slices.SortedFunc(slices.Values(list), func(a, b provider.Instance) int { return strings.Compare(a.ProviderID, b.ProviderID) })
}

// lists fails unless the listing holds these instances and unanswered scopes.
func lists(t *testing.T, got provider.Listing, want []provider.Instance, unanswered ...string) {
	t.Helper()
	if g, w := byName(got.Instances), byName(want); !reflect.DeepEqual(g, w) {
		t.Errorf("listed %d %+v,\nwant %d %+v", len(g), g, len(w), w)
	}
	if !slices.Equal(got.Unanswered, unanswered) {
		t.Errorf("unanswered %q, want %q", got.Unanswered, unanswered)
	}
}

func TestEveryInstanceOfThisHubIsListedAndNoOthersHoweverManyPages(t *testing.T) {
	b := newBench(t)
	hub := b.namespace
	want := append(b.populate(b.namespace, hub, 5), b.populate(b.newNamespace(), hub, 6)...)
	b.populate(b.namespace, hub+"-other", 2)
	b.make(podThat(func(pod *corev1.Pod) {
		pod.Namespace = b.namespace
		delete(pod.Labels, v1alpha1.LabelHub)
	}))
	for _, size := range []int64{1, 4, 11, 0} {
		t.Run(fmt.Sprint(size, " at a time"), func(t *testing.T) {
			calls := 0
			p := b.Provider
			p.pageSize = size
			p.Reader = interceptor.NewClient(b.hub, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					calls++
					return c.List(ctx, list, opts...)
				},
			})
			listing, err := p.ListByTag(t.Context(), hub)
			if err != nil {
				t.Fatal(err)
			}
			lists(t, listing, want)
			// One more where others' pods come last.
			if pages := map[int64]int{1: 11, 4: 3, 11: 1, 0: 1}[size]; calls != pages && calls != pages+1 {
				t.Errorf("asked %d times for %d pages", calls, pages)
			}
		})
	}
	listing, err := b.ListByTag(t.Context(), "nobody")
	if err != nil {
		t.Fatal(err)
	}
	lists(t, listing, nil)
}

func TestANamespaceThatMayNotBeReadIsNamedAndTheRestIsListed(t *testing.T) {
	b := newBench(t)
	hub, closed := b.namespace, b.newNamespace()
	want := b.populate(b.namespace, hub, 3)
	b.populate(closed, hub, 1)
	p := b.as(may("pods", "list"))
	p.pageSize = 2

	p.Namespaces = []string{closed, b.namespace, "no-such-namespace"}
	listing, err := p.ListByTag(t.Context(), hub)
	if err != nil {
		t.Fatal(err)
	}
	lists(t, listing, want, closed, "no-such-namespace")

	for _, scopes := range [][]string{{closed}, {closed, "no-such-namespace"}, nil} {
		p.Namespaces = scopes
		listing, err = p.ListByTag(t.Context(), hub)
		isOf(t, err, "lasting", `cannot list resource "pods"`)
		if scopes == nil {
			scopes = []string{""}
		}
		lists(t, listing, nil, scopes...)
	}
}

func TestAScopeThatFailsHalfWayIsNotListedByHalves(t *testing.T) {
	b := newBench(t)
	hub, broken := b.namespace, b.newNamespace()
	want := b.populate(b.namespace, hub, 3)
	b.populate(broken, hub, 3)
	p := b.Provider
	p.pageSize, p.Namespaces = 1, []string{broken, b.namespace}
	p.Reader = interceptor.NewClient(b.hub, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			asked := (&client.ListOptions{}).ApplyOptions(opts)
			if asked.Namespace == broken && asked.Continue != "" {
				return context.DeadlineExceeded
			}
			return c.List(ctx, list, opts...)
		},
	})
	listing, err := p.ListByTag(t.Context(), hub)
	if err != nil {
		t.Fatal(err)
	}
	lists(t, listing, want, broken)
}
