package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/lease"
)

// requestError is a refusal that knows its status. The message is a sentence
// for the client's author.
type requestError struct {
	status        int
	code, message string
	// after says when to come back; zero: that is not said.
	after time.Duration
	// outcome is how an acquire that was refused with it counts.
	outcome string
}

func (e *requestError) Error() string { return e.message }

func refuse(status int, code, format string, args ...any) *requestError {
	return &requestError{status: status, code: code, message: fmt.Sprintf(format, args...), outcome: OutcomeInvalid}
}

// invalid is a 400 invalid_request.
func invalid(format string, args ...any) error {
	return refuse(http.StatusBadRequest, "invalid_request", format, args...)
}

// unavailable is a 503, which always says when to come back. Its code is its outcome.
func unavailable(code string, after time.Duration, message string) *requestError {
	return &requestError{http.StatusServiceUnavailable, code, message, after, code}
}

var (
	errUnauthorized  = refuse(http.StatusUnauthorized, "unauthorized", "send the header Authorization: Bearer TOKEN with the hub's discovery token")
	errNotFound      = refuse(http.StatusNotFound, "not_found", "there is nothing at this path: write it exactly as documented, without a slash at its end")
	errTooLarge      = refuse(http.StatusRequestEntityTooLarge, "body_too_large", "the body is larger than %d bytes: send less", maxBody)
	errTooSlow       = refuse(http.StatusRequestTimeout, "request_timeout", "the body did not arrive in time: send it faster")
	errInvalidResult = refuse(http.StatusBadRequest, "invalid_result", `result must be "ok", "rate_limited" or "banned"`)
	errUnknownLease  = refuse(http.StatusNotFound, "unknown_lease", "there is no such lease: it was given back, it ended too long ago, or the hub that knew it has ended; take a new one")
	errLeaseExpired  = refuse(http.StatusGone, "lease_expired", "the lease has ended: take a new one")
	errConflict      = &requestError{http.StatusUnprocessableEntity, "idempotency_conflict",
		"this Idempotency-Key was used with another body: send a new key", 0, OutcomeIdempotencyConflict}
	errInternal = &requestError{http.StatusInternalServerError, "internal",
		"the hub could not answer this request: its log says why", 0, OutcomeError}

	errNotReady       = unavailable(OutcomeNotReady, time.Second, "not every registered spoke has been read yet: try again in a moment")
	errNotLeader      = unavailable(OutcomeNotLeader, time.Second, "this hub does not lead: try again in a moment")
	errTooManyWaiters = unavailable(OutcomeTooManyWaiters, time.Second, "too many requests are waiting already: try again in a moment")
	// A successor takes some seconds.
	errShuttingDown = unavailable(OutcomeShuttingDown, 5*time.Second, "this hub is stopping: try again in some seconds")

	// errHungUp means that the client has left.
	errHungUp = errors.New("the client hung up")
)

// refusal is the one place where an error gets its status; nil for an error that is
// the hub's fault, and for those that are not refused in this form.
func refusal(err error) *requestError {
	var (
		refused *requestError
		bad     *lease.InvalidError
	)
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.As(err, &bad):
		return refuse(http.StatusBadRequest, "invalid_request", "%s", bad.Error())
	case errors.Is(err, lease.ErrInvalidResult):
		return errInvalidResult
	case errors.Is(err, lease.ErrUnknownLease):
		return errUnknownLease
	case errors.Is(err, lease.ErrLeaseExpired):
		return errLeaseExpired
	case errors.Is(err, lease.ErrIdempotencyConflict):
		return errConflict
	case errors.Is(err, lease.ErrNotLeading):
		return errNotLeader
	case errors.Is(err, lease.ErrTooManyWaiters):
		return errTooManyWaiters
	}
	return nil
}

// fail answers with an error.
func (s *Server) fail(x *exchange, err error) {
	var none *lease.NoMatchError
	if errors.As(err, &none) {
		retryAfter(x, none.RetryAfter)
		answer(x, http.StatusConflict, none, appendNoMatch)
		return
	}
	if errors.Is(err, errHungUp) {
		x.hungUp = true
		return
	}
	refused := refusal(err)
	if refused == nil {
		s.options.Log.Error(err, "request failed", "method", clip(x.request.Method), "path", clip(x.path))
		refused = errInternal
	}
	retryAfter(x, refused.after)
	if refused.status == http.StatusRequestEntityTooLarge {
		// Or net/http would read the rest, to keep the connection.
		x.Header()["Connection"] = headerClose
	}
	answer(x, refused.status, refused, appendError)
}

// bodyError is what reading the body ran into, as a refusal.
func bodyError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return errTooSlow
	}
	return invalid("the body could not be read to its end")
}

// retryAfter rounds up: a client that comes back a moment too early has to
// wait once more.
func retryAfter(x *exchange, d time.Duration) {
	if d > 0 {
		x.Header()["Retry-After"] = []string{strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)}
	}
}

// outcome is how an acquire that ended in err counts.
func outcome(err error) string {
	if err == nil {
		return OutcomeGranted
	}
	var none *lease.NoMatchError
	if errors.As(err, &none) {
		return OutcomeNoMatch
	}
	if errors.Is(err, errHungUp) {
		return OutcomeHungUp
	}
	if refused := refusal(err); refused != nil {
		return refused.outcome
	}
	return OutcomeError
}
