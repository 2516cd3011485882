// Package proxy is the reconciler: it brings one Proxy to ready, replaces its
// instance when what it is made of changes, and lets the Proxy go when the
// instance is gone.
//
// Every pass looks at the instance first and decides from what it sees, not
// from what an earlier pass wrote (plan.go, a pure function). The way of the
// data through a pass (pass.go, managed.go): the content that the spec refers
// to (content.go) and the spec make the hash of what is wanted (hash.go); the
// Proxy is claimed (write.go) before the first outside effect; the instance is
// looked at and planned for; the status is staged in memory and written once at
// the end, only if it changed (status.go), with an Event about what a person
// wants to know (events.go). The package is the only writer of a Proxy's status.
//
// What one edit of a Secret replaces is replaced a few at a time (budget.go).
// Passes are woken by Proxies, by what the pods and Secrets of a spoke do, and
// by verdicts (wake.go), and shared fairly between spokes (controller.go).
//
// What an instance is made of and how it is reached travels on it; what clients need
// beside that (credentials, certificate authorities) a pass tells the fleet, and
// nobody else.
//
// What it trades away: every pass costs one read of the instance, even when only a
// verdict changed; the Secrets that the spec refers to are read once for each of
// their versions (secrets.go). In exchange a crash at any point, an edit during it, or a stale cache is found
// out by looking instead of being remembered.
package proxy
