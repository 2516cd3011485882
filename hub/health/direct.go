package health

import (
	"context"
	"fmt"
	"net/url"
	"time"
)

// notice is what has become of a hold, and for begun what the direct probe found.
type notice struct {
	what    ending
	found   result
	members int
}

// askDirectly probes the hub's URL without a proxy. A Proxy's own URL is never
// fetched like that: whoever may write Proxies would have the hub fetch what they
// cannot reach themselves.
func (e *Engine) askDirectly(ctx context.Context) {
	probing, cancel := context.WithTimeout(ctx, directTimeout)
	defer cancel()
	found := e.wire.direct(probing, aim{url: e.URL})
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case ctx.Err() != nil: // the hub is stopping
		return
	case found.void:
		e.hold.unanswered()
		e.moanLocked(found, now)
	default:
		e.endedLocked(e.hold.answered(found.ok, now), found)
	}
	e.poke() // for the next one
}

// endedLocked has it told, later and without the lock, what has become of a hold.
func (e *Engine) endedLocked(what ending, found result) {
	if what == unchanged {
		return
	}
	e.notices = append(e.notices, notice{what, found, e.suspicion.members})
	e.poke()
}

// Reasons of what Announce tells.
const (
	ReasonVerdictsHeld     = "VerdictsHeld"
	ReasonVerdictsReleased = "VerdictsReleased"
	ReasonHoldExpired      = "VerdictsHoldExpired"
)

// tell tells the others what has been found out.
func (e *Engine) tell(t todo) {
	for spoke, broken := range t.paths {
		if e.PathBroken != nil {
			e.PathBroken(spoke, broken)
		}
	}
	for _, n := range t.notices {
		warning, reason, message := e.words(n)
		e.Log.Info("Verdicts on Proxies that are probed with the hub's URL: "+reason, "detail", message)
		if e.Announce != nil {
			e.Announce(warning, reason, message)
		}
	}
}

func (e *Engine) words(n notice) (warning bool, reason, message string) {
	target := "--health-url"
	if u, err := url.Parse(e.URL); err == nil { // what follows the host may be secret
		target += " (" + u.Scheme + "://" + u.Host + ")"
	}
	switch n.what {
	case begun:
		return true, ReasonVerdictsHeld, fmt.Sprintf(
			"more than half of a spoke's Proxies that are probed with %s and passed turned to failing at once, and the hub cannot fetch it directly any more either (%s: %s). "+
				"No further one of the %d that are probed with it is judged unhealthy for that, for at most %s: mend the page, or the hub's way to it, or give the flag another",
			target, n.found.reason, n.found.message, n.members, maxHold)
	case recovered:
		return false, ReasonVerdictsReleased, "the hub can fetch " + target + " again: probes with it count as before"
	default:
		return true, ReasonHoldExpired, fmt.Sprintf("the hub could not fetch %s, and %s of holding are over: probes with it count as before all the same, so that proxies that fail turn unhealthy", target, maxHold)
	}
}
