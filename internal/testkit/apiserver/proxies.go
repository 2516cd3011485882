package apiserver

import (
	"net/http"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

func (c *Cluster) listOrWatch(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	switch {
	case query.Get("labelSelector") != "" || query.Get("fieldSelector") != "":
		refuse(w, badRequest("the stand-in does not play selectors"))
	case isWatch(r):
		c.watchProxies(w, r, query)
	default:
		c.answering(http.StatusOK, c.listProxies).ServeHTTP(w, r)
	}
}

// listProxies lists in pages, if asked to. A page shows what is there when it
// is asked for, not what was there when the first one was.
func (c *Cluster) listProxies(r *http.Request) (any, error) {
	if !c.crd.present {
		return nil, errNoCRD()
	}
	query := r.URL.Query()
	limit, err := strconv.Atoi(query.Get("limit"))
	if err != nil {
		limit = 0
	}
	after := query.Get("continue")
	list := v1alpha1.ProxyList{Items: []v1alpha1.Proxy{}}
	list.TypeMeta = metav1.TypeMeta{APIVersion: proxyType.APIVersion, Kind: "ProxyList"}
	list.ResourceVersion = c.resourceVersion()
	for _, p := range c.sorted(r.PathValue("namespace")) {
		if place(p) <= after {
			continue
		}
		if limit > 0 && len(list.Items) == limit {
			list.Continue = place(&list.Items[limit-1])
			break
		}
		list.Items = append(list.Items, *p)
	}
	return list, nil
}

// place orders Proxies and is the token with which a list goes on.
func place(p *v1alpha1.Proxy) string { return p.Namespace + "/" + p.Name }

// errNoCRD is what is said of a resource that a server has never heard of.
func errNoCRD() error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "", 0, false)
}

func (c *Cluster) find(key types.NamespacedName) (*v1alpha1.Proxy, error) {
	switch p := c.proxies[key]; {
	case !c.crd.present:
		return nil, errNoCRD()
	case p == nil:
		return nil, apierrors.NewNotFound(proxiesResource, key.Name)
	default:
		return p, nil
	}
}

func (c *Cluster) getProxy(r *http.Request) (any, error) { return c.find(keyOf(r)) }

func (c *Cluster) putProxy(r *http.Request) (any, error) {
	return c.change(r, func(*v1alpha1.Proxy) (*v1alpha1.Proxy, error) {
		p := &v1alpha1.Proxy{}
		return p, json.Unmarshal(bodyOf(r), p)
	})
}

func (c *Cluster) patchProxy(r *http.Request) (any, error) {
	if kind := r.Header.Get("Content-Type"); kind != string(types.MergePatchType) {
		return nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, r.Method, proxiesResource, "", "the stand-in does not play "+kind, 0, true)
	}
	return c.change(r, func(old *v1alpha1.Proxy) (*v1alpha1.Proxy, error) {
		patch := map[string]any{}
		if err := json.Unmarshal(bodyOf(r), &patch); err != nil {
			return nil, err
		}
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(old)
		if err != nil {
			return nil, err
		}
		p := &v1alpha1.Proxy{}
		return p, runtime.DefaultUnstructuredConverter.FromUnstructured(merge(object, patch), p)
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

// change writes what wanted makes of the Proxy as it is.
func (c *Cluster) change(r *http.Request, wanted func(old *v1alpha1.Proxy) (*v1alpha1.Proxy, error)) (any, error) {
	old, err := c.find(keyOf(r))
	if err != nil {
		return nil, err
	}
	p, err := wanted(old)
	if err != nil {
		return nil, badRequest("read the body: %v", err)
	}
	if err := conflict(old, p); err != nil {
		return nil, err
	}
	p = settled(old, p, strings.HasSuffix(r.URL.Path, "/status"))
	switch {
	case equality.Semantic.DeepEqual(old, p):
		return old, nil // nothing is written, as a real one has it
	case p.DeletionTimestamp != nil && len(p.Finalizers) == 0:
		c.remove(old)
	default:
		c.store(old, p)
	}
	return p, nil
}

func conflict(old, p *v1alpha1.Proxy) error {
	switch {
	case p.UID != "" && p.UID != old.UID:
		return apierrors.NewConflict(proxiesResource, old.Name, errOtherUID)
	case p.ResourceVersion != "" && p.ResourceVersion != old.ResourceVersion:
		return apierrors.NewConflict(proxiesResource, old.Name, errChanged)
	}
	return nil
}

// settled is p with all that this write may not change as it was: the status
// or all but the status, and what the server alone sets.
func settled(old, p *v1alpha1.Proxy, status bool) *v1alpha1.Proxy {
	if status {
		next := old.DeepCopy()
		p.Status.DeepCopyInto(&next.Status)
		return next
	}
	p.TypeMeta = proxyType
	p.Name, p.Namespace, p.UID, p.ResourceVersion = old.Name, old.Namespace, old.UID, old.ResourceVersion
	p.Generation, p.CreationTimestamp, p.DeletionTimestamp = old.Generation, old.CreationTimestamp, old.DeletionTimestamp
	old.Status.DeepCopyInto(&p.Status)
	return p
}
