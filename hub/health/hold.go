package health

import (
	"math"
	"time"
)

const (
	// patrolInterval is how often the hub's URL is probed directly while all is well, so
	// that a pass is never older than that when one is asked for.
	patrolInterval = 3 * time.Minute
	// recheckInterval is how often at most, while there is doubt, or verdicts are held.
	recheckInterval = 10 * time.Second
	// passLasts is how long a direct probe that passed shows that the hub has a way out
	// and the URL an answer.
	passLasts = 10 * time.Minute
	// maxHold is how long verdicts are held at most, in sum until holdRest has gone by
	// without a hold: a URL that comes and goes must not keep a dead proxy for ever.
	maxHold  = 5 * time.Minute
	holdRest = 10 * time.Minute
	// never is longer than anything is away.
	never = time.Duration(math.MaxInt64)
)

// hold decides when verdicts are held, since what is broken is the hub's URL, or the
// hub's own way out, and not the proxies. It holds nothing unless a direct probe has
// passed a short while ago, so that a hub that has no way out of its own never does;
// and once for each such pass.
type hold struct {
	passed  time.Time     // when a direct probe passed last; zero: none has since the last hold, or for long
	asked   time.Time     // when one began last
	asking  bool          // it has not ended
	doubted bool          // the last one began, or went on, under suspicion
	since   time.Time     // when the hold began; zero: there is none
	ended   time.Time     // when the last one did
	spent   time.Duration // in holds, up to the last that has ended
	// pardons is how many holds have ended since the URL answered again: what failed
	// until then was not the proxies' fault.
	pardons uint64
}

// ending is what has become of a hold.
type ending uint8

const (
	unchanged ending = iota
	begun
	recovered // the URL answers again
	expired   // it has lasted as long as it may
)

// holds says whether verdicts are held.
func (h *hold) holds() bool { return !h.since.IsZero() }

// keeps says whether nobody is judged for a failure now: verdicts are held, or it is
// just being found out whether they are. Where they cannot be there is nothing to find out.
func (h *hold) keeps() bool {
	return h.holds() || h.asking && h.doubted && !h.passed.IsZero() && h.spent < maxHold
}

// wait is how long the next direct probe, or the end of the hold, is away; never where
// there is none to come. members is how many Proxies are probed with the hub's URL.
func (h *hold) wait(members int, suspected bool, now time.Time) time.Duration {
	next := never
	if h.holds() {
		next = max(0, h.since.Add(maxHold-h.spent).Sub(now))
	}
	return min(next, h.untilAsked(members, suspected, now))
}

func (h *hold) untilAsked(members int, suspected bool, now time.Time) time.Duration {
	if h.asking || members == 0 {
		return never
	}
	pause := patrolInterval
	switch {
	case h.holds(), suspected && h.doubted:
		pause = recheckInterval
	case suspected: // since the last time
		pause = 0
	}
	return max(0, h.asked.Add(pause).Sub(now))
}

// asks says whether a direct probe is to begin now, and takes note that it does.
func (h *hold) asks(members int, suspected bool, now time.Time) bool {
	if h.asking {
		h.doubted = h.doubted || suspected
	}
	if h.untilAsked(members, suspected, now) > 0 {
		return false
	}
	if now.Sub(h.passed) > passLasts {
		h.passed = time.Time{}
	}
	if now.Sub(h.ended) >= holdRest && !h.holds() {
		h.spent = 0
	}
	h.asking, h.asked, h.doubted = true, now, suspected
	return true
}

// unanswered takes note that a direct probe could not be made.
func (h *hold) unanswered() { h.asking = false }

// answered takes note of how a direct probe ended.
func (h *hold) answered(ok bool, now time.Time) ending {
	h.asking = false
	switch {
	case ok && h.holds():
		h.end(now)
		h.passed = now
		h.pardons++
		return recovered
	case ok:
		h.passed = now
	case !h.holds() && h.doubted && !h.passed.IsZero() && now.Sub(h.passed) <= passLasts && h.spent < maxHold:
		h.since, h.passed = now, time.Time{}
		return begun
	}
	return unchanged
}

// expire ends a hold that has lasted as long as it may.
func (h *hold) expire(now time.Time) ending {
	if !h.holds() || h.spent+now.Sub(h.since) < maxHold {
		return unchanged
	}
	h.end(now)
	return expired
}

func (h *hold) end(now time.Time) {
	// One that is over at once has cost what it takes to find out, and pardons as much.
	h.spent += max(now.Sub(h.since), recheckInterval)
	h.since, h.ended = time.Time{}, now
}
