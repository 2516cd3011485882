package openapi

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Description is an API as its document describes it. Any number of goroutines may use it.
type Description struct {
	operations []*operation
	others     map[int]*response

	mu   sync.Mutex
	seen map[string]bool
}

// Request is what a client sent.
type Request struct {
	Method string
	// Path is as it was sent: escaped, and with its query, if any, after a "?".
	Path   string
	Header http.Header
	Body   []byte
}

// Answer is what came back. Body is the whole body.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// operation is one method of one path.
type operation struct {
	method, path string
	segments     []string // of path, between its slashes
	parameters   []*parameter
	body         *body // nil: none is described
	responses    map[int]*response
}

// parameter is one of a path, a query or the headers.
type parameter struct {
	name, in string
	required bool
	// free stands for all query parameters that have no name of their own.
	free   bool
	schema *jsonschema.Schema
}

// body is a request's.
type body struct {
	required bool
	schema   *jsonschema.Schema
}

// response is one status of one operation.
type response struct {
	headers []*header
	content map[string]*jsonschema.Schema // by media type; empty: there is no body
	codes   []string                      // that the member error of the body can be; empty: it is no error
}

// header is one of a response.
type header struct {
	name     string
	required bool
	schema   *jsonschema.Schema
}

// Load reads a description; it fails the test when the document is itself wrong.
func Load(tb testing.TB, yaml []byte) *Description {
	tb.Helper()
	d, err := parse(yaml)
	if err != nil {
		tb.Fatalf("the OpenAPI description is wrong: %v", err)
	}
	return d
}

// Unseen lists operations, statuses and error codes of the description that no Check has met,
// for example "POST /v1/leases 422 idempotency_conflict". An exchange counts when it was as
// described; HEAD does not count for GET. Answers to other paths are not listed.
func (d *Description) Unseen() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var unseen []string
	for _, o := range d.operations {
		for status, r := range o.responses {
			for _, code := range append(slices.Clone(r.codes), "") {
				key := o.key(status, code)
				if (code == "") == (len(r.codes) == 0) && !d.seen[key] {
					unseen = append(unseen, key)
				}
			}
		}
	}
	slices.Sort(unseen)
	return unseen
}

func (d *Description) saw(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen[key] = true
}

func (o *operation) key(status int, code string) string {
	return strings.TrimSuffix(o.method+" "+o.path+" "+strconv.Itoa(status)+" "+code, " ")
}

// find returns the operation, nil when there is none, and which methods the path takes.
// Of two paths that match, the one with fewer parameters counts. Segments are compared as
// they were sent: an encoded letter is another path, and an encoded slash ends no segment.
func (d *Description) find(method, path string) (found *operation, methods []string) {
	given := strings.Split(strings.TrimPrefix(path, "/"), "/")
	best := len(given) + 1
	for _, o := range d.operations {
		open, ok := o.match(given)
		if !ok || !strings.HasPrefix(path, "/") || open > best {
			continue
		}
		if open < best {
			best, found, methods = open, nil, nil
		}
		methods = append(methods, o.method)
		if o.method == method {
			found = o
		}
	}
	if slices.Contains(methods, http.MethodGet) && !slices.Contains(methods, http.MethodHead) {
		methods = append(methods, http.MethodHead)
		if method == http.MethodHead {
			found, _ = d.find(http.MethodGet, path)
		}
	}
	slices.Sort(methods)
	return found, methods
}

// match says whether the segments are of this path, and how many of them are parameters.
func (o *operation) match(given []string) (open int, ok bool) {
	if len(given) != len(o.segments) {
		return 0, false
	}
	for i, segment := range o.segments {
		switch {
		case isTemplate(segment):
			open++
			if given[i] == "" {
				return 0, false
			}
		case segment != given[i]:
			return 0, false
		}
	}
	return open, true
}

func isTemplate(segment string) bool {
	return strings.HasPrefix(segment, "{") && strings.HasSuffix(segment, "}")
}
