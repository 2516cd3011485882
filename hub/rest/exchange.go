package rest

import (
	"net/http"
	"strconv"
	"sync"

	"github.com/gorilla/mux"
)

// exchange is one request and its answer on their way through the server. It is the
// http.ResponseWriter that everything writes to, so that the status is known.
type exchange struct {
	http.ResponseWriter
	request *http.Request
	// path is the request's as it was sent.
	path string
	// match is what the router found for it.
	match mux.RouteMatch
	drain *drain
	// status is what was sent; zero: nothing yet.
	status int
	// hungUp says that there is nobody to answer.
	hungUp bool
}

// lease is the id in the path.
func (x *exchange) lease() string { return x.match.Vars["id"] }

// statusHungUp is what the log shows when the client left before its answer. Nobody is
// sent it; the number is nginx's.
const statusHungUp = 499

// WriteHeader implements http.ResponseWriter.
func (x *exchange) WriteHeader(status int) {
	if x.status == 0 && status >= http.StatusOK {
		x.status = status
		if x.drain.begun() {
			x.Header()["Connection"] = headerClose
		}
	}
	x.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (x *exchange) Write(b []byte) (int, error) {
	if x.status == 0 {
		x.WriteHeader(http.StatusOK)
	}
	return x.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// Headers that are the same in every answer. net/http copies them and changes none.
var (
	headerJSON    = []string{"application/json"}
	headerYAML    = []string{"application/yaml"}
	headerText    = []string{"text/plain; charset=utf-8"}
	headerNoStore = []string{"no-store"}
	headerNoSniff = []string{"nosniff"}
	headerClose   = []string{"close"}
)

// send answers with a body. It is whole by now, so that it has a length, and whatever
// went wrong in making it was still a 500.
func (x *exchange) send(status int, contentType []string, body []byte) {
	h := x.Header()
	h["Content-Type"] = contentType
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	h["Cache-Control"] = headerNoStore
	h["X-Content-Type-Options"] = headerNoSniff
	x.WriteHeader(status)
	_, _ = x.Write(body) // the client is gone: nothing to be done
}

// buffers are for bodies. Most are a lease's; the few large ones are not kept.
var buffers = sync.Pool{New: func() any { return &buffer{make([]byte, 0, 1<<10)} }}

type buffer struct{ bytes []byte }

const maxKept = 64 << 10

// answer sends v as JSON, in the form that appendTo gives it.
func answer[T any](x *exchange, status int, v T, appendTo func([]byte, T) []byte) {
	b := buffers.Get().(*buffer)
	b.bytes = append(appendTo(b.bytes[:0], v), '\n')
	x.send(status, headerJSON, b.bytes) // which copies it
	if cap(b.bytes) <= maxKept {
		buffers.Put(b)
	}
}
