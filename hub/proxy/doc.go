// Package proxy is the reconciler: it brings one Proxy to ready, replaces its
// instance when the spec changes, and lets the Proxy go when the instance is
// gone.
//
// Every pass looks at the instance first and decides from what it sees, not
// from what an earlier pass wrote (plan.go, a pure function). The status is
// staged in memory and written once at the end, only if it changed
// (status.go). The package is the only writer of a Proxy's status.
//
// What it trades away: every pass costs one read of the instance, even when
// only a verdict changed. In exchange a crash at any point, an edit during it,
// or a stale cache is found out by looking instead of being remembered.
package proxy
