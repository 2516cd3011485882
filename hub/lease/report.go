package lease

import (
	"fmt"
	"time"
)

// sameReport is how long a report that is sent again counts as the same one: a
// client that lost the reply must not lengthen the rest.
const sameReport = 2 * time.Second

// Report takes what the client tells about its lease, active or ended less
// than a cooldown window ago. The error is ErrInvalidResult, an *InvalidError,
// ErrUnknownLease or ErrNotLeading. A report may lengthen a cooldown that runs; it never
// shortens one.
func (s *Store) Report(client, id string, report Report) error {
	report, err := checkReport(report)
	if err != nil {
		return err
	}
	now := s.enter()
	defer s.leave(now)
	r, err := s.find(client, id)
	if err != nil {
		return err
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
	if s.notes.fresh(note{r, report}, now) {
		at := location{r.slot.proxy.Key, r.host, int(r.port)}
		s.rest(at, report.Target, now+instant(report.Cooldown))
	}
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

// note is a report as it is recognised when it comes again.
type note struct {
	record *record
	report Report
}

// notes are the reports of the last two seconds.
type notes struct {
	of    map[note]struct{}
	queue []timedNote // in the order in which they came
}

type timedNote struct {
	note
	until instant
}

// fresh says that the report has not been taken within the last two seconds, and takes
// note of it.
func (n *notes) fresh(what note, now instant) bool {
	if _, known := n.of[what]; known {
		return false
	}
	n.of[what] = struct{}{}
	n.queue = append(n.queue, timedNote{what, now + instant(sameReport)})
	return true
}

// play forgets what is old.
func (n *notes) play(now instant) {
	old := 0
	for ; old < len(n.queue) && n.queue[old].until <= now; old++ {
		delete(n.of, n.queue[old].note)
	}
	n.queue = dropFirst(n.queue, old)
}
