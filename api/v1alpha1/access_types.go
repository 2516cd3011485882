package v1alpha1

import (
	"cmp"
	"slices"
)

// SecretReference names a Secret of the Proxy's own namespace.
type SecretReference struct {
	// Name of the Secret, which is in the namespace of this Proxy.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="name is the metadata.name of a Secret of this namespace: lower-case letters, digits, '-' and '.'"
	Name string `json:"name"`
}

// SecretKeyReference names a key of a Secret of the Proxy's own namespace.
type SecretKeyReference struct {
	// Name of the Secret, which is in the namespace of this Proxy.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="name is the metadata.name of a Secret of this namespace: lower-case letters, digits, '-' and '.'"
	Name string `json:"name"`

	// Key of the Secret that holds the content. Default: user-data.
	// +kubebuilder:default=user-data
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[-._a-zA-Z0-9]+$')",message="key is one of the keys in the Secret's data: letters, digits, '-', '_' and '.', for example user-data"
	// +optional
	Key string `json:"key,omitempty"`
}

// TLS is about the TLS between clients and the proxy itself.
type TLS struct {
	// ServerName is the name, or IP address, in the certificate of the proxy, by
	// which the hub and clients verify it. Absent: the host of the endpoint; a
	// pod's own address is no stable one to certify. Editing it replaces a Managed
	// instance.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$') || isIP(self)",message="serverName is the DNS name or IP address in the proxy's certificate: write for example proxy.example"
	// +optional
	ServerName string `json:"serverName,omitempty"`

	// CASecretRef names the Secret of this namespace, and the key in it, that
	// holds the certificates (PEM) of the authorities that sign the proxy's. Only
	// what they have signed is accepted then, and they are in every lease. Absent:
	// the authorities that each client's system trusts. Editing it, or its
	// content, never touches the instance.
	// +optional
	CASecretRef *CASecretReference `json:"caSecretRef,omitempty"`

	// SecretRef names the Secret of this namespace that holds, under the keys
	// tls.crt and tls.key (PEM), what a Managed instance proves itself with. It
	// finds both in files of these names in /etc/proxy-operator; editing either
	// replaces it.
	// +optional
	SecretRef *SecretReference `json:"secretRef,omitempty"`
}

// CASecretReference names a key of a Secret of the Proxy's own namespace that
// holds certificates.
type CASecretReference struct {
	// Name of the Secret, which is in the namespace of this Proxy.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="name is the metadata.name of a Secret of this namespace: lower-case letters, digits, '-' and '.'"
	Name string `json:"name"`

	// Key of the Secret that holds the certificates. Default: ca.crt.
	// +kubebuilder:default=ca.crt
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[-._a-zA-Z0-9]+$')",message="key is one of the keys in the Secret's data: letters, digits, '-', '_' and '.', for example ca.crt"
	// +optional
	Key string `json:"key,omitempty"`
}

// Access is how clients reach an instance.
type Access struct {
	// Protocol is how they speak to it: http, https or socks5.
	// +optional
	Protocol Protocol `json:"protocol,omitempty"`
	// Expose is whose address the endpoint is: PodIP, HostPort or LoadBalancer.
	// +optional
	Expose Expose `json:"expose,omitempty"`
	// ServerName is the name in its certificate; empty: the endpoint's host.
	// +optional
	ServerName string `json:"serverName,omitempty"`
	// Authentication says that it asks for a username and a password.
	// +optional
	Authentication bool `json:"authentication,omitempty"`
	// Authorities says that spec.tls.caSecretRef names who signs its certificate.
	// +optional
	Authorities bool `json:"authorities,omitempty"`
}

// DefaultCAKey is the key of a Secret with certificate authorities where none is
// named.
const DefaultCAKey = "ca.crt"

// Secrets are the names of the Secrets that the spec refers to, sorted, each once.
// An instance is made of the content of all but the one with the authorities.
func (s *ProxySpec) Secrets() []string {
	names := s.ContentSecrets()
	if s.TLS != nil && s.TLS.CASecretRef != nil {
		names = append(names, s.TLS.CASecretRef.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ContentSecrets are the names of the Secrets whose content an instance is made
// of, sorted, each once.
func (s *ProxySpec) ContentSecrets() []string {
	var names []string
	if s.CloudInit != nil && s.CloudInit.SecretRef != nil {
		names = append(names, s.CloudInit.SecretRef.Name)
	}
	if s.AuthSecretRef != nil {
		names = append(names, s.AuthSecretRef.Name)
	}
	if s.TLS != nil && s.TLS.SecretRef != nil {
		names = append(names, s.TLS.SecretRef.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ExposedAs is whose address clients dial.
func (s *ProxySpec) ExposedAs() Expose {
	if s.Kubernetes == nil || s.Kubernetes.Expose == "" {
		return ExposePodIP
	}
	return s.Kubernetes.Expose
}

// AccessTo is how clients reach an instance that is made of this spec.
func (s *ProxySpec) AccessTo() *Access {
	a := &Access{Protocol: cmp.Or(s.Protocol, ProtocolHTTP), Expose: s.ExposedAs(), Authentication: s.AuthSecretRef != nil}
	if s.TLS != nil {
		a.ServerName, a.Authorities = s.TLS.ServerName, s.TLS.CASecretRef != nil
	}
	return a
}
