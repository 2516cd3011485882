package apiserver

import (
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func pods() *resource {
	return &resource{
		kind: corev1.SchemeGroupVersion.WithKind("Pod"), plural: "pods", labelled: true,
		blank: func() client.Object { return &corev1.Pod{} },
		keep: func(old, next client.Object, status bool) error {
			o, n := old.(*corev1.Pod), next.(*corev1.Pod)
			if status {
				said := n.Status
				o.DeepCopyInto(n)
				said.DeepCopyInto(&n.Status)
				return nil
			}
			if !equality.Semantic.DeepEqual(o.Spec, n.Spec) {
				return badRequest("the stand-in does not play changes of a pod's spec")
			}
			o.Status.DeepCopyInto(&n.Status)
			return nil
		},
		stamp: func(_, next client.Object) {
			if p := next.(*corev1.Pod); p.Status.Phase == "" {
				p.Status.Phase = corev1.PodPending
			}
		},
	}
}

// PutPod creates or replaces a pod, as Put does a Proxy.
func (c *Cluster) PutPod(p *corev1.Pod) { c.put(c.pods, p) }

// RemovePod deletes a pod, as Remove does a Proxy.
func (c *Cluster) RemovePod(namespace, name string) { c.drop(c.pods, namespace, name) }

// Pod is a copy of a pod, nil if it is not there.
func (c *Cluster) Pod(namespace, name string) *corev1.Pod {
	return copied[*corev1.Pod](c, c.pods, namespace, name)
}

// Pods are copies of the pods of a namespace, or of all if it is empty, in order.
func (c *Cluster) Pods(namespace string) []*corev1.Pod {
	return allCopied[*corev1.Pod](c, c.pods, namespace)
}

// SetPodStatus gives a pod a status, as its node would, and says whether it is there.
func (c *Cluster) SetPodStatus(namespace, name string, status corev1.PodStatus) bool {
	return c.setPodStatus(types.NamespacedName{Namespace: namespace, Name: name}, "", status)
}

// setPodStatus changes the pod with that UID; an empty one means any.
func (c *Cluster) setPodStatus(key types.NamespacedName, uid types.UID, status corev1.PodStatus) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, there := c.pods.objects[key].(*corev1.Pod)
	if !there || uid != "" && uid != old.UID {
		return false
	}
	next := old.DeepCopy()
	status.DeepCopyInto(&next.Status)
	if !equality.Semantic.DeepEqual(old, next) {
		c.store(c.pods, old, next)
	}
	return true
}

// RunPods has every pod that a client creates from now on get the status that node makes of it,
// before the client has its answer: watches see the pod ADDED and then MODIFIED. node may be
// called by several goroutines at once; nil takes it back.
func (c *Cluster) RunPods(node func(*corev1.Pod) corev1.PodStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.node = node
}

// createPod creates a pod and lets it run. The answer shows it as it was created.
func (c *Cluster) createPod(req *http.Request) (any, error) {
	var node func(*corev1.Pod) corev1.PodStatus
	created, err := c.locked(func(req *http.Request) (any, error) {
		node = c.node
		return c.create(c.pods, req)
	})(req)
	if err != nil || node == nil {
		return created, err
	}
	o := created.(metav1.Object)
	key := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
	if pod := c.Pod(key.Namespace, key.Name); pod != nil && pod.UID == o.GetUID() {
		c.setPodStatus(key, pod.UID, node(pod)) // not under mu: it is not ours
	}
	return created, nil
}
