package apiserver

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// historyLimit is how many changes of a resource a watch may be behind. Thousands of objects
// that come at once are a good test; that a watch misses them is another one.
const historyLimit = 10_000

var (
	errOtherUID = errors.New("the UID is another one")
	errChanged  = errors.New("the object has been modified; please apply your changes to the latest version and try again")
)

// resource is what a cluster holds of one kind of object, and what became of it in one order.
// The cluster's mu guards it.
type resource struct {
	kind   schema.GroupVersionKind
	plural string
	blank  func() client.Object
	// labelled says that label selectors are played; selectable are the fields by which an
	// object can be selected, nil if there are none.
	labelled   bool
	selectable func(client.Object) fields.Set
	// keep puts into next, which is to be written in the place of old, what this write may not
	// change: the status, or all but the status.
	keep func(old, next client.Object, status bool) error
	// stamp sets what the server sets when next is stored; old is nil for a new object.
	stamp func(old, next client.Object)

	missing   bool                                   // the server has never heard of it
	objects   map[types.NamespacedName]client.Object // each never changed once it is here
	history   []change
	forgotten int64 // the last revision that left the history
	round     *round
}

// change is what watches are told of. An object that is gone is as it was, at the revision at
// which it went.
type change struct {
	revision int64
	old, now client.Object // old is nil for a new one
	gone     bool
}

// round is the watches between two cuts.
type round struct {
	cut  chan struct{}
	open int
}

func newRound() *round { return &round{cut: make(chan struct{})} }

func (r *resource) group() schema.GroupResource {
	return schema.GroupResource{Group: r.kind.Group, Resource: r.plural}
}

// path is where the objects of a namespace are, or of all if it is empty.
func (r *resource) path(namespace string) string {
	path := "/apis/" + r.kind.Group + "/" + r.kind.Version
	if r.kind.Group == "" {
		path = "/api/" + r.kind.Version
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	return path + "/" + r.plural
}

// find returns the object, or says why there is none.
func (r *resource) find(key types.NamespacedName) (client.Object, error) {
	switch o := r.objects[key]; {
	case r.missing:
		return nil, errMissing()
	case o == nil:
		return nil, apierrors.NewNotFound(r.group(), key.Name)
	default:
		return o, nil
	}
}

// errMissing is what is said of a resource that a server has never heard of.
func errMissing() error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "", 0, false)
}

// sorted are the objects that are selected, in the order in which they are listed.
func (r *resource) sorted(s selection) []client.Object {
	var all []client.Object
	for _, o := range r.objects {
		if s.has(o) {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b client.Object) int { return strings.Compare(place(a), place(b)) })
	return all
}

// place orders objects and is the token with which a list goes on.
func place(o client.Object) string { return o.GetNamespace() + "/" + o.GetName() }

func keyOf(o client.Object) types.NamespacedName { return client.ObjectKeyFromObject(o) }

func copyOf[T client.Object](o T) T { return o.DeepCopyObject().(T) }

// put creates or replaces the object of that namespace and name, o itself left as it is: watches
// see ADDED or MODIFIED. It assigns the resource version and, where it is missing, the UID; a
// new UID for an old name is another object, seen as DELETED and ADDED.
func (c *Cluster) put(r *resource, o client.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o = copyOf(o)
	old := r.objects[keyOf(o)]
	if old != nil && o.GetUID() != "" && o.GetUID() != old.GetUID() {
		c.remove(r, old)
		old = nil
	}
	if old != nil {
		o.SetUID(old.GetUID())
		if created := o.GetCreationTimestamp(); created.IsZero() {
			o.SetCreationTimestamp(old.GetCreationTimestamp())
		}
	}
	c.store(r, old, o)
}

// drop deletes an object, finalizers or not: watches see DELETED. One that is not there is fine.
func (c *Cluster) drop(r *resource, namespace, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := r.objects[types.NamespacedName{Namespace: namespace, Name: name}]; old != nil {
		c.remove(r, old)
	}
}

// copied is a copy of an object, nil if it is not there.
func copied[T client.Object](c *Cluster, r *resource, namespace, name string) (none T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o, there := r.objects[types.NamespacedName{Namespace: namespace, Name: name}]; there {
		return copyOf(o).(T)
	}
	return none
}

// allCopied are copies of the objects of a namespace, or of all if it is empty, in order.
func allCopied[T client.Object](c *Cluster, r *resource, namespace string) []T {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []T
	for _, o := range r.sorted(selection{namespace: namespace}) {
		all = append(all, copyOf(o).(T))
	}
	return all
}

// store takes next over, in the place of old, which may be nil. The caller holds mu, as for all
// below.
func (c *Cluster) store(r *resource, old, next client.Object) {
	c.revision++
	next.GetObjectKind().SetGroupVersionKind(r.kind)
	next.SetResourceVersion(c.resourceVersion())
	if next.GetUID() == "" {
		next.SetUID(uuid.NewUUID())
	}
	if created := next.GetCreationTimestamp(); created.IsZero() {
		next.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
	}
	r.stamp(old, next)
	r.objects[keyOf(next)] = next
	c.record(r, change{revision: c.revision, old: old, now: next})
}

func (c *Cluster) remove(r *resource, old client.Object) {
	c.revision++
	delete(r.objects, keyOf(old))
	c.record(r, change{revision: c.revision, old: old, now: c.asOfNow(old), gone: true})
}

// asOfNow is a copy at the present revision.
func (c *Cluster) asOfNow(o client.Object) client.Object {
	o = copyOf(o)
	o.SetResourceVersion(c.resourceVersion())
	return o
}

func (c *Cluster) record(r *resource, ch change) {
	r.history = append(r.history, ch)
	if len(r.history) > historyLimit {
		r.forgotten = r.history[0].revision
		r.history = r.history[1:]
	}
	c.wake()
}

func (c *Cluster) resourceVersion() string { return strconv.FormatInt(c.revision, 10) }
