package rest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/gorilla/mux"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/lease"
)

// Outcomes of a request for a lease, as Metrics gets them. The set is closed.
const (
	OutcomeGranted  = "granted"
	OutcomeNoMatch  = "no_match"
	OutcomeInvalid  = "invalid" // 400, 408 or 413
	OutcomeNotReady = "not_ready"
	OutcomeError    = "error" // 500
)

// Metrics records what the API does.
type Metrics interface {
	// LeaseRequest is told the outcome of every authenticated POST /v1/leases.
	LeaseRequest(outcome string)
}

// Options configure a Server. Fleet and Leases are required.
type Options struct {
	// Token is what clients must present; empty: no authentication.
	Token string
	Fleet *fleet.Fleet
	// Leases follows Fleet.
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
	handler http.Handler
}

// The limits of the server. The longest handler answers in microseconds, so
// they bound clients, not us.
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
	s := &Server{options: options, token: sha256.Sum256([]byte(options.Token))}
	s.router = s.routes()
	s.handler = s.recovered(s.logged(s.limited(s.authenticated(s.router))))
	return s
}

type noMetrics struct{}

func (noMetrics) LeaseRequest(string) {}

// ServeHTTP implements http.Handler, middleware included.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Serve answers on the listener, which it closes, until ctx ends. Then it
// takes no more connections, lets requests in flight finish for up to ten
// seconds, and returns nil.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		// OPTIONS * is an unknown path to us like any other.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     log.New(logWriter{s.options.Log}, "", 0),
	}
	drained := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(drained)
		// Not ctx, which has ended.
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		if server.Shutdown(drain) != nil {
			s.options.Log.Info("requests cut off at shutdown", "after", drainTimeout.String())
			_ = server.Close()
		}
	})
	err := server.Serve(l)
	if errors.Is(err, http.ErrServerClosed) {
		<-drained
		return nil
	}
	stop()
	return fmt.Errorf("serve the REST API: %w", err)
}

// logWriter takes what net/http has to say about broken connections: a
// client's doing, so for the curious alone.
type logWriter struct{ log logr.Logger }

func (w logWriter) Write(line []byte) (int, error) {
	w.log.V(1).Info("http server", "message", strings.TrimSpace(string(line)))
	return len(line), nil
}
