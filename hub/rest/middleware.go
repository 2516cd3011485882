package rest

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strings"
	"time"
)

// step is what an exchange passes through.
type step func(*exchange)

// recovered turns a panic into a 500, or cuts the connection when an answer
// is half sent: it must not look whole.
func (s *Server) recovered(next step) step {
	return func(x *exchange) {
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			s.options.Log.Error(fmt.Errorf("panic: %v", cause), "request panicked", "stack", string(debug.Stack()))
			if x.status != 0 {
				panic(http.ErrAbortHandler)
			}
			s.fail(x, errInternal)
		}()
		next(x)
	}
}

// logged writes a line per request. The path carries no secret; queries,
// headers and bodies stay out. Probes of /healthz are for the curious alone.
func (s *Server) logged(next step) step {
	return func(x *exchange) {
		start := time.Now()
		returned := false
		defer func() {
			status := x.status
			switch {
			case !returned: // panicking, and the answer is not ours to write
				status = http.StatusInternalServerError
			case x.hungUp:
				status = statusHungUp
			case status == 0:
				status = http.StatusOK
			}
			log := s.options.Log
			if x.path == healthPath {
				log = log.V(1)
			}
			if log.Enabled() {
				log.Info("request", "method", clip(x.request.Method), "path", clip(x.path), "status", status, "duration", took(time.Since(start)))
			}
		}()
		next(x)
		returned = true
	}
}

// took is put into words by a logger that writes the line: under load most are left out.
type took time.Duration

func (t took) String() string { return time.Duration(t).String() }

// clip keeps a hostile client from filling the log.
func clip(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// limited refuses a body that is too large: one that says so, and one in chunks, which
// does not say, when it has turned out to be. Not every call reads its body.
func (s *Server) limited(next step) step {
	return func(x *exchange) {
		if x.request.ContentLength > maxBody {
			s.fail(x, errTooLarge)
			return
		}
		if x.request.ContentLength < 0 {
			body, err := io.ReadAll(io.LimitReader(x.request.Body, maxBody+1))
			switch {
			case err != nil:
				s.fail(x, bodyError(err))
				return
			case len(body) > maxBody:
				s.fail(x, errTooLarge)
				return
			}
			x.request.Body = io.NopCloser(bytes.NewReader(body))
		}
		next(x)
	}
}

// authenticated lets those in who know the token. Hashes are compared, so that
// the time it takes tells neither the token nor its length.
func (s *Server) authenticated(next step) step {
	if s.options.Token == "" {
		return next
	}
	return func(x *exchange) {
		if x.path != healthPath && !s.knows(x.request.Header["Authorization"]) {
			x.Header().Set("WWW-Authenticate", "Bearer")
			s.fail(x, errUnauthorized)
			return
		}
		next(x)
	}
}

func (s *Server) knows(authorization []string) bool {
	if len(authorization) != 1 {
		return false
	}
	scheme, token, _ := strings.Cut(authorization[0], " ")
	given := sha256.Sum256([]byte(strings.Trim(token, " ")))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(given[:], s.token[:]) == 1
}
