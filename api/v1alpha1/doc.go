// Package v1alpha1 is the crawl.proxyfleet.dev API: the Proxy that spoke users
// apply, the Spoke that fleet admins look at, and the names (labels,
// annotations, finalizers, condition types and reasons) that both sides of the
// wire must spell alike.
//
// What an API server can reject is rejected by the OpenAPI and CEL rules
// written as markers beside each field; there is no webhook to keep alive.
// A field is in the schema only when something acts on it.
//
// +kubebuilder:object:generate=true
// +groupName=crawl.proxyfleet.dev
package v1alpha1
