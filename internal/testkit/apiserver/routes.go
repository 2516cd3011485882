package apiserver

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// Paths for Cluster.Answer.
const (
	VersionPath       = "/version"
	KubeSystemPath    = "/api/v1/namespaces/kube-system"
	CRDPath           = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + v1alpha1.ProxyCRDName
	AccessReviewsPath = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	ProxiesPath       = "/apis/crawl.proxyfleet.dev/v1alpha1/proxies" // in all namespaces
)

// maxBody bounds a request's body.
const maxBody = 4 << 20

func (c *Cluster) routes() *http.ServeMux {
	const (
		namespaced = "/apis/crawl.proxyfleet.dev/v1alpha1/namespaces/{namespace}/proxies"
		pods       = "/api/v1/namespaces/{namespace}/pods"
	)
	mux := http.NewServeMux()
	mux.HandleFunc("/", notPlayed)
	mux.Handle("GET "+VersionPath, c.answering(http.StatusOK, c.getVersion))
	mux.Handle("GET "+KubeSystemPath, c.answering(http.StatusOK, c.getKubeSystem))
	mux.Handle("GET "+CRDPath, c.answering(http.StatusOK, c.getCRD))
	mux.Handle("POST "+AccessReviewsPath, c.answering(http.StatusCreated, c.reviewAccess))
	mux.HandleFunc("GET "+ProxiesPath, c.listOrWatch)
	mux.HandleFunc("GET "+namespaced, c.listOrWatch)
	mux.Handle("GET "+namespaced+"/{name}", c.answering(http.StatusOK, c.getProxy))
	mux.Handle("PUT "+namespaced+"/{name}", c.answering(http.StatusOK, c.putProxy))
	mux.Handle("PATCH "+namespaced+"/{name}", c.answering(http.StatusOK, c.patchProxy))
	mux.Handle("PUT "+namespaced+"/{name}/status", c.answering(http.StatusOK, c.putProxy))
	mux.Handle("PATCH "+namespaced+"/{name}/status", c.answering(http.StatusOK, c.patchProxy))
	mux.Handle("POST "+pods, c.answering(http.StatusCreated, c.createPod))
	mux.Handle("GET "+pods+"/{name}", c.answering(http.StatusOK, c.getPod))
	mux.Handle("DELETE "+pods+"/{name}", c.answering(http.StatusOK, c.deletePod))
	return mux
}

// answering answers with the object or the refusal of answer, which holds mu.
// A client that does not read holds up nobody else: nothing is written under mu.
func (c *Cluster) answering(code int, answer func(*http.Request) (any, error)) http.Handler {
	locked := func(r *http.Request) (any, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return answer(r)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		object, err := locked(r)
		if err != nil {
			refuse(w, err)
			return
		}
		reply(w, code, object) // what is stored never changes
	})
}

// serve plays the faults that no path escapes before it answers.
func (c *Cluster) serve(w http.ResponseWriter, r *http.Request) {
	// Only once the body is read does net/http notice that a client is gone.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		refuse(w, badRequest("read the body: %v", err))
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	answer, overridden, unavailable := c.note(r)
	switch {
	case unavailable:
		panic(http.ErrAbortHandler)
	case overridden && answer.Hang:
		select {
		case <-r.Context().Done():
		case <-c.server.done:
		}
		panic(http.ErrAbortHandler)
	case overridden:
		answer.write(w)
	default:
		c.mux.ServeHTTP(w, r)
	}
}

// note records the request and says what is to become of it.
func (c *Cluster) note(r *http.Request) (answer Answer, overridden, unavailable bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	verb := r.Method
	if isWatch(r) {
		verb = "WATCH"
	} else {
		answer, overridden = c.answers[r.URL.Path]
	}
	c.requests = append(c.requests, verb+" "+r.URL.Path)
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok && !slices.Contains(c.tokens, token) {
		c.tokens = append(c.tokens, token)
	}
	return answer, overridden, c.unavailable
}

func isWatch(r *http.Request) bool {
	watch, err := strconv.ParseBool(r.URL.Query().Get("watch"))
	return err == nil && watch
}

func (c *Cluster) getVersion(*http.Request) (any, error) {
	return version.Info{GitVersion: c.version}, nil
}

func (c *Cluster) getKubeSystem(r *http.Request) (any, error) {
	meta := metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: types.UID(c.uid)}
	if wantsMetadata(r) {
		return metadata(meta), nil
	}
	return corev1.Namespace{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: meta,
		Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
	}, nil
}

func (c *Cluster) getCRD(r *http.Request) (any, error) {
	if !c.crd.present {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, v1alpha1.ProxyCRDName)
	}
	meta := metav1.ObjectMeta{Name: v1alpha1.ProxyCRDName, UID: types.UID(c.uid + "-crd")}
	if c.crd.schemaVersion != "" {
		meta.Annotations = map[string]string{v1alpha1.AnnotationSchemaVersion: c.crd.schemaVersion}
	}
	if wantsMetadata(r) {
		return metadata(meta), nil
	}
	return map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": meta,
		"spec": map[string]any{
			"group": v1alpha1.GroupVersion.Group, "scope": "Namespaced",
			"names":    map[string]any{"kind": "Proxy", "listKind": "ProxyList", "plural": "proxies", "singular": "proxy"},
			"versions": []any{map[string]any{"name": v1alpha1.GroupVersion.Version, "served": true, "storage": true}},
		},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": "True"}}},
	}, nil
}

func wantsMetadata(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata;")
}

func metadata(meta metav1.ObjectMeta) metav1.PartialObjectMetadata {
	return metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: meta,
	}
}

func (c *Cluster) reviewAccess(r *http.Request) (any, error) {
	review := &authorizationv1.SelfSubjectAccessReview{}
	if err := decode(bodyOf(r), authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"), review); err != nil {
		return nil, err
	}
	review.Status.Allowed = true
	if a := review.Spec.ResourceAttributes; a != nil {
		resource := a.Resource
		if a.Subresource != "" {
			resource += "/" + a.Subresource
		}
		review.Status.Allowed = !c.denied[access{a.Verb, resource}]
	}
	return review, nil
}

// bodyOf is the body, which serve has read.
func bodyOf(r *http.Request) []byte {
	body, _ := io.ReadAll(r.Body)
	return body
}

// decode reads a core type, be it JSON or protobuf.
func decode(body []byte, kind schema.GroupVersionKind, into runtime.Object) error {
	_, got, err := scheme.Codecs.UniversalDeserializer().Decode(body, &kind, into)
	if err != nil {
		return badRequest("read the body as %s: %v", kind.Kind, err)
	}
	if *got != kind {
		return badRequest("the body is %s, want %s", got, kind)
	}
	into.GetObjectKind().SetGroupVersionKind(kind)
	return nil
}
