// Package controlplane gives tests and the demo real Kubernetes API servers: etcd and
// kube-apiserver as processes on loopback, any number at once, with RBAC on.
//
// The binaries are compiled from the Go module proxy by the nested module in binaries/, once
// per machine and version, into the user's cache directory (Assets, Kubectl); a
// KUBEBUILDER_ASSETS set by the user comes first. Start runs them through controller-runtime's
// envtest and adds what fault tests need: the PIDs, an API server that can be stopped and
// started again on the same port with the same data, log files, tokens of ServiceAccounts, and
// children that die with their parent even when that is killed. Apply puts the manifests of
// config/ into a cluster; StartForTest is all that most tests need.
//
// Traded away: there is no controller-manager and no scheduler, so no default ServiceAccounts,
// no garbage collection by owner reference, no finishing of deleted namespaces and no binding
// of pods (test/node claims those). The first build takes about six minutes on two cores.
package controlplane
