package rest_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/lease"
	"github.com/proxyfleet/proxy-operator/hub/rest"
	"github.com/proxyfleet/proxy-operator/internal/testkit/openapi"
)

const token = "s3cret-token"

// api is a server on a real port, with a fleet and a store as the app wires them.
type api struct {
	t       *testing.T
	client  *http.Client
	addr    string
	dial    func() (net.Conn, error)
	fleet   *fleet.Fleet
	leases  *lease.Store
	metrics *outcomes
	log     *lines
	stop    context.CancelFunc
	done    chan error
}

// outcomes counts what the API reports.
type outcomes struct {
	sync.Mutex
	seen  []string
	waits []time.Duration
}

func (o *outcomes) LeaseRequest(outcome string) {
	o.Lock()
	defer o.Unlock()
	o.seen = append(o.seen, outcome)
}

func (o *outcomes) LeaseWait(d time.Duration) {
	o.Lock()
	defer o.Unlock()
	o.waits = append(o.waits, d)
}

func (o *outcomes) String() string {
	o.Lock()
	defer o.Unlock()
	return strings.Join(o.seen, " ")
}

// lines is what was logged.
type lines struct {
	sync.Mutex
	b strings.Builder
}

func (l *lines) add(prefix, args string) {
	l.Lock()
	defer l.Unlock()
	l.b.WriteString(prefix + " " + args + "\n")
}

func (l *lines) String() string {
	l.Lock()
	defer l.Unlock()
	return l.b.String()
}

func newAPI(t *testing.T, change func(*rest.Options), proxies ...fleet.Proxy) *api {
	t.Helper()
	return newAPIOf(t, lease.Options{}, change, proxies...)
}

// newAPIOf is newAPI with a store that is set otherwise.
func newAPIOf(t *testing.T, store lease.Options, change func(*rest.Options), proxies ...fleet.Proxy) *api {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := startAPI(t, l, store, change, proxies...)
	a.addr, a.client = l.Addr().String(), plain
	a.dial = func() (net.Conn, error) { return net.Dial("tcp", a.addr) }
	return a
}

func startAPI(t *testing.T, l net.Listener, store lease.Options, change func(*rest.Options), proxies ...fleet.Proxy) *api {
	t.Helper()
	a := &api{t: t, fleet: fleet.New(fleet.Options{AllowLocal: true}), leases: lease.New(store), metrics: &outcomes{}, log: &lines{}, done: make(chan error, 1)}
	for _, p := range proxies {
		a.fleet.Upsert(p)
	}
	a.fleet.Follow(a.leases.Observe)
	options := rest.Options{
		Token: token, Leases: a.leases, Metrics: a.metrics,
		Log: funcr.New(a.log.add, funcr.Options{}),
	}
	if change != nil {
		change(&options)
	}
	ctx, cancel := context.WithCancel(context.Background())
	a.stop = cancel
	go func() { a.done <- rest.New(options).Serve(ctx, l) }()
	running, end := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.leases.Run(running) }()
	t.Cleanup(func() {
		cancel()
		a.stopped()
		end()
		<-ended
	})
	return a
}

// stopped waits for the end of Serve. It may be asked more than once.
func (a *api) stopped() {
	a.t.Helper()
	select {
	case err := <-a.done:
		if err != nil {
			a.t.Errorf("Serve: %v", err)
		}
		a.done <- nil
	case <-time.After(20 * time.Second):
		a.t.Error("Serve did not return")
	}
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
	closes bool // the server wants the connection closed
}

// code is the error's, if it is one.
func (a answer) code() string { return a.text("error") }

func (a answer) text(name string) string {
	var body map[string]any
	_ = json.Unmarshal([]byte(a.body), &body)
	s, _ := body[name].(string)
	return s
}

var plain = &http.Client{
	Timeout:       10 * time.Second,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// call sends a request with the token; edits may change it. It holds the request and
// its answer against the description.
func (a *api) call(method, path, body string, edits ...func(*http.Request)) answer {
	a.t.Helper()
	got, err := a.try(method, path, body, edits...)
	if err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
	return got
}

// try is call for requests that may not be answered.
func (a *api) try(method, path, body string, edits ...func(*http.Request)) (answer, error) {
	a.t.Helper()
	r, err := http.NewRequest(method, "http://"+a.addr+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	for _, edit := range edits {
		edit(r)
	}
	resp, err := a.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	got := answer{resp.StatusCode, resp.Header, string(data), resp.Close}
	described(a.t, openapi.Request{Method: method, Path: r.URL.RequestURI(), Header: r.Header, Body: []byte(body)}, got)
	return got, nil
}

// later is a call in the background.
func (a *api) later(method, path, body string, edits ...func(*http.Request)) <-chan answer {
	done := make(chan answer, 1)
	go func() {
		got, err := a.try(method, path, body, edits...)
		if err != nil {
			a.t.Errorf("%s %s %s: %v", method, path, body, err)
		}
		done <- got
	}()
	return done
}

// wantError checks status, code and the form that every error has.
func (a *api) wantError(got answer, status int, code string, inMessage ...string) {
	a.t.Helper()
	message := got.text("message")
	if got.status != status || got.code() != code || message == "" {
		a.t.Errorf("got %d %s, want %d %s with a message", got.status, got.body, status, code)
	}
	for _, part := range inMessage {
		if !strings.Contains(message, part) {
			a.t.Errorf("the message %q does not say %q", message, part)
		}
	}
	if ct := got.header.Get("Content-Type"); ct != "application/json" {
		a.t.Errorf("an error of Content-Type %q", ct)
	}
}

// lease takes one that must be granted and returns its id.
func (a *api) lease(body string) string {
	a.t.Helper()
	got := a.call("POST", "/v1/leases", body)
	if got.status != http.StatusCreated {
		a.t.Fatalf("POST /v1/leases %s: %d %s", body, got.status, got.body)
	}
	return got.text("leaseID")
}

// px is an offerable Proxy, in the form cluster/namespace/name.
func px(path string, changes ...func(*fleet.Proxy)) fleet.Proxy {
	parts := strings.Split(path, "/")
	p := fleet.Proxy{
		Key: fleet.Key{Cluster: parts[0], Namespace: parts[1], Name: parts[2]}, UID: "uid-" + parts[2],
		Protocol: "http", Host: "10.2.3.4", Port: 3128, Instance: "i", Provisioned: true,
		Verdict: fleet.Verdict{Health: fleet.Healthy, Latency: 41 * time.Millisecond},
	}
	for _, change := range changes {
		change(&p)
	}
	return p
}

func attrs(pairs ...string) func(*fleet.Proxy) {
	return func(p *fleet.Proxy) {
		p.Attributes = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			p.Attributes[pairs[i]] = pairs[i+1]
		}
	}
}

func maxLeases(n int) func(*fleet.Proxy) { return func(p *fleet.Proxy) { p.MaxLeases = n } }

func sick(p *fleet.Proxy) { p.Verdict = fleet.Verdict{Health: fleet.Unhealthy} }

// sameJSON compares two JSON texts, whatever the order of their members.
func sameJSON(t *testing.T, got, want string) {
	t.Helper()
	var g, w any
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		t.Fatalf("%v in %s", err, got)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatalf("%v in %s", err, want)
	}
	gotText, _ := json.Marshal(g)
	wantText, _ := json.Marshal(w)
	if string(gotText) != string(wantText) {
		t.Errorf("got  %s\nwant %s", gotText, wantText)
	}
}
