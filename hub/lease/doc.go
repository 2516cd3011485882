// Package lease decides who may use which Proxy until when, and which Proxy
// rests from which target.
//
// Store follows the fleet: every change of a Proxy reaches Observe in the
// instant it is made, so that a verdict that has turned ends granting at once.
// The store keeps an index of its own and neither scans nor calls the fleet;
// Observe runs under the fleet's lock and takes the store's mutex alone.
//
// One mutex guards everything, so that choosing and counting are one step and
// maxLeases cannot be overrun. Every call first plays what has ended by then
// (leases, records, cooldowns) from two heaps ordered by time. So everything
// ends at its instant, and Run, which does the same on a timer, only bounds the
// memory of a store that nobody calls.
//
// Leases belong to a client: to any other client their ids are unknown. The
// record of an ended lease stays for one cooldown window, because the report
// that a site has had enough often comes last. Active leases are counted per
// (key, UID), so that they survive an unhealthy spell, an edit and a spoke that
// is registered anew, and a namesake with a new UID starts from nothing.
// Cooldowns belong to an address (key and endpoint) and a target, UID or not:
// sites remember addresses.
//
// What it trades away: the state dies with the process, and an acquire looks at
// every Proxy of the index, which is fine for thousands and not for a hundred
// thousand. A faster index fits behind the same methods.
package lease
