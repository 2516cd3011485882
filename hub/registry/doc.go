// Package registry turns kubeconfig Secrets into engaged spokes, and tells on a
// Spoke object what it makes of each.
//
// A controller (controller.go) reads the Secrets of the hub's namespace and
// never speaks to a spoke, so nothing that a spoke does can hold it up. Every
// spoke has one goroutine (spoke.go) that connects with its own backoff,
// watches over the connection, and swaps it when the kubeconfig changes: the
// new connection is up and synced before the old one goes. A connection
// (connection.go) is preflighted with timeouts, and its informers are synced,
// before any controller is engaged with it; multicluster-runtime waits for them
// without a limit while it holds a lock that all spokes share.
//
// What an event makes of a spoke's state is decided by plain functions (state.go).
// A guard (guard.go) stands before every spoke's server, which is not trusted:
// it follows no redirect and lets no answer but an API server's into an error.
//
// Losing a connection takes nothing out of the fleet: only removing the Secret
// does, and that touches nothing in the spoke.
//
// The package trades memory for isolation: a goroutine, a client and an
// informer per spoke, instead of a shared pool that one slow spoke could fill.
package registry
