package rest

import (
	"net/http"

	"github.com/gorilla/mux"

	"github.com/proxyfleet/proxy-operator/hub/lease"
)

// client is whoever knows the one token. Leases are kept by client.
const client = "default"

func (s *Server) listProxies(w http.ResponseWriter, r *http.Request) error {
	query, err := parseListQuery(r.URL.RawQuery)
	if err != nil {
		return err
	}
	page, more := query.page(s.options.Fleet.All())
	list := listView{Proxies: make([]proxyView, len(page)), Count: len(page)}
	for i, p := range page {
		list.Proxies[i] = viewProxy(p, s.options.Leases.Active(p.Key, p.UID))
	}
	if more {
		list.Continue = encodeToken(page[len(page)-1].Key)
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (s *Server) listClusters(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r.URL.RawQuery); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, viewClusters(s.options.Clusters()))
	return nil
}

func (s *Server) acquire(w http.ResponseWriter, r *http.Request) error {
	result := OutcomeError // for a panic
	defer func() { s.options.Metrics.LeaseRequest(result) }()
	granted, err := s.grant(r)
	result = outcome(err)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, viewLease(granted))
	return nil
}

// grant refuses a bad request before it says that it is not ready: the one
// will not get better by waiting.
func (s *Server) grant(r *http.Request) (lease.Lease, error) {
	req, err := readAcquire(r)
	if err != nil {
		return lease.Lease{}, err
	}
	if !s.options.Ready() {
		return lease.Lease{}, errNotReady
	}
	return s.options.Leases.Acquire(client, req)
}

func readAcquire(r *http.Request) (req lease.Request, err error) {
	if err = noQuery(r.URL.RawQuery); err != nil {
		return req, err
	}
	body, err := readFields(r, "selector", "cluster", "target", "ttlSeconds")
	if err != nil {
		return req, err
	}
	if req.Selector, err = body.pairs("selector"); err != nil {
		return req, err
	}
	if req.Cluster, err = body.text("cluster"); err != nil {
		return req, err
	}
	if req.Target, err = body.text("target"); err != nil {
		return req, err
	}
	req.TTL, err = body.duration("ttlSeconds")
	return req, err
}

func (s *Server) report(w http.ResponseWriter, r *http.Request) error {
	report, err := readReport(r)
	if err != nil {
		return err
	}
	if err := s.options.Leases.Report(client, mux.Vars(r)["id"], report); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func readReport(r *http.Request) (report lease.Report, err error) {
	if err = noQuery(r.URL.RawQuery); err != nil {
		return report, err
	}
	body, err := readFields(r, "result", "target", "cooldownSeconds")
	if err != nil {
		return report, err
	}
	// A result of another type is as wrong as one of another name.
	result, err := body.text("result")
	if err != nil {
		return report, lease.ErrInvalidResult
	}
	report.Result = lease.Result(result)
	if report.Target, err = body.text("target"); err != nil {
		return report, err
	}
	report.Cooldown, err = body.duration("cooldownSeconds")
	return report, err
}

func (s *Server) release(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r.URL.RawQuery); err != nil {
		return err
	}
	s.options.Leases.Release(client, mux.Vars(r)["id"])
	w.WriteHeader(http.StatusNoContent)
	return nil
}
