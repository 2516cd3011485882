package rest

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/gorilla/mux"
)

const healthPath = "/healthz"

// handlerFunc answers a request, or returns what was wrong with it.
type handlerFunc func(http.ResponseWriter, *http.Request) error

func (s *Server) routes() *mux.Router {
	// Both settings keep mux from its 301 to a cleaned path, which would turn
	// a POST into a GET, and keep an encoded slash inside its segment.
	r := mux.NewRouter().SkipClean(true).UseEncodedPath()
	r.NotFoundHandler = s.handle(s.notFound)
	r.MethodNotAllowedHandler = s.handle(s.methodNotAllowed)

	r.Handle(healthPath, s.handle(s.health)).Methods(http.MethodGet, http.MethodHead)
	r.Handle("/v1/proxies", s.handle(s.listProxies)).Methods(http.MethodGet, http.MethodHead)
	r.Handle("/v1/clusters", s.handle(s.listClusters)).Methods(http.MethodGet, http.MethodHead)
	r.Handle("/v1/leases", s.handle(s.acquire)).Methods(http.MethodPost)
	r.Handle("/v1/leases/{id}", s.handle(s.release)).Methods(http.MethodDelete)
	r.Handle("/v1/leases/{id}/report", s.handle(s.report)).Methods(http.MethodPost)
	return r
}

func (s *Server) handle(h handlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h(w, r); err != nil {
			s.fail(w, r, err)
		}
	})
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok"))
	return nil
}

func (s *Server) notFound(http.ResponseWriter, *http.Request) error {
	return &requestError{http.StatusNotFound, "not_found", "there is nothing at this path: write it exactly as documented, without a slash at its end"}
}

func (s *Server) methodNotAllowed(w http.ResponseWriter, r *http.Request) error {
	allow := strings.Join(s.allowed(r), ", ")
	w.Header().Set("Allow", allow)
	return &requestError{http.StatusMethodNotAllowed, "method_not_allowed", fmt.Sprintf("this path takes %s", allow)}
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
