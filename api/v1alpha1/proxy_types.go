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
// +kubebuilder:validation:Enum=http
type Protocol string

// ProtocolHTTP is a forward proxy over plain TCP: CONNECT and absolute-form requests.
const ProtocolHTTP Protocol = "http"

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

// ProxySpec is what a spoke user asks for.
//
// +kubebuilder:validation:XValidation:rule="self.mode == oldSelf.mode",message="mode cannot be changed: delete this Proxy and create another one"
// +kubebuilder:validation:XValidation:rule="has(self.provider) == has(oldSelf.provider) && (!has(self.provider) || self.provider == oldSelf.provider)",message="provider cannot be changed: delete this Proxy and create another one"
// +kubebuilder:validation:XValidation:rule="self.mode != 'Managed' || has(self.provider)",message="a Managed Proxy needs provider: write provider: kubernetes"
// +kubebuilder:validation:XValidation:rule="self.mode != 'Managed' || !has(self.endpoint)",message="endpoint belongs to mode External: remove endpoint, or write mode: External"
// +kubebuilder:validation:XValidation:rule="self.mode != 'External' || has(self.endpoint)",message="an External Proxy needs endpoint: write endpoint: {host: …, port: …}"
// +kubebuilder:validation:XValidation:rule="self.mode != 'External' || !has(self.provider)",message="provider belongs to mode Managed: remove provider, or write mode: Managed"
// +kubebuilder:validation:XValidation:rule="self.mode != 'External' || !has(self.kubernetes)",message="kubernetes belongs to mode Managed: remove kubernetes, or write mode: Managed"
// +kubebuilder:validation:XValidation:rule="self.mode != 'External' || !has(self.port)",message="port belongs to mode Managed: an External Proxy's port is endpoint.port"
type ProxySpec struct {
	// Mode is Managed when the hub brings up an instance for this Proxy, and
	// External when the proxy already runs somewhere. It cannot be changed.
	// +kubebuilder:default=Managed
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// Provider says where a Managed proxy runs. Required for mode Managed, and
	// it cannot be changed. kubernetes: a pod in this namespace.
	// +optional
	Provider ProviderName `json:"provider,omitempty"`

	// Protocol is how clients speak to the proxy. http: CONNECT tunnels and
	// absolute-form requests over plain TCP.
	// +kubebuilder:default=http
	// +optional
	Protocol Protocol `json:"protocol,omitempty"`

	// Port is the TCP port that a Managed proxy listens on; 3128 where it is
	// not given.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port int32 `json:"port,omitempty"`

	// Attributes are what leases select on, for example region: eu. Keys match
	// [a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])? and values [A-Za-z0-9._-]{1,63}.
	// Editing them never touches the instance.
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 63 && k.matches('^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$'))",message="an attribute key is 1 to 63 of lower-case letters, digits, '.', '_' and '-', with a letter or digit at each end"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].matches('^[A-Za-z0-9._-]{1,63}$'))",message="an attribute value is 1 to 63 of letters, digits, '.', '_' and '-'"
	// +optional
	Attributes map[string]AttributeValue `json:"attributes,omitempty"`

	// MaxLeases is the largest number of leases that may be active on this
	// Proxy at once. Absent: no limit. Editing it never touches the instance.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	MaxLeases *int32 `json:"maxLeases,omitempty"`

	// Kubernetes configures the pod of provider kubernetes.
	// +optional
	Kubernetes *KubernetesSpec `json:"kubernetes,omitempty"`

	// Endpoint is where an External proxy listens. Required for mode External.
	// +optional
	Endpoint *Endpoint `json:"endpoint,omitempty"`

	// HealthCheck tunes the probes through this Proxy. Editing it never
	// touches the instance.
	// +kubebuilder:default={}
	// +optional
	HealthCheck HealthCheck `json:"healthCheck,omitempty"`
}

// AttributeValue is the value of one attribute.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=63
type AttributeValue string

// KubernetesSpec is what the pod of a Managed proxy is made of. Editing it
// replaces the pod.
type KubernetesSpec struct {
	// Image is the container image. Absent: the hub's --default-proxy-image.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Image string `json:"image,omitempty"`
}

// Endpoint is a host and port that clients dial.
type Endpoint struct {
	// Host is a DNS name or an IP address, without brackets.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9.])?$') || isIP(self)",message="host is a DNS name or an IP address: write it without scheme, port, brackets or path"
	Host string `json:"host"`

	// Port is a TCP port.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// HealthCheck says how, how often and against what this Proxy is probed.
type HealthCheck struct {
	// URL is fetched through the proxy, an https one through a CONNECT tunnel.
	// Any 2xx answer passes. Absent: the hub's --health-url.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && (url(self).getScheme() == 'http' || url(self).getScheme() == 'https') && url(self).getHostname() != ''",message="url must be an absolute http:// or https:// URL"
	// +optional
	URL string `json:"url,omitempty"`

	// IntervalSeconds is the time between the starts of two probes. A probe
	// that takes longer delays the next: there is one at a time.
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +optional
	IntervalSeconds int32 `json:"intervalSeconds,omitempty"`

	// TimeoutSeconds bounds one whole probe, from the dial to the answer.
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=300
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`

	// SuccessThreshold is how many probes in a row must pass before the Proxy
	// counts as healthy.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	SuccessThreshold int32 `json:"successThreshold,omitempty"`

	// FailureThreshold is how many probes in a row must fail before the Proxy
	// counts as unhealthy.
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
}

// ProxyStatus is what the hub observes. Only the hub writes it, and only on
// transitions.
type ProxyStatus struct {
	// Phase sums the conditions up in one word.
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// Conditions are Provisioned (the instance runs and has an address),
	// Healthy (the health engine's verdict) and Ready (both).
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// ProviderID names the instance at its provider. For a pod:
	// namespace/name/UID.
	// +optional
	ProviderID string `json:"providerID,omitempty"`

	// IP is the instance's address. External: repeats spec.endpoint.host.
	// +optional
	IP string `json:"ip,omitempty"`

	// Endpoint is the host:port that crawlers dial.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`

	// LatencyMillis is how long a probe through this Proxy takes. It is
	// rewritten at most once a minute, and only when it has moved by more than
	// 20 ms and more than half.
	// +optional
	LatencyMillis int64 `json:"latencyMillis,omitempty"`

	// LastHealthCheckTime is the time of the last probe that changed this
	// status, not of the last probe.
	// +optional
	LastHealthCheckTime *metav1.Time `json:"lastHealthCheckTime,omitempty"`

	// ObservedGeneration is the metadata.generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// Proxy is one forward proxy of the fleet.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=px,categories=crawl
// +kubebuilder:metadata:annotations="crawl.proxyfleet.dev/schema-version=1"
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

	// Spec is what the user asks for: who runs the proxy, how clients speak to
	// it, what leases select on, and how it is probed.
	Spec ProxySpec `json:"spec"`
	// Status is what the hub observes.
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
