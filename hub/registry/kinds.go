package registry

import (
	"cmp"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// maxProxies is how many Proxies one spoke may have, several times what a fleet
// has, and some 100 MB; maxMetadata how many pods of this hub, of which a Proxy
// has two while one replaces the other, and how many Secrets, each some 65 MB.
const maxProxies, maxMetadata = 50_000, 100_000

// kind is one of the kinds of objects that a connection has an informer of,
// which is synced before it is used. A controller that asks for another would
// wait for it with the library's lock held, and with it every spoke; so it is
// refused.
type kind struct {
	object   client.Object // as it is asked for: the type, of bare metadata its kind as well
	resource string        // as rights call it
	plural   string        // as people do
	most     int           // of one spoke
	advice   string        // what helps if there are more
}

var (
	proxyKind  = &kind{object: &v1alpha1.Proxy{}, resource: proxiesResource, plural: "Proxies", most: maxProxies}
	podKind    = &kind{object: bare(corev1.SchemeGroupVersion.WithKind("Pod")), resource: "pods", plural: "pods of this hub", most: maxMetadata}
	secretKind = &kind{
		object: bare(corev1.SchemeGroupVersion.WithKind("Secret")), resource: "secrets", plural: "Secrets", most: maxMetadata,
		advice: ": annotate the spoke's Secret with " + v1alpha1.AnnotationNamespaces + ", the namespaces that hold Proxies",
	}
	kinds = []*kind{proxyKind, podKind, secretKind}
)

// bare is an object of the kind that has metadata alone.
func bare(of schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(of)
	return o
}

// kindOf is the kind of an object in the form in which it is held; nil: it is none.
func kindOf(object runtime.Object) *kind {
	_, isBare := object.(*metav1.PartialObjectMetadata)
	for _, k := range kinds {
		if reflect.TypeOf(object) == reflect.TypeOf(k.object) &&
			(!isBare || object.GetObjectKind().GroupVersionKind() == k.object.GetObjectKind().GroupVersionKind()) {
			return k
		}
	}
	return nil
}

// emptyList is a list of the kind to read into.
func (k *kind) emptyList() client.ObjectList {
	if k == proxyKind {
		return &v1alpha1.ProxyList{}
	}
	list := &metav1.PartialObjectMetadataList{}
	of := k.object.GetObjectKind().GroupVersionKind()
	list.SetGroupVersionKind(of.GroupVersion().WithKind(of.Kind + "List"))
	return list
}

// mostOf is how many objects of the kind one spoke may have.
func (o Options) mostOf(k *kind) int { return cmp.Or(o.most[k], k.most) }

// held is what a connection's cache holds of pods and Secrets: bare metadata of
// this hub's pods, and of every Secret that a Proxy could refer to. Nothing
// refers to Helm's releases and tokens of ServiceAccounts, which can be most of a
// cluster's Secrets.
func (o Options) held() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		podKind.object: {Label: labels.SelectorFromSet(labels.Set{v1alpha1.LabelHub: o.HubID}), Transform: stripPod},
		secretKind.object: {
			Field: fields.AndSelectors(
				fields.OneTermNotEqualSelector("type", "helm.sh/release.v1"),
				fields.OneTermNotEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)),
			),
			Transform: stripSecret,
		},
	}
}

// stripPod leaves out what nobody asks of a pod. It may see an object again that
// is cached already, and then writes nothing.
func stripPod(object any) (any, error) {
	if pod, ok := object.(*metav1.PartialObjectMetadata); ok {
		if pod.ManagedFields != nil {
			pod.ManagedFields = nil
		}
		if pod.Annotations != nil {
			pod.Annotations = nil
		}
	}
	return object, nil
}

// stripSecret keeps which Secret it is and which state of it. Its annotations may
// hold all that is in it: kubectl apply writes that there.
func stripSecret(object any) (any, error) {
	secret, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	return &metav1.PartialObjectMetadata{TypeMeta: secret.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Namespace: secret.Namespace, Name: secret.Name, UID: secret.UID, ResourceVersion: secret.ResourceVersion,
	}}, nil
}

var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// mapper knows the few kinds that the hub uses in a spoke. Discovery would ask
// every spoke for all it has, at a moment when it may not answer.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for _, of := range []schema.GroupVersionKind{
		v1alpha1.GroupVersion.WithKind("Proxy"), corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithKind("Secret"),
		corev1.SchemeGroupVersion.WithKind("Service"),
	} {
		m.Add(of, meta.RESTScopeNamespace)
		m.Add(of.GroupVersion().WithKind(of.Kind+"List"), meta.RESTScopeNamespace) // a cache of some namespaces asks for it
	}
	m.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	m.Add(crdKind, meta.RESTScopeRoot)
	return m
}
