package lease

import (
	"cmp"
	"math"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// candidate is one Proxy of the index as the choice sees it.
type candidate struct {
	proxy *fleet.Proxy
	// active counts its leases; firstEnd is when the first of them ends.
	active   int
	firstEnd time.Time
	seat     *seat
}

func (c candidate) full() bool {
	return c.proxy.MaxLeases > 0 && c.active >= c.proxy.MaxLeases
}

// compare orders candidates by preference, the preferred first.
func (c candidate) compare(o candidate) int {
	return cmp.Or(
		cmp.Compare(c.active, o.active),
		cmp.Compare(latencyRank(c.proxy), latencyRank(o.proxy)),
		c.proxy.Compare(o.proxy.Key),
	)
}

func latencyRank(p *fleet.Proxy) int64 {
	if ms := p.Verdict.LatencyMillis(); ms > 0 {
		return ms
	}
	return math.MaxInt64
}

// search goes over the candidates in any order and keeps the best. Its counts
// are complete only when there is no best; with one nobody asks for them, and
// most of the cooldowns need not be looked up.
type search struct {
	selector map[string]string
	cluster  string
	now      time.Time
	// coolsUntil is when the candidate's cooldown for the target ends; not
	// after now when there is none.
	coolsUntil func(candidate) time.Time

	best    candidate // its proxy is nil while there is none
	none    NoMatchError
	retryAt time.Time
}

func (s *search) look(c candidate) {
	if p := c.proxy; p.Deleting || (s.cluster != "" && s.cluster != p.Cluster) || !Selects(s.selector, p.Attributes) {
		return
	}
	s.none.Considered++
	switch {
	case !c.proxy.Offerable():
		s.none.Unhealthy++
	case s.best.proxy != nil && c.compare(s.best) > 0:
	case c.full():
		s.none.AtCapacity++
		s.blockedUntil(c.firstEnd, s.coolsUntil(c))
	default:
		if until := s.coolsUntil(c); until.After(s.now) {
			s.none.InCooldown++
			s.blockedUntil(until, until)
			return
		}
		s.best = c
	}
}

// blockedUntil takes note of a Proxy that is free when both have passed.
func (s *search) blockedUntil(a, b time.Time) {
	if b.After(a) {
		a = b
	}
	if s.retryAt.IsZero() || a.Before(s.retryAt) {
		s.retryAt = a
	}
}

// noMatch is the answer when there is no best.
func (s *search) noMatch() *NoMatchError {
	if !s.retryAt.IsZero() {
		s.none.RetryAfter = s.retryAt.Sub(s.now)
	}
	return &s.none
}
