package rest

import (
	"crypto/sha256"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/gorilla/mux"

	"github.com/proxyfleet/proxy-operator/hub/lease"
)

// Outcomes of a request for a lease, as Metrics gets them. The set is closed.
const (
	OutcomeGranted             = "granted"
	OutcomeNoMatch             = "no_match"
	OutcomeInvalid             = "invalid" // 400, 408 or 413
	OutcomeIdempotencyConflict = "idempotency_conflict"
	OutcomeNotReady            = "not_ready"
	OutcomeNotLeader           = "not_leader"
	OutcomeTooManyWaiters      = "too_many_waiters"
	OutcomeShuttingDown        = "shutting_down"
	OutcomeHungUp              = "hung_up" // the client left before its answer
	OutcomeError               = "error"   // 500
)

// Metrics records what the API does.
type Metrics interface {
	// LeaseRequest is told the outcome of every authenticated POST /v1/leases.
	LeaseRequest(outcome string)
	// LeaseWait is told how long one that may wait took in the store, whatever
	// came of it.
	LeaseWait(d time.Duration)
}

// Options configure a Server. Leases is required.
type Options struct {
	// Token is what clients must present; empty: no authentication.
	Token string
	// Leases follows the fleet.
	Leases *lease.Store
	// Clusters lists the registered spokes, in any order; nil: none.
	Clusters func() []Cluster
	// Ready says whether the fleet is known well enough to lease from; nil: always.
	Ready func() bool
	// Metrics may be nil.
	Metrics Metrics
	// Log gets a line per request; the zero value logs nothing.
	Log logr.Logger
}

// Cluster is a registered spoke as the API shows it.
type Cluster struct {
	Name string
	// Ready and Reason are those of the Spoke's condition Ready, as of now.
	Ready  bool
	Reason string
	// Proxies and Instances are how many of it are known.
	Proxies, Instances int
	// LastContact is when it last answered; zero: never.
	LastContact time.Time
}

// Server answers the API. Create it with New.
type Server struct {
	options Options
	token   [sha256.Size]byte
	router  *mux.Router
	answer  step
	// served is for requests that come by ServeHTTP, which nobody drains.
	served *drain
}

// The limits of the server. But for waits, which have deadlines of their own, the
// longest handler answers in microseconds, so they bound clients, not us.
const (
	maxBody           = 64 << 10
	maxHeader         = 32 << 10
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 15 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = 2 * time.Minute
	drainTimeout      = 10 * time.Second
)

// New returns a server; Serve runs it.
func New(options Options) *Server {
	if options.Clusters == nil {
		options.Clusters = func() []Cluster { return nil }
	}
	if options.Ready == nil {
		options.Ready = func() bool { return true }
	}
	if options.Metrics == nil {
		options.Metrics = noMetrics{}
	}
	s := &Server{options: options, token: sha256.Sum256([]byte(options.Token)), served: newDrain()}
	s.router = s.routes()
	s.answer = s.recovered(s.logged(s.limited(s.authenticated(s.routed))))
	return s
}

type noMetrics struct{}

func (noMetrics) LeaseRequest(string)     {}
func (noMetrics) LeaseWait(time.Duration) {}

// ServeHTTP implements http.Handler, middleware included.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.serve(w, r, s.served) }

func (s *Server) serve(w http.ResponseWriter, r *http.Request, d *drain) {
	d.enter()
	defer d.leave()
	x := &exchange{ResponseWriter: w, request: r, path: r.URL.EscapedPath(), drain: d}
	s.answer(x)
	if x.hungUp {
		// Or net/http would send an empty 200, which a client that has only closed its
		// own side would take for an answer.
		panic(http.ErrAbortHandler)
	}
}
