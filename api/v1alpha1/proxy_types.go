package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Mode says who runs the proxy.
// +kubebuilder:validation:Enum=Managed;External
type Mode string

const (
	// ModeManaged means that the hub creates, replaces and deletes an instance.
	ModeManaged Mode = "Managed"
	// ModeExternal means that somebody else runs it; the hub probes and leases
	// its endpoint.
	ModeExternal Mode = "External"
)

// ProviderName says where a Managed proxy runs.
// +kubebuilder:validation:Enum=kubernetes
type ProviderName string

// ProviderKubernetes runs the instance as a pod in the Proxy's own namespace.
const ProviderKubernetes ProviderName = "kubernetes"

// Protocol says how clients speak to the proxy.
// +kubebuilder:validation:Enum=http;https;socks5
type Protocol string

const (
	// ProtocolHTTP is a forward proxy over plain TCP: CONNECT and absolute-form requests.
	ProtocolHTTP Protocol = "http"
	// ProtocolHTTPS is the same over TLS to the proxy itself.
	ProtocolHTTPS Protocol = "https"
	// ProtocolSOCKS5 is SOCKS version 5 (RFC 1928); names are resolved by the proxy.
	ProtocolSOCKS5 Protocol = "socks5"
)

// Phase sums a Proxy's conditions up in one word.
// +kubebuilder:validation:Enum=Pending;Provisioning;Probing;Ready;Unhealthy;Replacing;Deleting;Failed
type Phase string

// The phases, in the order in which a Proxy usually passes through them.
const (
	PhasePending      Phase = "Pending"
	PhaseProvisioning Phase = "Provisioning"
	PhaseProbing      Phase = "Probing"
	PhaseReady        Phase = "Ready"
	PhaseUnhealthy    Phase = "Unhealthy"
	PhaseReplacing    Phase = "Replacing"
	PhaseDeleting     Phase = "Deleting"
	PhaseFailed       Phase = "Failed"
)

// ProxySpec is what a user asks for.
//
// +kubebuilder:validation:XValidation:rule="self.mode == oldSelf.mode",message="mode cannot be changed: delete this Proxy and create another one"
// +kubebuilder:validation:XValidation:rule="has(self.provider) == has(oldSelf.provider) && (!has(self.provider) || self.provider == oldSelf.provider)",message="provider cannot be changed: delete this Proxy and create another one"
// +kubebuilder:validation:XValidation:rule="self.mode != 'Managed' || has(self.provider)",message="a Managed Proxy needs provider: write provider: kubernetes"
// +kubebuilder:validation:XValidation:rule="self.mode != 'Managed' || !has(self.endpoint)",message="endpoint belongs to mode External: remove endpoint, or write mode: External"
// +kubebuilder:validation:XValidation:rule="self.mode != 'External' || has(self.endpoint)",message="an External Proxy needs endpoint: write endpoint: {host: …, port: …}"
// +kubebuilder:validation:XValidation:rule="self.mode != 'External' || !has(self.provider)",message="provider belongs to mode Managed: remove provider, or write mode: Managed"
// +kubebuilder:validation:XValidation:rule="self.mode != 'External' || !has(self.kubernetes)",message="kubernetes belongs to mode Managed: remove kubernetes, or write mode: Managed"
// +kubebuilder:validation:XValidation:rule="self.mode != 'External' || !has(self.port)",message="port belongs to mode Managed: remove port, and write endpoint: {host: …, port: …}"
// +kubebuilder:validation:XValidation:rule="self.mode != 'External' || !has(self.cloudInit)",message="cloudInit belongs to mode Managed: remove cloudInit, or write mode: Managed"
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || self.protocol == 'https'",message="tls belongs to protocol https: remove tls, or write protocol: https"
// +kubebuilder:validation:XValidation:rule="self.mode != 'External' || !has(self.tls) || !has(self.tls.secretRef)",message="tls.secretRef is the certificate of a Managed instance: remove it; whoever runs an External proxy gives it one"
// +kubebuilder:validation:XValidation:rule="!has(self.provider) || self.provider != 'kubernetes' || self.protocol != 'https' || (has(self.tls) && has(self.tls.secretRef)) || (has(self.kubernetes) && has(self.kubernetes.image))",message="protocol https needs a certificate: write tls: {secretRef: {name: …}}, or kubernetes: {image: …} of a proxy that brings its own"
type ProxySpec struct {
	// Mode is Managed (the default) when the hub is to run an instance for this
	// Proxy, and External when the proxy already runs somewhere. It cannot be
	// changed.
	// +kubebuilder:default=Managed
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// Provider says where a Managed proxy runs. Required for mode Managed, not
	// allowed for External, and it cannot be changed. kubernetes: as a pod in
	// this namespace.
	// +optional
	Provider ProviderName `json:"provider,omitempty"`

	// Protocol is how clients speak to the proxy. http (the default): CONNECT
	// tunnels and absolute-form requests over plain TCP. https: the same over TLS
	// to the proxy itself, see tls. socks5: SOCKS version 5, where the proxy
	// resolves the names.
	// +kubebuilder:default=http
	// +optional
	Protocol Protocol `json:"protocol,omitempty"`

	// Port is the TCP port that a Managed proxy listens on. Absent: 3128. An
	// External proxy's is endpoint.port.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port int32 `json:"port,omitempty"`

	// Attributes are what leases select on, for example region: eu; at most 32. A
	// key is 1 to 63 lower-case letters, digits, '.', '_' and '-', with a letter
	// or digit at each end; a value is 1 to 63 letters, digits, '.', '_' and '-'.
	// Editing them never touches the instance.
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 63 && k.matches('^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$'))",message="an attribute key is 1 to 63 lower-case letters, digits, '.', '_' and '-', with a letter or digit at each end: write for example region"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].matches('^[A-Za-z0-9._-]{1,63}$'))",message="an attribute value is 1 to 63 letters, digits, '.', '_' and '-': write for example eu-west"
	// +optional
	Attributes map[string]AttributeValue `json:"attributes,omitempty"`

	// MaxLeases is the largest number of leases that may be active on this Proxy
	// at once. Absent: no limit. Editing it never touches the instance.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	MaxLeases *int32 `json:"maxLeases,omitempty"`

	// AuthSecretRef names the Secret of this namespace that holds, under the keys
	// username and password, what clients log in to the proxy with: without
	// control characters, each at most 255 bytes for protocol socks5 and 1024 for
	// the others, which take no colon in the username. A Managed instance finds
	// both in the files username and password in
	// /etc/proxy-operator; editing either replaces it. The hub probes with them,
	// and they are in the url of a lease; nothing else ever shows them.
	// +optional
	AuthSecretRef *SecretReference `json:"authSecretRef,omitempty"`

	// TLS says, for protocol https, how clients verify the proxy and what a
	// Managed instance proves itself with.
	// +optional
	TLS *TLS `json:"tls,omitempty"`

	// CloudInit is what a Managed instance is configured with when it starts:
	// either inline or in a Secret. A pod finds it in the file
	// /etc/proxy-operator/user-data. Editing it, or the Secret that it refers to,
	// replaces the instance.
	// +optional
	CloudInit *CloudInit `json:"cloudInit,omitempty"`

	// Kubernetes is what the pod of a Managed proxy with provider kubernetes is
	// made of. All of it is optional. Editing it replaces the pod.
	// +optional
	Kubernetes *KubernetesSpec `json:"kubernetes,omitempty"`

	// Endpoint is where an External proxy listens. Required for mode External,
	// not allowed for Managed.
	// +optional
	Endpoint *Endpoint `json:"endpoint,omitempty"`

	// HealthCheck says how, how often and against what the hub probes this Proxy.
	// Editing it never touches the instance.
	// +kubebuilder:default={}
	// +optional
	HealthCheck HealthCheck `json:"healthCheck,omitempty"`
}

