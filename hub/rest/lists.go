package rest

import "net/http"

func (s *Server) listProxies(x *exchange) error {
	query, err := parseListQuery(x.request.URL.RawQuery)
	if err != nil {
		return err
	}
	answer(x, http.StatusOK, query, func(b []byte, q *listQuery) []byte { return q.appendPage(b, s.options.Leases.List) })
	return nil
}

func (s *Server) listClusters(x *exchange) error {
	if err := noQuery(x.request.URL.RawQuery); err != nil {
		return err
	}
	answer(x, http.StatusOK, s.options.Clusters(), appendClusters)
	return nil
}
