package lease

import (
	"math"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// rank orders Proxies by preference in one number, the least first. Which class a
// Proxy is in, and when it leaves a class that time ends, can be read off it, so that
// the least of many ranks says either which of them to grant or when to come again.
//
// Free Proxies come first, by their leases (31 bits) and then by their latency in
// milliseconds (32 bits). Blocked ones follow, by the instant at which they are free;
// then those that are sick; last those that are leaving.
type rank uint64

const (
	blockedBit rank = 1 << 63
	sick       rank = math.MaxUint64 - 1
	leaving    rank = math.MaxUint64
)

// class is what a 409 counts a Proxy as.
type class uint8

const (
	isFree class = iota
	isFull
	isCooling
	isSick
	isLeaving
	classes
)

// freeRank is that of a Proxy that can be granted.
func freeRank(active int, latencyMillis int64) rank {
	const none = math.MaxUint32 // sorts last
	latency := int64(none)
	if latencyMillis > 0 {
		latency = min(latencyMillis, none-1)
	}
	return rank(min(active, math.MaxInt32))<<32 | rank(latency)
}

// blockedRank is that of a Proxy that is full or cooling until then. It holds instants
// of the store's first 70 years.
func blockedRank(until instant, c class) rank {
	r := blockedBit | rank(max(0, min(until, 1<<61)))<<1
	if c == isCooling {
		r |= 1
	}
	return r
}

func (r rank) class() class {
	switch {
	case r < blockedBit:
		return isFree
	case r == leaving:
		return isLeaving
	case r == sick:
		return isSick
	case r&1 == 1:
		return isCooling
	default:
		return isFull
	}
}

// until is when a blocked Proxy is free; ok is false for all others.
func (r rank) until() (at instant, ok bool) {
	if r < blockedBit || r >= sick {
		return 0, false
	}
	return instant(r &^ blockedBit >> 1), true
}

// resting is the rank of the same Proxy where it rests until then, too.
func (r rank) resting(ends instant) rank {
	switch r.class() {
	case isFree:
		return blockedRank(ends, isCooling)
	case isFull, isCooling:
		until, _ := r.until()
		return blockedRank(max(until, ends), r.class())
	default:
		return r
	}
}

// rankOf is the rank of a Proxy with so many active leases, of which the first ends at
// firstEnd, and which rests from every target until coolsUntil, zero for no rest.
func rankOf(p *fleet.Proxy, active int, firstEnd, coolsUntil instant) rank {
	switch {
	case p.Deleting:
		return leaving
	case !p.Offerable():
		return sick
	case p.MaxLeases > 0 && active >= p.MaxLeases:
		return blockedRank(max(firstEnd, coolsUntil), isFull)
	case coolsUntil > 0:
		return blockedRank(coolsUntil, isCooling)
	default:
		return freeRank(active, p.Verdict.LatencyMillis())
	}
}
