package rest

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/go-logr/logr"
)

// drain is how one Serve ends. net/http alone would cut the connections that are kept
// alive with a request on its way, and leave those that wait for a Proxy waiting.
type drain struct {
	// from ends when the drain begins.
	from  context.Context
	begin context.CancelFunc
	// active counts the requests that are being answered.
	active atomic.Int64
	// idle has a value when active fell to zero since the drain began.
	idle chan struct{}
}

func newDrain() *drain {
	from, begin := context.WithCancel(context.Background())
	return &drain{from: from, begin: begin, idle: make(chan struct{}, 1)}
}

func (d *drain) begun() bool { return d.from.Err() != nil }

func (d *drain) enter() { d.active.Add(1) }

func (d *drain) leave() {
	if d.active.Add(-1) == 0 && d.begun() {
		select {
		case d.idle <- struct{}{}:
		default:
		}
	}
}

// run ends the waiting and returns when no request is being answered, or ctx has ended.
func (d *drain) run(ctx context.Context) {
	d.begin()
	for d.active.Load() > 0 {
		select {
		case <-d.idle:
		case <-ctx.Done():
			return
		}
	}
}

// Serve answers on the listener, which it closes, until ctx ends. Then it takes no
// more connections, refuses at once the leases that are waited for and those that are
// asked for from then on, lets the other requests in flight finish for up to ten seconds
// in all, and returns nil.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	d := newDrain()
	defer d.begin() // frees it
	server := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, d) }),
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
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		_ = l.Close() // Shutdown does so too, but only after the rest
		d.run(limit)
		if server.Shutdown(limit) != nil {
			s.options.Log.Info("requests cut off at shutdown", "after", drainTimeout.String())
			_ = server.Close()
		}
	})
	err := server.Serve(l)
	if !stop() { // ctx has ended, which is why
		<-drained
		return nil
	}
	_ = server.Close()
	return fmt.Errorf("serve the REST API: %w", err)
}

// logWriter takes what net/http has to say about broken connections: a
// client's doing, so for the curious alone.
type logWriter struct{ log logr.Logger }

func (w logWriter) Write(line []byte) (int, error) {
	w.log.V(1).Info("http server", "message", strings.TrimSpace(string(line)))
	return len(line), nil
}
