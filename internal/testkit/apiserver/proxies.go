package apiserver

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

func proxies() *resource {
	return &resource{
		kind: v1alpha1.GroupVersion.WithKind("Proxy"), plural: "proxies",
		blank: func() client.Object { return &v1alpha1.Proxy{} },
		keep: func(old, next client.Object, status bool) error {
			o, n := old.(*v1alpha1.Proxy), next.(*v1alpha1.Proxy)
			if status {
				said := n.Status
				o.DeepCopyInto(n)
				said.DeepCopyInto(&n.Status)
				return nil
			}
			o.Status.DeepCopyInto(&n.Status)
			return nil
		},
		stamp: func(old, next client.Object) {
			generation := int64(1)
			if old != nil {
				generation = old.GetGeneration()
				if !equality.Semantic.DeepEqual(old.(*v1alpha1.Proxy).Spec, next.(*v1alpha1.Proxy).Spec) {
					generation++
				}
			}
			next.SetGeneration(max(next.GetGeneration(), generation))
		},
	}
}

// Put creates or replaces the Proxy of that namespace and name, p itself left
// as it is: watches see ADDED or MODIFIED. It assigns the resource version and,
// where it is missing, the UID; a new UID for an old name is another Proxy,
// seen as DELETED and ADDED. The generation grows with a change of the spec.
func (c *Cluster) Put(p *v1alpha1.Proxy) { c.put(c.proxies, p) }

// Remove deletes a Proxy, finalizers or not: watches see DELETED. One that is
// not there is fine.
func (c *Cluster) Remove(namespace, name string) { c.drop(c.proxies, namespace, name) }

// Get is a copy of a Proxy, nil if it is not there.
func (c *Cluster) Get(namespace, name string) *v1alpha1.Proxy {
	return copied[*v1alpha1.Proxy](c, c.proxies, namespace, name)
}
