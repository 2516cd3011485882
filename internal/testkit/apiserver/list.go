package apiserver

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// selection is which objects of a resource are listed or watched: those of a namespace, or of
// all if it is empty, that the selectors, if there are any, match.
type selection struct {
	namespace string
	labels    labels.Selector
	fields    fields.Selector
	of        func(client.Object) fields.Set
}

func (s selection) has(o client.Object) bool {
	return (s.namespace == "" || s.namespace == o.GetNamespace()) &&
		(s.labels == nil || s.labels.Matches(labels.Set(o.GetLabels()))) &&
		(s.fields == nil || s.fields.Matches(s.of(o)))
}

// selected reads the selectors of a request. What is not played is refused.
func (r *resource) selected(namespace string, query url.Values) (selection, error) {
	s := selection{namespace: namespace, of: r.selectable}
	byLabel, byField := query.Get("labelSelector"), query.Get("fieldSelector")
	if byLabel != "" && !r.labelled || byField != "" && r.selectable == nil {
		return s, badRequest("the stand-in does not play selectors of %s", r.plural)
	}
	var err error
	if byLabel != "" {
		if s.labels, err = labels.Parse(byLabel); err != nil {
			return s, badRequest("label selector %q: %v", byLabel, err)
		}
	}
	if byField != "" {
		if s.fields, err = fields.ParseSelector(byField); err != nil {
			return s, badRequest("field selector %q: %v", byField, err)
		}
		known := r.selectable(r.blank())
		for _, requirement := range s.fields.Requirements() {
			if !known.Has(requirement.Field) {
				return s, badRequest("field label not supported: %s", requirement.Field)
			}
		}
	}
	return s, nil
}

func (c *Cluster) listOrWatch(r *resource) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		query := req.URL.Query()
		s, err := r.selected(req.PathValue("namespace"), query)
		switch {
		case err != nil:
			refuse(w, err)
		case isWatch(req):
			c.watch(w, req, r, s, query)
		default:
			c.answering(http.StatusOK, func(req *http.Request) (any, error) { return c.list(r, s, req) }).ServeHTTP(w, req)
		}
	}
}

// list is any kind of list.
type list struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []any `json:"items"`
}

// list lists in pages, if asked to. A page shows what is there when it is asked for, not what
// was there when the first one was.
func (c *Cluster) list(r *resource, s selection, req *http.Request) (any, error) {
	if r.missing {
		return nil, errMissing()
	}
	query := req.URL.Query()
	limit, err := strconv.Atoi(query.Get("limit"))
	if err != nil {
		limit = 0
	}
	after, bare := query.Get("continue"), wantsMetadata(req)
	kind := r.kind
	if bare {
		kind = bareKind
	}
	all := list{TypeMeta: typeOf(kind), Items: []any{}}
	all.Kind += "List"
	all.ResourceVersion = c.resourceVersion()
	last := ""
	for _, o := range r.sorted(s) {
		if place(o) <= after {
			continue
		}
		if limit > 0 && len(all.Items) == limit {
			all.Continue = last
			break
		}
		all.Items, last = append(all.Items, shown(o, bare)), place(o)
	}
	return all, nil
}

func typeOf(kind schema.GroupVersionKind) (t metav1.TypeMeta) {
	t.APIVersion, t.Kind = kind.ToAPIVersionAndKind()
	return t
}

var bareKind = metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata")

// shown is the object, or its bare metadata.
func shown(o client.Object, bare bool) any {
	if !bare {
		return o
	}
	return metadata(o)
}

func metadata(o metav1.Object) *metav1.PartialObjectMetadata {
	m := meta.AsPartialObjectMetadata(o)
	m.SetGroupVersionKind(bareKind)
	return m
}

// wantsMetadata says that the client asks for bare metadata, of an object or of a list.
func wantsMetadata(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as="+bareKind.Kind)
}
