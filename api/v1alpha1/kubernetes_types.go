package v1alpha1

import corev1 "k8s.io/api/core/v1"

// KubernetesSpec is what the pod of a Managed proxy is made of. Editing it
// replaces the pod.
type KubernetesSpec struct {
	// Image is the container image. Absent: the hub's --default-proxy-image. What
	// runs in it must listen on the port in the environment variable PROXY_PORT
	// and speak the protocol in PROXY_PROTOCOL; it finds the files user-data,
	// username, password, tls.crt and tls.key, as far as this Proxy has them, in
	// /etc/proxy-operator.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^[:space:]]+$')",message="image is the reference of a container image, without spaces: write for example registry.example/proxy:1"
	// +optional
	Image string `json:"image,omitempty"`

	// Command replaces the image's entrypoint. Absent: the image's own.
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Command []string `json:"command,omitempty"`

	// Args replace the image's arguments. Absent: the image's own.
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Args []string `json:"args,omitempty"`

	// Env is the container's environment, beside PROXY_PORT and PROXY_PROTOCOL,
	// which port and protocol set. A variable may take its value from a Secret or
	// ConfigMap of this namespace; a change of those replaces nothing.
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:XValidation:rule="self.all(e, e.name != 'PROXY_PORT')",message="env may not set PROXY_PORT: write spec.port instead"
	// +kubebuilder:validation:XValidation:rule="self.all(e, e.name != 'PROXY_PROTOCOL')",message="env may not set PROXY_PROTOCOL: write spec.protocol instead"
	// +kubebuilder:validation:XValidation:rule="self.all(e, e.name != '')",message="a variable in env needs a name: write name: …"
	// +kubebuilder:validation:XValidation:rule="self.all(e, !has(e.valueFrom) || !has(e.value) || e.value == '')",message="a variable in env has one value: write either value: … or valueFrom: {…}"
	// +kubebuilder:validation:XValidation:rule="self.all(e, !has(e.valueFrom) || [has(e.valueFrom.secretKeyRef), has(e.valueFrom.configMapKeyRef), has(e.valueFrom.fieldRef), has(e.valueFrom.resourceFieldRef)].exists_one(x, x))",message="valueFrom in env takes exactly one source: write secretKeyRef, configMapKeyRef, fieldRef or resourceFieldRef"
	// +kubebuilder:validation:XValidation:rule="self.all(e, !has(e.valueFrom) || !has(e.valueFrom.secretKeyRef) || e.valueFrom.secretKeyRef.name != '')",message="secretKeyRef in env needs the name of a Secret: write secretKeyRef: {name: …, key: …}"
	// +kubebuilder:validation:XValidation:rule="self.all(e, !has(e.valueFrom) || !has(e.valueFrom.configMapKeyRef) || e.valueFrom.configMapKeyRef.name != '')",message="configMapKeyRef in env needs the name of a ConfigMap: write configMapKeyRef: {name: …, key: …}"
	// +listType=map
	// +listMapKey=name
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty"`

	// Resources are what the container asks for and may use at most, for example
	// requests: {cpu: 100m, memory: 64Mi}. Absent: no requests and no limits,
	// beside those that the namespace gives by default.
	// +kubebuilder:validation:XValidation:rule="!has(self.claims) || self.claims.size() == 0",message="resources.claims cannot be met, a proxy's pod has no resourceClaims: remove claims"
	// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !has(self.limits) || ['cpu', 'memory', 'ephemeral-storage'].all(r, !(r in self.requests) || !(r in self.limits) || !isQuantity(string(self.requests[r])) || !isQuantity(string(self.limits[r])) || quantity(string(self.requests[r])).compareTo(quantity(string(self.limits[r]))) <= 0)",message="resources.requests may not be more than resources.limits: lower the request, or raise the limit"
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`

	// NodeSelector are the labels that a node must have for the pod to run on it.
	// Absent: any node.
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && k.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="a key of nodeSelector is that of a node's label: write for example topology.kubernetes.io/zone"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].size() <= 63)",message="a value of nodeSelector is that of a node's label, at most 63 characters"
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// Tolerations let the pod onto nodes with taints.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(t, !has(t.operator) || t.operator in ['', 'Equal', 'Exists', 'Lt', 'Gt'])",message="the operator of a toleration is Equal or Exists"
	// +kubebuilder:validation:XValidation:rule="self.all(t, !has(t.effect) || t.effect in ['', 'NoSchedule', 'PreferNoSchedule', 'NoExecute'])",message="the effect of a toleration is NoSchedule, PreferNoSchedule or NoExecute; absent: all of them"
	// +kubebuilder:validation:XValidation:rule="self.all(t, (has(t.key) && t.key != '') || (has(t.operator) && t.operator == 'Exists'))",message="a toleration without key is for every taint: write operator: Exists with it, or write key: …"
	// +kubebuilder:validation:XValidation:rule="self.all(t, !has(t.operator) || t.operator != 'Exists' || !has(t.value) || t.value == '')",message="a toleration with operator Exists takes no value: remove value, or write operator: Equal"
	// +kubebuilder:validation:XValidation:rule="self.all(t, !has(t.tolerationSeconds) || (has(t.effect) && t.effect == 'NoExecute'))",message="tolerationSeconds belongs to effect NoExecute: remove tolerationSeconds, or write effect: NoExecute"
	// +listType=atomic
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// ImagePullSecrets are the Secrets of this namespace that the image is pulled
	// with, where its registry asks for credentials.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(s, s.name != '')",message="an item of imagePullSecrets needs the name of a Secret: write - name: …"
	// +listType=map
	// +listMapKey=name
	// +optional
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`

	// ServiceAccountName names the ServiceAccount of this namespace that the pod
	// runs as. Absent: default. Its token is not mounted.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="serviceAccountName is the metadata.name of a ServiceAccount of this namespace: lower-case letters, digits, '-' and '.'"
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// PodLabels are further labels of the pod, for example for NetworkPolicies. A
	// key may not begin with proxy-operator-.
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('proxy-operator-'))",message="podLabels may not begin with proxy-operator-, which marks whose the pod is: choose another key"
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && k.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="a key of podLabels is a label's: at most 63 letters, digits, '-', '_' and '.', after a domain and '/' if it has one: write for example team or example.com/team"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].matches('^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$'))",message="a value of podLabels is a label's: at most 63 letters, digits, '-', '_' and '.', with a letter or digit at each end: write for example crawl-1"
	// +optional
	PodLabels map[string]LabelValue `json:"podLabels,omitempty"`

	// PodAnnotations are further annotations of the pod. A key may not begin with
	// crawl.proxyfleet.dev/.
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && k.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="a key of podAnnotations is an annotation's: at most 63 letters, digits, '-', '_' and '.', after a domain and '/' if it has one: write for example example.com/owner"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('crawl.proxyfleet.dev/'))",message="podAnnotations may not begin with crawl.proxyfleet.dev/, which is the hub's: choose another key"
	// +optional
	PodAnnotations map[string]string `json:"podAnnotations,omitempty"`

	// SecurityContext is the container's, as a whole. Absent: what the Pod
	// Security Standard "restricted" asks for, with a read-only root file system.
	// +kubebuilder:validation:XValidation:rule="!has(self.privileged) || !self.privileged || !has(self.allowPrivilegeEscalation) || self.allowPrivilegeEscalation",message="securityContext cannot have privileged: true with allowPrivilegeEscalation: false: remove one of them"
	// +optional
	SecurityContext *corev1.SecurityContext `json:"securityContext,omitempty"`

	// Expose is whose address clients dial. PodIP (the default): the pod's own,
	// where the pod network is routable from the hub. HostPort: that of the node,
	// on which the port is then taken; the namespace's Pod Security has to allow
	// it. LoadBalancer: that of a Service of this type, which the hub makes, and
	// which outlives a replacement of the pod.
	// +optional
	Expose Expose `json:"expose,omitempty"`
}

// Expose says whose address clients dial.
// +kubebuilder:validation:Enum=PodIP;HostPort;LoadBalancer
type Expose string

// Whose address clients dial: the pod's, its node's, or a Service's.
const (
	ExposePodIP        Expose = "PodIP"
	ExposeHostPort     Expose = "HostPort"
	ExposeLoadBalancer Expose = "LoadBalancer"
)

// LabelValue is the value of a label.
// +kubebuilder:validation:MaxLength=63
type LabelValue string