// AttributeValue is the value of one attribute.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=63
type AttributeValue string

// CloudInit is the configuration of an instance, given here or in a Secret.
//
// +kubebuilder:validation:XValidation:rule="has(self.inline) != has(self.secretRef)",message="cloudInit takes exactly one source: write either inline: … or secretRef: {name: …}"
type CloudInit struct {
	// Inline is the content itself, at most 64 KiB together with credentials and
	// certificate.
	// Everybody who may read this Proxy can read it: what is secret belongs into
	// secretRef.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	Inline string `json:"inline,omitempty"`

	// SecretRef names the Secret of this namespace, and the key in it, that holds
	// the content.
	// +optional
	SecretRef *SecretKeyReference `json:"secretRef,omitempty"`
}

// Endpoint is a host and port that clients dial.
type Endpoint struct {
	// Host is a DNS name or an IP address, without scheme, port, brackets or
	// path.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9.])?$') || isIP(self)",message="host is a DNS name or an IP address: write it without scheme, port, brackets or path"
	Host string `json:"host"`

	// Port is the TCP port.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// HealthCheck says how, how often and against what this Proxy is probed.
//
// +kubebuilder:validation:XValidation:rule="!has(self.insecureSkipVerify) || !self.insecureSkipVerify || has(self.url)",message="insecureSkipVerify needs a url of its own, since the hub's --health-url is verified always: write url: …, or remove insecureSkipVerify"
type HealthCheck struct {
	// URL is what a probe fetches through the proxy, an https one through a
	// CONNECT tunnel. expectedStatuses says which answers pass. Absent: the hub's
	// --health-url.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && (url(self).getScheme() == 'http' || url(self).getScheme() == 'https') && url(self).getHostname() != ''",message="url is an absolute http:// or https:// URL: write for example https://www.gstatic.com/generate_204"
	// +kubebuilder:validation:XValidation:rule="!isURL(self) || url(self).getPort() == '' || (size(url(self).getPort()) <= 5 && int(url(self).getPort()) >= 1 && int(url(self).getPort()) <= 65535)",message="a port in url is 1 to 65535: write for example https://www.gstatic.com:443/generate_204"
	// +optional
	URL string `json:"url,omitempty"`

	// IntervalSeconds is the time from the start of one probe to the start of the
	// next. A probe that takes longer delays the next: there is one at a time.
	// Default: 30.
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +optional
	IntervalSeconds int32 `json:"intervalSeconds,omitempty"`

	// TimeoutSeconds is how long one whole probe may take, from the dial to the
	// answer. Default: 10.
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=300
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`

	// ExpectedStatuses are the HTTP statuses that pass when the probed URL answers
	// with one of them, for example [204]; at most 16. A redirect is an answer
	// like any other, and is not followed. Absent or empty: any 2xx.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Minimum=200
	// +kubebuilder:validation:items:Maximum=599
	// +kubebuilder:validation:items:XValidation:rule="self >= 200 && self <= 599",message="a status in expectedStatuses is that of a final answer, 200 to 599: write for example [204], or remove expectedStatuses, so that any 2xx passes"
	// +listType=set
	// +optional
	ExpectedStatuses []int32 `json:"expectedStatuses,omitempty"`

	// SuccessThreshold is how many probes in a row must pass before this Proxy
	// counts as healthy. Default: 1.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	SuccessThreshold int32 `json:"successThreshold,omitempty"`

	// FailureThreshold is how many probes in a row must fail before this Proxy
	// counts as unhealthy. Default: 3.
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	FailureThreshold int32 `json:"failureThreshold,omitempty"`

	// InsecureSkipVerify takes any certificate of the probed https URL. What is
	// lost by it: a proxy that intercepts TLS passes, and so does one that leads
	// to another site. The certificate of the proxy itself is verified all the
	// same, see tls. It needs a url of its own: with the hub's --health-url nobody
	// who passes for its site is to see what the hub asks for. Default: false.
	// +optional
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`
}

// ProxyStatus is what the hub observes. Only the hub writes it, and only on
// transitions.
type ProxyStatus struct {
	// Phase sums the conditions up in one word: Pending, Provisioning, Probing,
	// Ready, Unhealthy, Replacing, Deleting or Failed.
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// Conditions are Provisioned (the instance runs and has an address), Healthy
	// (the verdict of the hub's probes) and Ready (both). Reason and message say
	// what is missing.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// ProviderID names the instance at its provider. For a pod:
	// namespace/name/UID.
	// +optional
	ProviderID string `json:"providerID,omitempty"`

	// IP is the instance's address. For an External proxy it repeats
	// spec.endpoint.host.
	// +optional
	IP string `json:"ip,omitempty"`

	// Endpoint is what crawlers dial, as host:port.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`

	// Access is how clients reach the instance of a Managed proxy: as it was made,
	// while an edit of the spec has not reached it yet.
	// +optional
	Access *Access `json:"access,omitempty"`

	// LatencyMillis is how long a probe through this Proxy takes, in
	// milliseconds. It is rewritten at most once a minute, and only when it has
	// moved by more than 20 ms and more than half.
	// +optional
	LatencyMillis int64 `json:"latencyMillis,omitempty"`

	// LastHealthCheckTime is the time of the last probe that changed this status,
	// which is not the last probe.
	// +optional
	LastHealthCheckTime *metav1.Time `json:"lastHealthCheckTime,omitempty"`

	// FailedInputs identifies, while condition Provisioned has reason
	// PermanentError, what was tried in vain: the spec, the content that it
	// refers to, the provider's configuration and the annotation
	// crawl.proxyfleet.dev/retry. It is tried again when one of them changes.
	// +optional
	FailedInputs string `json:"failedInputs,omitempty"`

	// ObservedGeneration is the metadata.generation of the spec that this status
	// is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// Proxy is one forward proxy of the fleet: an instance that the hub runs (mode
// Managed), or one that runs elsewhere (mode External). The hub probes it, and
// crawlers lease it while it is healthy.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=px,categories=crawl
// +kubebuilder:metadata:annotations="crawl.proxyfleet.dev/schema-version=4"
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.status.endpoint`
// +kubebuilder:printcolumn:name="Latency",type=integer,JSONPath=`.status.latencyMillis`,description="milliseconds"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="ProviderID",type=string,priority=1,JSONPath=`.status.providerID`
// +kubebuilder:printcolumn:name="Attributes",type=string,priority=1,JSONPath=`.spec.attributes`
type Proxy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what you ask for: who runs the proxy and on what, how clients speak
	// to it, what leases select on, and how it is probed.
	Spec ProxySpec `json:"spec"`
	// Status is what the hub observes. Only the hub writes it.
	// +optional
	Status ProxyStatus `json:"status,omitempty"`
}

// ProxyList is a list of Proxies.
//
// +kubebuilder:object:root=true
type ProxyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Proxy `json:"items"`
}

// DefaultPort is what a Managed proxy listens on where spec.port is absent.
const DefaultPort = 3128

// ListenPort is the port that a Managed proxy listens on.
func (s *ProxySpec) ListenPort() int32 {
	if s.Port == 0 {
		return DefaultPort
	}
	return s.Port
}

// DefaultCloudInitKey is the key of a cloud-init Secret where none is named.
const DefaultCloudInitKey = "user-data"
