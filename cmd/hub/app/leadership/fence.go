package leadership

import (
	"errors"
	"net/http"
	"strings"
)

// ErrNotLeading is what a write fails with that is not this process's to make.
var ErrNotLeading = errors.New("this hub does not lead: it writes nothing")

// Fence lets no request out that changes something in a cluster while this process
// does not hold the Lease. Whoever wants to write asks beforehand; this is for what
// was about to be written when the Lease was lost.
func (l *Leadership) Fence(next http.RoundTripper) http.RoundTripper {
	if l == nil {
		return next
	}
	return fence{next, l}
}

type fence struct {
	next http.RoundTripper
	l    *Leadership
}

// RoundTrip implements http.RoundTripper.
func (f fence) RoundTrip(req *http.Request) (*http.Response, error) {
	if !changes(req) {
		return f.next.RoundTrip(req)
	}
	// Counted first: whoever waits for those under way has ended leadership before.
	f.l.writes.Add(1)
	defer f.l.writes.Add(-1)
	if !f.l.Holds() {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, ErrNotLeading
	}
	return f.next.RoundTrip(req)
}

// WrappedRoundTripper lets client-go find the transport that holds connections.
func (f fence) WrappedRoundTripper() http.RoundTripper { return f.next }

// changes says that a request changes something. Reviews are asked for by POST, and
// leave nothing behind.
func changes(req *http.Request) bool {
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return false
	}
	return !strings.Contains(req.URL.Path, "/apis/authorization.k8s.io/") && !strings.Contains(req.URL.Path, "/apis/authentication.k8s.io/")
}
