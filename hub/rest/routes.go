package rest

import (
	_ "embed" // the description
	"net/http"
	"strings"

	"github.com/gorilla/mux"
)

const healthPath = "/healthz"

// call answers a request, or returns what was wrong with it.
type call func(*exchange) error

// route is a call as mux keeps it.
type route struct {
	server *Server
	call   call
}

// ServeHTTP implements http.Handler for the one writer there is here, an exchange.
func (t route) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	x := w.(*exchange)
	if err := t.call(x); err != nil {
		t.server.fail(x, err)
	}
}

func (s *Server) routes() *mux.Router {
	// Both settings keep mux from its 301 to a cleaned path, which would turn
	// a POST into a GET, and keep an encoded slash inside its segment.
	r := mux.NewRouter().SkipClean(true).UseEncodedPath()
	r.NotFoundHandler = route{s, notFound}
	r.MethodNotAllowedHandler = route{s, s.methodNotAllowed}

	// mux tries them in this order: first what is asked most.
	r.Handle("/v1/leases", route{s, s.acquire}).Methods(http.MethodPost)
	one := func(path string, c call, methods ...string) {
		r.Handle("/v1/leases/{id}"+path, route{s, s.leading(c)}).Methods(methods...)
	}
	one("", s.release, http.MethodDelete)
	one("/report", s.report, http.MethodPost)
	one("/renew", s.renew, http.MethodPost)
	one("", s.getLease, http.MethodGet, http.MethodHead)

	look := func(path string, c call) { r.Handle(path, route{s, c}).Methods(http.MethodGet, http.MethodHead) }
	look("/v1/proxies", s.listProxies)
	look("/v1/clusters", s.listClusters)
	look(healthPath, health)
	look("/openapi.yaml", description)
	return r
}

// routed finds the call by mux, and makes it itself: mux would copy the request twice,
// to put into its context what an exchange has room for.
func (s *Server) routed(x *exchange) {
	s.router.Match(x.request, &x.match) // with handlers for 404 and 405 there always is one
	x.match.Handler.ServeHTTP(x, x.request)
}

// leading refuses before anything else is looked at: where the leader is, the same
// request may be a good one.
func (s *Server) leading(c call) call {
	return func(x *exchange) error {
		if err := s.options.Leases.Leading(); err != nil {
			return err
		}
		return c(x)
	}
}

func health(x *exchange) error {
	x.Header()["Content-Type"] = headerText
	_, _ = x.Write([]byte("ok"))
	return nil
}

//go:embed openapi.yaml
var openapi []byte

func description(x *exchange) error {
	if err := noQuery(x.request.URL.RawQuery); err != nil {
		return err
	}
	x.send(http.StatusOK, headerYAML, openapi)
	return nil
}

func notFound(*exchange) error { return errNotFound }

func (s *Server) methodNotAllowed(x *exchange) error {
	allow := strings.Join(s.allowed(x.request), ", ")
	x.Header().Set("Allow", allow)
	return refuse(http.StatusMethodNotAllowed, "method_not_allowed", "this path takes %s", allow)
}

// allowed asks the router itself which methods the path takes, so that there
// is no second table of routes.
func (s *Server) allowed(r *http.Request) []string {
	var allow []string
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete} {
		probe := *r
		probe.Method = method
		var match mux.RouteMatch
		if s.router.Match(&probe, &match) && match.MatchErr == nil {
			allow = append(allow, method)
		}
	}
	return allow
}
