package app

// What the hub may do in its own cluster. What it needs in a spoke stands
// beside the code that needs it; config/rbac is generated from both.

// +kubebuilder:rbac:namespace=proxy-operator-system,groups="",resources=secrets,verbs=get;list;watch
// +kubebuilder:rbac:namespace=proxy-operator-system,groups=crawl.proxyfleet.dev,resources=spokes,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:namespace=proxy-operator-system,groups=crawl.proxyfleet.dev,resources=spokes/status,verbs=patch
// +kubebuilder:rbac:namespace=proxy-operator-system,groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:namespace=proxy-operator-system,groups=coordination.k8s.io,resources=leases,verbs=create
// +kubebuilder:rbac:namespace=proxy-operator-system,groups=coordination.k8s.io,resources=leases,resourceNames=proxy-operator-hub,verbs=get;update
// +kubebuilder:rbac:groups="",resources=namespaces,resourceNames=kube-system,verbs=get
