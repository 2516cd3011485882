// Package lease decides who may use which Proxy until when, and which Proxy
// rests from which target.
//
// Store follows the fleet: every change of a Proxy reaches Observe in the
// instant it is made, so that a verdict that has turned ends granting at once.
// The store keeps an index of its own and neither scans nor calls the fleet;
// Observe runs under the fleet's lock and takes the store's mutex alone.
//
// One mutex guards everything, so that choosing and counting are one step and
// maxLeases cannot be overrun. It is held for a few microseconds of a request that
// takes ten times that, so there is nothing to gain from more locks. Every call first
// plays what has ended by then (leases, records, cooldowns) from heaps ordered by time.
// So everything ends at its instant, and Run, which does the same on a timer, is for
// those who wait.
//
// # Choosing
//
// A slot is a Proxy with its active leases. Its rank is one number that orders it among
// the others and says what it counts as in a 409 (rank.go). A view holds the ranks of
// all slots that one selector and cluster match, in the order of their keys, cut into
// blocks of at most 256 that each know their least rank (view.go). To choose is to find
// the least of the blocks' and the first of that rank in the block; to change a rank is
// to look at one block. Counts are kept beside. So a refusal costs what a grant costs,
// and both grow with the square root of the fleet: some 0.1 µs at a thousand Proxies,
// 0.4 µs at a hundred thousand, a tenth of what the lease's own record costs.
//
// A tree of winners would grow with the logarithm, but its leaves stand in the order in
// which Proxies came, so that each of its comparisons must fall back on names; in the
// order of keys it would have to be built anew for each Proxy that comes. A scan of one
// block is as fast as the climb, in a third of the memory.
//
// Each view taxes every change of its slots, so there is a cap on them, and the one used
// least recently goes, unless it was used since the newcomer was asked for the last time;
// then that is answered by one look at the whole fleet (views.go). Views do not know targets. A target that Proxies rest
// from has an overlay on the view (overlay.go): a bit per Proxy that rests, and the least
// rank of each block without these, found anew where the block has changed since. One
// view per selector and target would be simpler, but a hundred targets would tax every
// change a hundred times and hold as many copies of the fleet; an overlay costs nothing
// until it is asked, and 30 KB for a hundred thousand Proxies.
//
// # Waiting
//
// A request that waits stands in the line of its selector and cluster (wait.go). While it
// does there is nothing that it could be granted. So whatever changes a slot to free, or
// whom it is free for, notes the slot, and before the lock is given back what is noted is
// shared out to the first to come of all whom it fits; nobody is woken in vain.
//
// # Who may do what
//
// Leases belong to a client: to any other client their ids are unknown. The
// record of an ended lease stays for one cooldown window, because the report
// that a site has had enough often comes last. Active leases are counted per
// (key, UID), so that they survive an unhealthy spell, an edit and a spoke that
// is registered anew, and a namesake with a new UID starts from nothing.
// Cooldowns belong to an address (key and endpoint) and a target, UID or not:
// sites remember addresses. A report is about the address that the client was told last,
// by the grant or by reading the lease.
//
// What it trades away: the state dies with the process. A selector that is new, or one
// too many, costs a look at the whole fleet under the lock, some milliseconds for a hundred
// thousand Proxies, and ten times that where most of them match and a view is made. What
// ended in one instant is played in one go, some microseconds a lease. Records of ended
// leases take some 200 bytes each for one cooldown window, cooldowns twice that. The hint
// when to come again may be early: where more than 256 Proxies match and rest from the
// target, it is the end of the first rest from that target anywhere.
package lease
