package rest

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"
)

// response remembers the status that was sent.
type response struct {
	http.ResponseWriter
	status int // zero: nothing sent yet
}

func (r *response) WriteHeader(status int) {
	if r.status == 0 && status >= http.StatusOK {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *response) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// recovered turns a panic into a 500, or cuts the connection when an answer
// is half sent: it must not look whole.
func (s *Server) recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent := &response{ResponseWriter: w}
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			s.options.Log.Error(fmt.Errorf("panic: %v", cause), "request panicked", "stack", string(debug.Stack()))
			if sent.status != 0 {
				panic(http.ErrAbortHandler)
			}
			writeJSON(sent, http.StatusInternalServerError, errorBody{"internal", "the hub could not answer this request: its log says why"})
		}()
		next.ServeHTTP(sent, r)
	})
}

// logged writes a line per request. The path carries no secret; queries,
// headers and bodies stay out. Probes of /healthz are for the curious alone.
func (s *Server) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		sent := &response{ResponseWriter: w}
		returned := false
		defer func() {
			switch {
			case !returned: // panicking, and the answer is not ours to write
				sent.status = http.StatusInternalServerError
			case sent.status == 0:
				sent.status = http.StatusOK
			}
			log := s.options.Log
			if r.URL.EscapedPath() == healthPath {
				log = log.V(1)
			}
			log.Info("request", "method", clip(r.Method), "path", clip(r.URL.EscapedPath()),
				"status", sent.status, "duration", time.Since(start).String())
		}()
		next.ServeHTTP(sent, r)
		returned = true
	})
}

// clip keeps a hostile client from filling the log.
func clip(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// limited refuses a body that says it is too large, and stops reading one
// that turns out to be.
func (s *Server) limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > maxBody {
			s.fail(w, r, errTooLarge)
			return
		}
		// A copy: net/http must find its own body in r, or it waits for one that
		// a client with Expect: 100-continue withholds until it is told to send.
		bounded := *r
		bounded.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next.ServeHTTP(w, &bounded)
	})
}

// authenticated lets those in who know the token. Hashes are compared, so that
// the time it takes tells neither the token nor its length.
func (s *Server) authenticated(next http.Handler) http.Handler {
	if s.options.Token == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.EscapedPath() != healthPath && !s.knows(r.Header.Values("Authorization")) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			s.fail(w, r, &requestError{http.StatusUnauthorized, "unauthorized", "send the header Authorization: Bearer TOKEN with the hub's discovery token"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) knows(authorization []string) bool {
	if len(authorization) != 1 {
		return false
	}
	scheme, token, _ := strings.Cut(authorization[0], " ")
	given := sha256.Sum256([]byte(strings.Trim(token, " ")))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(given[:], s.token[:]) == 1
}
