package lease

import (
	"fmt"
	"maps"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// sameReport is how long a report that is sent again counts as the same one: a
// client that lost the reply must not lengthen the rest.
const sameReport = 2 * time.Second

// cooldownKey says who rests from what. There is no UID in it: a Proxy that is
// recreated or registered anew at the same address is still known to the site.
type cooldownKey struct {
	fleet.Key
	endpoint string
	target   string // empty: every target
}

// Report takes what the client tells about its lease, active or ended less
// than a cooldown window ago. The error is ErrInvalidResult, an *InvalidError
// or ErrUnknownLease. A report may lengthen a cooldown that runs; it never
// shortens one.
func (s *Store) Report(client, id string, report Report) error {
	report, err := checkReport(report)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.play(now)
	r := s.find(client, id)
	if r == nil {
		return ErrUnknownLease
	}
	if report.Result == OK {
		return nil
	}
	if report.Target == "" {
		report.Target = r.target
	}
	if report.Cooldown == 0 {
		report.Cooldown = s.options.CooldownWindow
	}
	if !r.fresh(report, now) {
		return nil
	}
	s.rest(cooldownKey{r.seat.key.Key, r.endpoint, report.Target}, now.Add(report.Cooldown))
	return nil
}

// checkReport refuses what makes no sense and normalises the target.
func checkReport(report Report) (Report, error) {
	switch report.Result {
	case OK, RateLimited, Banned:
	default:
		return report, ErrInvalidResult
	}
	target, err := NormalizeTarget(report.Target)
	if err != nil {
		return report, err
	}
	report.Target = target
	if report.Cooldown < 0 || report.Cooldown > MaxCooldown {
		return report, &InvalidError{Field: "cooldownSeconds", Message: fmt.Sprintf("must be from 1 to %d", int64(MaxCooldown/time.Second))}
	}
	return report, nil
}

// fresh says that the report has not been taken within the last two seconds,
// and takes note of it. Old notes are dropped every two seconds, not on every
// report: a client that reports on a thousand targets a second must not make
// the others wait for a walk over all of them.
func (r *record) fresh(report Report, now time.Time) bool {
	if at, known := r.reports[report]; known && now.Sub(at) < sameReport {
		return false
	}
	if now.Sub(r.tidied) >= sameReport {
		maps.DeleteFunc(r.reports, func(_ Report, at time.Time) bool { return now.Sub(at) >= sameReport })
		r.tidied = now
	}
	if r.reports == nil {
		r.reports = map[Report]time.Time{}
	}
	r.reports[report] = now
	return true
}

// rest starts a cooldown, or lengthens it.
func (s *Store) rest(key cooldownKey, until time.Time) {
	switch d := s.cooldowns[key]; {
	case d == nil:
		s.cooldowns[key] = s.rests.add(until, key)
	case until.After(d.at):
		s.rests.move(d, until)
	}
}

// coolsUntil is when the address has rested from the target and from
// everything; the zero time when it does not rest.
func (s *Store) coolsUntil(key fleet.Key, endpoint, target string) time.Time {
	var until time.Time
	if len(s.cooldowns) == 0 {
		return until
	}
	if d := s.cooldowns[cooldownKey{key, endpoint, ""}]; d != nil {
		until = d.at
	}
	if target == "" {
		return until
	}
	if d := s.cooldowns[cooldownKey{key, endpoint, target}]; d != nil && d.at.After(until) {
		until = d.at
	}
	return until
}
