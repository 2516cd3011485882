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

// Paths for Cluster.Answer and Cluster.AnswerWatches.
const (
	VersionPath       = "/version"
	KubeSystemPath    = "/api/v1/namespaces/kube-system"
	CRDPath           = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + v1alpha1.ProxyCRDName
	AccessReviewsPath = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	// In all namespaces.
	ProxiesPath = "/apis/crawl.proxyfleet.dev/v1alpha1/proxies"
	PodsPath    = "/api/v1/pods"
	SecretsPath = "/api/v1/secrets"
)

// servicesPath is where Services would be. There are none.
const servicesPath = "/api/v1/namespaces/{namespace}/services"

func noService(r *http.Request) (any, error) {
	return nil, apierrors.NewNotFound(corev1.Resource("services"), r.PathValue("name"))
}

// maxBody bounds a request's body.
const maxBody = 4 << 20

func (c *Cluster) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/", notPlayed)
	mux.Handle("GET "+VersionPath, c.answering(http.StatusOK, c.getVersion))
	mux.Handle("GET "+KubeSystemPath, c.answering(http.StatusOK, c.getKubeSystem))
	mux.Handle("GET "+CRDPath, c.answering(http.StatusOK, c.getCRD))
	mux.Handle("POST "+AccessReviewsPath, c.answering(http.StatusCreated, c.reviewAccess))
	on := func(method string, r *resource, at string, code int, does answer) {
		mux.Handle(method+" "+at, c.answering(code, func(req *http.Request) (any, error) { return does(r, req) }))
	}
	for _, r := range []*resource{c.proxies, c.pods, c.secrets} {
		mux.HandleFunc("GET "+r.path(""), c.listOrWatch(r))
		mux.HandleFunc("GET "+r.path("{namespace}"), c.listOrWatch(r))
		on("GET", r, r.path("{namespace}")+"/{name}", http.StatusOK, c.get)
	}
	for _, r := range []*resource{c.proxies, c.pods, c.secrets, c.events} {
		on("PATCH", r, r.path("{namespace}")+"/{name}", http.StatusOK, c.patch)
	}
	for _, r := range []*resource{c.proxies, c.pods} {
		on("PATCH", r, r.path("{namespace}")+"/{name}/status", http.StatusOK, c.patch)
	}
	for _, r := range []*resource{c.pods, c.secrets} {
		on("DELETE", r, r.path("{namespace}")+"/{name}", http.StatusOK, c.delete)
	}
	mux.Handle("GET "+servicesPath+"/{name}", c.answering(http.StatusOK, noService))
	on("PUT", c.proxies, c.proxies.path("{namespace}")+"/{name}", http.StatusOK, c.update)
	on("PUT", c.proxies, c.proxies.path("{namespace}")+"/{name}/status", http.StatusOK, c.update)
	on("POST", c.secrets, c.secrets.path("{namespace}"), http.StatusCreated, c.create)
	on("POST", c.events, c.events.path("{namespace}"), http.StatusCreated, c.create)
	mux.Handle("POST "+c.pods.path("{namespace}"), c.responding(http.StatusCreated, c.createPod))
	return mux
}

// answering answers with the object or the refusal of answer, which holds mu.
func (c *Cluster) answering(code int, answer func(*http.Request) (any, error)) http.Handler {
	return c.responding(code, c.locked(answer))
}

func (c *Cluster) locked(answer func(*http.Request) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return answer(r)
	}
}

// responding answers with the object or the refusal of answer. A client that does not read
// holds up nobody else: nothing is written under mu.
func (c *Cluster) responding(code int, answer func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		object, err := answer(r)
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
	verb, answers := r.Method, c.answers
	if isWatch(r) {
		verb, answers = "WATCH", c.watchAnswers
	}
	answer, overridden = answers[r.URL.Path]
	c.requests = append(c.requests, verb+" "+r.URL.Path)
	if written := writtenTo(r.URL.Path); written != "" && verb != http.MethodGet && verb != "WATCH" {
		c.writes[verb+" "+written]++
	}
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok && !slices.Contains(c.tokens, token) {
		c.tokens = append(c.tokens, token)
	}
	return answer, overridden, c.unavailable
}

// writtenTo is the resource that a path below a namespace leads to, with its subresource; empty
// for any other path, such as that of access reviews, which change nothing.
func writtenTo(path string) string {
	_, below, namespaced := strings.Cut(path, "/namespaces/")
	parts := strings.Split(below, "/") // the namespace, the resource, a name, a subresource
	switch {
	case !namespaced || len(parts) < 2:
		return ""
	case len(parts) > 3:
		return parts[1] + "/" + parts[3]
	default:
		return parts[1]
	}
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
		return metadata(&meta), nil
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
		return metadata(&meta), nil
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

var deleteOptionsKind = corev1.SchemeGroupVersion.WithKind("DeleteOptions")

// decode reads a type of Kubernetes' own, be it JSON or protobuf.
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
