package rest

import (
	"context"
	"errors"
	"fmt"
	"math"
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
}

func (e *requestError) Error() string { return e.message }

// invalid is a 400 invalid_request.
func invalid(format string, args ...any) error {
	return &requestError{http.StatusBadRequest, "invalid_request", fmt.Sprintf(format, args...)}
}

var (
	errNotReady = errors.New("not every registered spoke has been read yet: try again in a moment")
	errTooLarge = &requestError{http.StatusRequestEntityTooLarge, "body_too_large", fmt.Sprintf("the body is larger than %d bytes: send less", maxBody)}
)

// errorBody is what every error looks like on the wire.
type errorBody struct {
	Error   string `json:"error"`
	Message string `json:"message"`
}

// noMatchBody adds why nothing could be leased.
type noMatchBody struct {
	errorBody
	Considered int `json:"considered"`
	Unhealthy  int `json:"unhealthy"`
	AtCapacity int `json:"atCapacity"`
	InCooldown int `json:"inCooldown"`
}

// fail is the one place where an error becomes an answer.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	var (
		refused *requestError
		bad     *lease.InvalidError
		none    *lease.NoMatchError
	)
	reply := func(status int, code, message string) { writeJSON(w, status, errorBody{code, message}) }
	switch {
	case errors.As(err, &refused):
		if refused.status == http.StatusRequestEntityTooLarge {
			// Or net/http would read the rest, to keep the connection.
			w.Header().Set("Connection", "close")
		}
		reply(refused.status, refused.code, refused.message)
	case errors.As(err, &none):
		if none.RetryAfter > 0 {
			retryAfter(w, none.RetryAfter)
		}
		writeJSON(w, http.StatusConflict, noMatchBody{
			errorBody{"no_match", none.Error()}, none.Considered, none.Unhealthy, none.AtCapacity, none.InCooldown,
		})
	case errors.As(err, &bad):
		reply(http.StatusBadRequest, "invalid_request", bad.Error())
	case errors.Is(err, lease.ErrInvalidResult):
		reply(http.StatusBadRequest, "invalid_result", `result must be "ok", "rate_limited" or "banned"`)
	case errors.Is(err, lease.ErrUnknownLease):
		reply(http.StatusNotFound, "unknown_lease", "there is no such lease, or it ended too long ago: take a new one")
	case errors.Is(err, errNotReady):
		retryAfter(w, time.Second)
		reply(http.StatusServiceUnavailable, "not_ready", err.Error())
	default:
		s.options.Log.Error(err, "request failed", "method", clip(r.Method), "path", clip(r.URL.EscapedPath()))
		reply(http.StatusInternalServerError, "internal", "the hub could not answer this request: its log says why")
	}
}

// bodyError is what reading the body ran into, as a refusal.
func bodyError(err error) error {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return errTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return &requestError{http.StatusRequestTimeout, "request_timeout", "the body did not arrive in time: send it faster"}
	default:
		return invalid("the body could not be read to its end")
	}
}

// retryAfter rounds up: a client that comes back a moment too early has to
// wait once more.
func retryAfter(w http.ResponseWriter, d time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(d.Seconds())))))
}

// outcome is how an acquire that ended in err counts.
func outcome(err error) string {
	var (
		refused *requestError
		bad     *lease.InvalidError
		none    *lease.NoMatchError
	)
	switch {
	case err == nil:
		return OutcomeGranted
	case errors.As(err, &none):
		return OutcomeNoMatch
	case errors.As(err, &refused), errors.As(err, &bad):
		return OutcomeInvalid
	case errors.Is(err, errNotReady):
		return OutcomeNotReady
	default:
		return OutcomeError
	}
}
