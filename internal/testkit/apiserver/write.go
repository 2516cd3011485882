package apiserver

import (
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// answer makes the answer to a request about a resource, under mu.
type answer func(*resource, *http.Request) (any, error)

// named is what the path names.
func named(req *http.Request) types.NamespacedName {
	return types.NamespacedName{Namespace: req.PathValue("namespace"), Name: req.PathValue("name")}
}

func (c *Cluster) get(r *resource, req *http.Request) (any, error) {
	o, err := r.find(named(req))
	if err != nil {
		return nil, err
	}
	return shown(o, wantsMetadata(req)), nil
}

func (c *Cluster) create(r *resource, req *http.Request) (any, error) {
	o := r.blank()
	if err := decode(bodyOf(req), r.kind, o); err != nil {
		return nil, err
	}
	namespace := req.PathValue("namespace")
	if o.GetNamespace() != "" && o.GetNamespace() != namespace {
		return nil, badRequest("the namespace of the object is %s, that of the request is %s", o.GetNamespace(), namespace)
	}
	o.SetNamespace(namespace)
	switch {
	case o.GetName() == "":
		return nil, badRequest("the object has no name")
	case r.objects[keyOf(o)] != nil:
		return nil, apierrors.NewAlreadyExists(r.group(), o.GetName())
	}
	// Only the server sets these.
	o.SetUID("")
	o.SetCreationTimestamp(metav1.Time{})
	o.SetDeletionTimestamp(nil)
	c.store(r, nil, o)
	return shown(o, wantsMetadata(req)), nil
}

// update writes what the body says.
func (c *Cluster) update(r *resource, req *http.Request) (any, error) {
	return c.change(r, req, func(client.Object) (client.Object, error) {
		next := r.blank()
		return next, json.Unmarshal(bodyOf(req), next)
	})
}

// patch applies the body to what is there. A strategic merge patch is played for Events alone,
// which have no list that it could concern.
func (c *Cluster) patch(r *resource, req *http.Request) (any, error) {
	switch kind := types.PatchType(req.Header.Get("Content-Type")); {
	case kind == types.MergePatchType:
	case kind == types.StrategicMergePatchType && r == c.events:
	default:
		return nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, req.Method, r.group(), "", "the stand-in does not play "+string(kind), 0, true)
	}
	return c.change(r, req, func(old client.Object) (client.Object, error) {
		patch := map[string]any{}
		if err := json.Unmarshal(bodyOf(req), &patch); err != nil {
			return nil, err
		}
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(old)
		if err != nil {
			return nil, err
		}
		next := r.blank()
		return next, runtime.DefaultUnstructuredConverter.FromUnstructured(merge(object, patch), next)
	})
}

// merge applies a JSON merge patch (RFC 7396) to target.
func merge(target, patch map[string]any) map[string]any {
	for key, value := range patch {
		switch value := value.(type) {
		case nil:
			delete(target, key)
		case map[string]any:
			into, ok := target[key].(map[string]any)
			if !ok {
				into = map[string]any{}
			}
			target[key] = merge(into, value)
		default:
			target[key] = value
		}
	}
	return target
}

// change writes what wanted makes of the object as it is.
func (c *Cluster) change(r *resource, req *http.Request, wanted func(old client.Object) (client.Object, error)) (any, error) {
	old, err := r.find(named(req))
	if err != nil {
		return nil, err
	}
	next, err := wanted(old)
	if err != nil {
		return nil, badRequest("read the body: %v", err)
	}
	uid, version := next.GetUID(), next.GetResourceVersion()
	if err := r.conflict(old, &uid, &version); err != nil {
		return nil, err
	}
	kept(old, next)
	if err := r.keep(old, next, strings.HasSuffix(req.URL.Path, "/status")); err != nil {
		return nil, err
	}
	switch {
	case equality.Semantic.DeepEqual(old, next):
		next = old // nothing is written, as a real one has it
	case next.GetDeletionTimestamp() != nil && len(next.GetFinalizers()) == 0:
		c.remove(r, old)
	default:
		c.store(r, old, next)
	}
	return shown(next, wantsMetadata(req)), nil
}

// conflict holds an object against what a write says of it; nothing or nil is no condition.
func (r *resource) conflict(o client.Object, uid *types.UID, version *string) error {
	switch {
	case uid != nil && *uid != "" && *uid != o.GetUID():
		return apierrors.NewConflict(r.group(), o.GetName(), errOtherUID)
	case version != nil && *version != "" && *version != o.GetResourceVersion():
		return apierrors.NewConflict(r.group(), o.GetName(), errChanged)
	}
	return nil
}

// kept puts into next what the server alone sets.
func kept(old, next client.Object) {
	next.GetObjectKind().SetGroupVersionKind(old.GetObjectKind().GroupVersionKind())
	next.SetNamespace(old.GetNamespace())
	next.SetName(old.GetName())
	next.SetUID(old.GetUID())
	next.SetResourceVersion(old.GetResourceVersion())
	next.SetGeneration(old.GetGeneration())
	next.SetCreationTimestamp(old.GetCreationTimestamp())
	next.SetDeletionTimestamp(old.GetDeletionTimestamp())
	next.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
}

// delete removes the object at once, a pod too: there is no node to stop it. One with
// finalizers is marked, and goes with the last of them.
func (c *Cluster) delete(r *resource, req *http.Request) (any, error) {
	options := &metav1.DeleteOptions{}
	if body := bodyOf(req); len(body) > 0 {
		if err := decode(body, deleteOptionsKind, options); err != nil {
			return nil, err
		}
	}
	old, err := r.find(named(req))
	if err != nil {
		return nil, err
	}
	if p := options.Preconditions; p != nil {
		if err := r.conflict(old, p.UID, p.ResourceVersion); err != nil {
			return nil, err
		}
	}
	switch {
	case len(old.GetFinalizers()) == 0:
		c.remove(r, old)
	case old.GetDeletionTimestamp() == nil:
		marked, now := copyOf(old), metav1.Now().Rfc3339Copy()
		marked.SetDeletionTimestamp(&now)
		c.store(r, old, marked)
	}
	return metav1.Status{TypeMeta: statusType, Status: metav1.StatusSuccess, Code: http.StatusOK}, nil
}
