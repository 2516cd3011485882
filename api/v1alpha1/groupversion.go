package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: "crawl.proxyfleet.dev", Version: "v1alpha1"}

// AddToScheme registers this package's kinds with a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &Proxy{}, &ProxyList{}, &Spoke{}, &SpokeList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
