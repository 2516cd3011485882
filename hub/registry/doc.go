// Package registry turns kubeconfig Secrets into engaged spokes, and tells on a
// Spoke object what it makes of each.
//
// A controller (controller.go) reads the Secrets of the hub's namespace and
// never speaks to a spoke, so nothing that a spoke does can hold it up. Every
// spoke has one goroutine (loop.go, spoke.go) that connects with its own backoff,
// watches over the connection, and swaps it when the kubeconfig changes or the
// connection was lost: the new one is up and synced before the old one goes. A
// connection (connection.go) is preflighted with timeouts (preflight.go,
// rights.go), and its informers are synced, before any controller is engaged;
// multicluster-runtime waits for them without a limit while it holds a lock that
// all spokes share. They hold Proxies, and the bare metadata of this hub's pods
// and of Secrets (kinds.go), no more of each than a spoke may have (tally.go).
// Controllers are engaged once, with a cluster behind which the connections are
// exchanged (standing.go), and miss nothing that happens meanwhile (listener.go).
// The Events that they write go through the connection, too, and hold nobody up
// (events.go).
//
// What an event makes of a spoke's state, which cluster it may be, and whose a
// cluster is are decided by plain functions (state.go, claims.go); duplicates.go
// carries the last out. A guard (guard.go) stands
// before every spoke's server, which is not trusted: it follows no redirect, lets
// no answer but an API server's into an error, and lets no list pass that may be
// another cluster's. What a server says is put into words of our own (clean.go,
// explain.go, informer.go). A gate (gate.go) lets one connection feed the fleet at a time.
//
// Losing a connection takes nothing out of the fleet: only removing the Secret
// does, and that touches nothing in the spoke.
//
// All of this runs on every replica of a hub. The one that leads engages the
// controllers and writes the Spokes (lead.go).
//
// The package trades memory for isolation: a goroutine, a client and informers
// per spoke, instead of a shared pool that one slow spoke could fill.
package registry
