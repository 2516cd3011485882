package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SpokeStatus says what the hub makes of a registered cluster.
type SpokeStatus struct {
	// Conditions are Ready, whose reason is why or why not;
	// CredentialAccepted, which is False while a changed kubeconfig is not
	// taken and the one before it serves on; Contested, which is there while
	// Proxies of the cluster carry another hub's mark; and PathBroken, which is
	// there while all of its Managed Proxies, or, where it has none, all of its
	// External ones, at least two, fail at the dial.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Server is the URL of the cluster's API server, "-" while there is none.
	// +optional
	Server string `json:"server,omitempty"`

	// Version is the Kubernetes version of the cluster, "-" while unknown.
	// +optional
	Version string `json:"version,omitempty"`

	// ClusterUID is the UID of the cluster's kube-system namespace: its identity.
	// The Secret may lead to another one only if its annotation
	// crawl.proxyfleet.dev/accept-identity says so.
	// +optional
	ClusterUID string `json:"clusterUID,omitempty"`

	// Proxies counts the cluster's Proxies. A changed count is written at most
	// once a minute.
	// +optional
	Proxies *int32 `json:"proxies,omitempty"`

	// Instances counts the instances that have been made for them.
	// +optional
	Instances *int32 `json:"instances,omitempty"`

	// KubeconfigHash is the SHA-256, in hex, of the kubeconfig that was tried last:
	// the one in use, or the one that CredentialAccepted is about.
	// +optional
	KubeconfigHash string `json:"kubeconfigHash,omitempty"`
}

// Spoke is the hub's view of one registered cluster. The hub keeps one beside
// every kubeconfig Secret and deletes it with the Secret; there is nothing in
// it to edit.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=crawl
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Server",type=string,JSONPath=`.status.server`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Proxies",type=integer,JSONPath=`.status.proxies`
// +kubebuilder:printcolumn:name="Instances",type=integer,JSONPath=`.status.instances`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Credential",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="CredentialAccepted")].reason`
// +kubebuilder:printcolumn:name="Contested",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Contested")].status`
// +kubebuilder:printcolumn:name="Path Broken",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="PathBroken")].status`
// +kubebuilder:printcolumn:name="Cluster UID",type=string,priority=1,JSONPath=`.status.clusterUID`
type Spoke struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Status is what the hub makes of the cluster.
	// +optional
	Status SpokeStatus `json:"status,omitempty"`
}

// SpokeList is a list of Spokes.
//
// +kubebuilder:object:root=true
type SpokeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Spoke `json:"items"`
}
