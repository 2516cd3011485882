package apiserver

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// historyLimit is how many changes a watch may be behind.
const historyLimit = 1000

var (
	proxiesResource = v1alpha1.GroupVersion.WithResource("proxies").GroupResource()
	proxyType       = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Proxy"}

	errOtherUID = errors.New("the UID is another one")
	errChanged  = errors.New("the object has been modified; please apply your changes to the latest version and try again")
)

// change is a line of a watch.
type change struct {
	revision  int64
	namespace string
	line      []byte
}

// Put creates or replaces the Proxy of that namespace and name, p itself left
// as it is: watches see ADDED or MODIFIED. It assigns the resource version and,
// where it is missing, the UID; a new UID for an old name is another Proxy,
// seen as DELETED and ADDED. The generation grows with a change of the spec.
func (c *Cluster) Put(p *v1alpha1.Proxy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p = p.DeepCopy()
	key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	old := c.proxies[key]
	if old != nil && p.UID != "" && p.UID != old.UID {
		c.remove(old)
		old = nil
	}
	switch {
	case old != nil:
		p.UID = old.UID
	case p.UID == "":
		p.UID = uuid.NewUUID()
	}
	if p.CreationTimestamp.IsZero() {
		p.CreationTimestamp = metav1.Now().Rfc3339Copy()
		if old != nil {
			p.CreationTimestamp = old.CreationTimestamp
		}
	}
	c.store(old, p)
}

// Remove deletes a Proxy, finalizers or not: watches see DELETED. One that is
// not there is fine.
func (c *Cluster) Remove(namespace, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.proxies[types.NamespacedName{Namespace: namespace, Name: name}]; old != nil {
		c.remove(old)
	}
}

// Get is a copy of a Proxy, nil if it is not there.
func (c *Cluster) Get(namespace, name string) *v1alpha1.Proxy {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proxies[types.NamespacedName{Namespace: namespace, Name: name}].DeepCopy()
}

// store takes p over, in the place of old, which may be nil. The caller holds
// mu, as for all below.
func (c *Cluster) store(old, p *v1alpha1.Proxy) {
	c.revision++
	p.TypeMeta = proxyType
	p.ResourceVersion = c.resourceVersion()
	kind, generation := watch.Added, int64(1)
	if old != nil {
		kind, generation = watch.Modified, old.Generation
		if !equality.Semantic.DeepEqual(old.Spec, p.Spec) {
			generation++
		}
	}
	p.Generation = max(p.Generation, generation)
	c.proxies[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = p
	c.record(kind, p)
}

func (c *Cluster) remove(old *v1alpha1.Proxy) {
	c.revision++
	gone := old.DeepCopy()
	gone.ResourceVersion = c.resourceVersion()
	delete(c.proxies, types.NamespacedName{Namespace: old.Namespace, Name: old.Name})
	c.record(watch.Deleted, gone)
}

func (c *Cluster) record(kind watch.EventType, p *v1alpha1.Proxy) {
	c.history = append(c.history, change{c.revision, p.Namespace, line(kind, p)})
	if len(c.history) > historyLimit {
		c.forgotten = c.history[0].revision
		c.history = c.history[1:]
	}
	c.wake()
}

func (c *Cluster) resourceVersion() string { return strconv.FormatInt(c.revision, 10) }

// sorted are the Proxies of a namespace, or of all if it is empty, in the
// order in which they are listed.
func (c *Cluster) sorted(namespace string) []*v1alpha1.Proxy {
	var all []*v1alpha1.Proxy
	for _, p := range c.proxies {
		if namespace == "" || p.Namespace == namespace {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *v1alpha1.Proxy) int { return strings.Compare(place(a), place(b)) })
	return all
}

// line is an event as a watch sends it.
func line(kind watch.EventType, object runtime.Object) []byte {
	return append(encode(metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Object: object}}), '\n')
}
