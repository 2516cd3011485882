package rest

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/lease"
)

// client is whoever knows the one token. Leases are kept by client.
const client = "default"

func (s *Server) acquire(x *exchange) error {
	result := OutcomeError // for a panic
	defer func() { s.options.Metrics.LeaseRequest(result) }()
	granted, err := s.grant(x)
	result = outcome(err)
	if err != nil {
		return err
	}
	answer(x, http.StatusCreated, &granted, appendLease)
	return nil
}

// grant refuses a bad request before it says that the hub is not ready: the one
// will not get better by waiting.
func (s *Server) grant(x *exchange) (lease.Lease, error) {
	if err := s.options.Leases.Leading(); err != nil {
		return lease.Lease{}, err
	}
	if x.drain.begun() {
		return lease.Lease{}, errShuttingDown
	}
	req, err := readAcquire(x)
	if err != nil {
		return lease.Lease{}, err
	}
	if !s.options.Ready() {
		return lease.Lease{}, errNotReady
	}
	var granted lease.Lease
	if req.Wait > 0 {
		granted, err = s.wait(x, req)
	} else {
		granted, err = s.options.Leases.Acquire(x.request.Context(), client, req)
	}
	if errors.Is(err, context.Canceled) {
		return lease.Lease{}, errHungUp
	}
	return granted, err
}

// wait is an acquire that may take a while. It ends with the client, and with the
// server's Serve.
func (s *Server) wait(x *exchange, req lease.Request) (lease.Lease, error) {
	ctx, end := context.WithCancelCause(x.request.Context())
	defer end(nil)
	stop := context.AfterFunc(x.drain.from, func() { end(errShuttingDown) })
	defer stop()

	start := time.Now()
	granted, err := s.options.Leases.Acquire(ctx, client, req)
	s.options.Metrics.LeaseWait(time.Since(start))
	// The time to take the answer begins now, and not with the request. That to send
	// the body net/http has lifted by itself, at the body's end.
	if server, ok := ctx.Value(http.ServerContextKey).(*http.Server); ok && server.WriteTimeout > 0 {
		_ = http.NewResponseController(x.ResponseWriter).SetWriteDeadline(time.Now().Add(server.WriteTimeout))
	}
	return granted, err
}

func (s *Server) getLease(x *exchange) error {
	if err := noQuery(x.request.URL.RawQuery); err != nil {
		return err
	}
	found, err := s.options.Leases.Get(client, x.lease())
	if err != nil {
		return err
	}
	answer(x, http.StatusOK, &found, appendLease)
	return nil
}

func (s *Server) renew(x *exchange) error {
	var body renewRequest
	if err := decode(x.request, &body); err != nil {
		return err
	}
	renewed, err := s.options.Leases.Renew(client, x.lease(), body.TTL)
	if err != nil {
		return err
	}
	answer(x, http.StatusOK, &renewed, appendLease)
	return nil
}

func (s *Server) report(x *exchange) error {
	var body reportRequest
	if err := decode(x.request, &body); err != nil {
		return err
	}
	if err := s.options.Leases.Report(client, x.lease(), body.Report); err != nil {
		return err
	}
	x.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) release(x *exchange) error {
	if err := noQuery(x.request.URL.RawQuery); err != nil {
		return err
	}
	if err := s.options.Leases.Release(client, x.lease()); err != nil {
		return err
	}
	x.WriteHeader(http.StatusNoContent)
	return nil
}
