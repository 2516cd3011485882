package v1alpha1

// Labels that prove whose an instance is. Ownership is all three together:
// a pod or VM that lacks one of them, or carries another value, is not ours.
// They are also the label keys on cloud machines, hence no slash.
const (
	// LabelUID is the UID of the Proxy that the instance was made for.
	LabelUID = "proxy-operator-uid"
	// LabelHub is the id of the hub that made the instance.
	LabelHub = "proxy-operator-hub"
	// LabelCluster is the UID of the kube-system namespace of the Proxy's
	// cluster. A UID, because a spoke's name can be given to another cluster.
	LabelCluster = "proxy-operator-cluster"
	// LabelSpecHash is the hash of the spec that the instance runs. It travels
	// on the instance, so that a crash between create and bookkeeping loses nothing.
	LabelSpecHash = "proxy-operator-spec-hash"
)

// Annotations and the finalizer on Proxies.
const (
	// Finalizer keeps a Managed Proxy until its instance is gone.
	Finalizer = "crawl.proxyfleet.dev/instance"
	// AnnotationHub holds the id of the hub that manages the Proxy. A Proxy
	// marked by another hub is left alone.
	AnnotationHub = "crawl.proxyfleet.dev/hub"
	// AnnotationSpecHash repeats LabelSpecHash for people; nothing reads it back.
	AnnotationSpecHash = "crawl.proxyfleet.dev/spec-hash"
	// AnnotationRetry has a Proxy tried again that has failed for good: each new
	// value once.
	AnnotationRetry = "crawl.proxyfleet.dev/retry"
	// AnnotationAbandon, with the value "true" on a Proxy that is being deleted,
	// lets it go and leaves its instance running, as nobody's.
	AnnotationAbandon = "crawl.proxyfleet.dev/abandon-instance"
	// AnnotationForceDelete, with the value "true", removes an instance that
	// should be gone without waiting for its node to confirm.
	AnnotationForceDelete = "crawl.proxyfleet.dev/force-delete-instance"
	// AnnotationAccess holds, on an instance, how clients reach it, as JSON of an
	// Access: what it was made with, whatever the spec says by now.
	AnnotationAccess = "crawl.proxyfleet.dev/access"
	// AnnotationSpoke names, on an instance, the spoke for people.
	AnnotationSpoke = "crawl.proxyfleet.dev/spoke"
)

// Names around registration.
const (
	// LabelKubeconfig marks a Secret of the hub's namespace as a spoke's kubeconfig.
	LabelKubeconfig = "sigs.k8s.io/multicluster-runtime-kubeconfig"
	// KubeconfigKey is the key of that Secret that holds the kubeconfig.
	KubeconfigKey = "kubeconfig"
	// AnnotationNamespaces, on that Secret, lists the only namespaces of the spoke
	// that the hub works in, separated by commas.
	AnnotationNamespaces = "crawl.proxyfleet.dev/namespaces"
	// AnnotationPodNetwork, on that Secret, with the value PodNetworkRoutable, says
	// that addresses of the spoke's pods are the hub's to dial and lead to them.
	AnnotationPodNetwork = "crawl.proxyfleet.dev/pod-network"
	PodNetworkRoutable   = "routable"
	// AnnotationAcceptIdentity, on that Secret, is the UID of the kube-system
	// namespace of the cluster that may take the place of the one registered.
	AnnotationAcceptIdentity = "crawl.proxyfleet.dev/accept-identity"
	// AnnotationSchemaVersion, on the Proxy CRD, is the version of its schema:
	// a whole number that grows when a hub needs fields an older CRD lacks.
	AnnotationSchemaVersion = "crawl.proxyfleet.dev/schema-version"
	// SchemaVersion is the lowest AnnotationSchemaVersion that this code works with.
	// It equals the one on the generated CRD.
	SchemaVersion = 4
	// ProxyCRDName is the name of the Proxy's CustomResourceDefinition.
	ProxyCRDName = "proxies.crawl.proxyfleet.dev"
)

// Condition types. The first three are a Proxy's, the others a Spoke's
// (which has Ready as well).
const (
	ConditionProvisioned        = "Provisioned"
	ConditionHealthy            = "Healthy"
	ConditionReady              = "Ready"
	ConditionCredentialAccepted = "CredentialAccepted"
	ConditionContested          = "Contested"
	ConditionPathBroken         = "PathBroken"
)

// Reasons of a Proxy's condition Provisioned.
const (
	ReasonProvisioning     = "Provisioning"
	ReasonCreated          = "Created"
	ReasonReplacing        = "Replacing"
	ReasonDeleting         = "Deleting"
	ReasonQuotaExceeded    = "QuotaExceeded"
	ReasonPermanentError   = "PermanentError"
	ReasonTransientError   = "TransientError"
	ReasonCloudInitError   = "CloudInitError"
	ReasonExternalEndpoint = "ExternalEndpoint"
)

// Reasons of a Proxy's condition Healthy.
const (
	ReasonProbing           = "Probing"
	ReasonNotProvisioned    = "NotProvisioned"
	ReasonProbeSucceeded    = "ProbeSucceeded"
	ReasonDialFailed        = "DialFailed"
	ReasonProxyAuthRequired = "ProxyAuthRequired"
	ReasonConnectRefused    = "ConnectRefused"
	ReasonTLSFailed         = "TLSFailed"
	ReasonUnexpectedStatus  = "UnexpectedStatus"
	ReasonTimeout           = "Timeout"
	// Nobody dials it at all.
	ReasonNotRoutable       = "NotRoutable"
	ReasonEndpointConflict  = "EndpointConflict"
	ReasonEndpointForbidden = "EndpointForbidden"
)

// Reasons of a Spoke's condition Ready, and of CredentialAccepted when a
// changed kubeconfig is not taken. The last two are those of Contested and
// PathBroken.
const (
	ReasonConnected           = "Connected"
	ReasonConnecting          = "Connecting"
	ReasonUnreachable         = "Unreachable"
	ReasonUnauthorized        = "Unauthorized"
	ReasonForbidden           = "Forbidden"
	ReasonCRDMissing          = "CRDMissing"
	ReasonCRDOutdated         = "CRDOutdated"
	ReasonKubeconfigInvalid   = "KubeconfigInvalid"
	ReasonKubeconfigForbidden = "KubeconfigForbidden"
	ReasonDuplicateCluster    = "DuplicateCluster"
	ReasonIdentityChanged     = "IdentityChanged"
	ReasonAccepted            = "Accepted"
	ReasonMarkedByAnotherHub  = "MarkedByAnotherHub"
	ReasonEveryDialFails      = "EveryDialFails"
)
