// Package fleet is the union of all Proxies of all spokes: the one in-memory
// read model. Spoke informers and the health engine write to it; the lease
// store, the REST API, the metrics and the reconciler read it or follow its
// changes. It knows none of them.
//
// A Proxy value is immutable once it is in the fleet: a change stores a new
// value. Readers may therefore keep what they were given, without a copy and
// without a lock.
//
// Followers are called in order, under the fleet's lock, before the call that
// made the change returns. That is what makes "leased" follow "healthy" in the
// same instant; the price is that a follower must be quick, must not block on
// I/O and must not call back into the fleet.
//
// Who may be dialled at all is found out here (bar.go, address.go), since only the
// union of all spokes shows that two Proxies claim one endpoint.
package fleet
