package rest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/lease"
	"github.com/proxyfleet/proxy-operator/hub/rest"
)

// send writes a part of a request on a connection of its own.
func (a *api) send(part string) net.Conn {
	a.t.Helper()
	c, err := net.Dial("tcp", a.addr)
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, part); err != nil {
		a.t.Fatal(err)
	}
	return c
}

// read takes the answer off a connection.
func read(t *testing.T, c net.Conn) answer {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(data), resp.Close}
}

const slowLease = "POST /v1/leases HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer " + token + "\r\nContent-Length: 20\r\n\r\n"

func TestAClientThatWaitsToBeToldToSendIsAnsweredAtOnce(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	for _, tc := range []struct {
		start  string
		status int
	}{
		{"POST /v1/leases HTTP/1.1\r\nHost: hub\r\n", http.StatusUnauthorized},
		{"POST /nope HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer " + token + "\r\n", http.StatusNotFound},
		{"PUT /v1/leases HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer " + token + "\r\n", http.StatusMethodNotAllowed},
		{"DELETE /v1/leases/x HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer " + token + "\r\n", http.StatusNoContent},
	} {
		began := time.Now()
		got := read(t, a.send(tc.start+"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"))
		if took := time.Since(began); got.status != tc.status || took > 10*time.Second {
			t.Errorf("%.40q: %d after %s, want %d at once", tc.start, got.status, took.Round(time.Millisecond), tc.status)
		}
	}
}

func TestSlowClientsDelayNobody(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	var slow net.Conn
	for range 50 {
		a.send("POST /v1/lea")                            // half a request line
		a.send("GET /v1/proxies HTTP/1.1\r\nHost: hub\r") // half the headers
		slow = a.send(slowLease + `{"ttlSeconds"`)        // half the body
	}
	start := time.Now()
	a.lease("")
	if took := time.Since(start); took > 4*time.Second { // less than the shortest timeout of the server
		t.Errorf("a lease took %v", took)
	}
	if n := a.leases.ActiveByCluster()["c"]; n != 1 {
		t.Errorf("%d leases; half a body granted one", n)
	}
	if _, err := io.WriteString(slow, `:    1}`); err != nil {
		t.Fatal(err)
	}
	if got := read(t, slow); got.status != http.StatusCreated {
		t.Errorf("the slow one in the end: %d %s", got.status, got.body)
	}
}

func TestRequestsThatNoClientLibrarySends(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	auth := " HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer " + token + "\r\nConnection: close\r\n\r\n"
	for line, status := range map[string]int{
		"OPTIONS *":                         http.StatusNotFound,
		"CONNECT example.com:443":           http.StatusNotFound,
		"GET http://elsewhere/v1/proxies":   http.StatusOK,
		"GET /v1/proxies/../../healthz":     http.StatusNotFound,
		"DELETE /v1/leases/../leases":       http.StatusNotFound,
		"POST /v1/leases/../leases":         http.StatusNotFound,
		"POST /v1/leases/%2e%2e/report":     http.StatusBadRequest, // an empty report
		"GET /v1/proxies?" + ";;;&&&":       http.StatusBadRequest,
		"GET /v1/proxies#fragment":          http.StatusNotFound,
		strings.Repeat("X", 3000) + " /v1/": http.StatusNotFound,
	} {
		got := read(t, a.send(line+auth))
		if got.status != status {
			t.Errorf("%.60s: %d %s, want %d", line, got.status, got.body, status)
		}
		if got.status >= 400 && got.code() == "" {
			t.Errorf("%.60s: no JSON error: %s", line, got.body)
		}
	}
	// Refused by net/http itself, in its own words; what matters is that it is.
	for raw, status := range map[string]int{
		"GET /v1/proxies?" + strings.Repeat("y", 100<<10) + auth: http.StatusRequestHeaderFieldsTooLarge,
		"GET /%zz" + auth: http.StatusBadRequest,
		"POST /v1/leases HTTP/1.1\r\nHost: hub\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}" + "\n": http.StatusBadRequest,
	} {
		if got := read(t, a.send(raw)); got.status != status {
			t.Errorf("%.60s: %d, want %d", raw, got.status, status)
		}
	}
}

func TestRequestsInFlightFinishAtShutdown(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	// A connection whose headers the server has not read yet is cut: in flight is
	// what it has told to go on.
	inFlight := a.send(strings.Replace(slowLease, "\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n", 1))
	const goOn = "HTTP/1.1 100 Continue\r\n\r\n"
	told := make([]byte, len(goOn))
	if _, err := io.ReadFull(inFlight, told); err != nil || string(told) != goOn {
		t.Fatalf("%q, %v", told, err)
	}
	if _, err := io.WriteString(inFlight, `{"ttlSeconds"`); err != nil {
		t.Fatal(err)
	}
	a.stop()
	for { // until nobody is let in any more
		c, err := net.Dial("tcp", a.addr)
		if err != nil {
			break
		}
		_ = c.Close()
	}
	select {
	case err := <-a.done:
		t.Fatalf("Serve returned with a request in flight: %v", err)
	default:
	}
	if _, err := io.WriteString(inFlight, `:    1}`); err != nil {
		t.Fatal(err)
	}
	if got := read(t, inFlight); got.status != http.StatusCreated {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestServeSaysWhyItCannot(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	server := rest.New(rest.Options{Fleet: fleet.New(fleet.Options{AllowLocal: true}), Leases: lease.New(lease.Options{})})
	if err := server.Serve(t.Context(), l); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve on a closed listener: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if err := server.Serve(ended, l); err != nil {
		t.Errorf("Serve with an ended context: %v", err)
	}
}

// pipes is a listener whose connections live in a bubble's time.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }
func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

func TestClientsThatStallAreCutOff(t *testing.T) {
	for _, tc := range []struct {
		name, sends string
		after       time.Duration
		status      int // zero: closed without an answer
	}{
		{"in the headers", "POST /v1/leases HTTP/1.1\r\nHost:", 5 * time.Second, 0},
		{"in the body", slowLease + "{", 15 * time.Second, http.StatusRequestTimeout},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				l, done := newPipes(), make(chan error, 1)
				server := rest.New(rest.Options{Token: token, Fleet: fleet.New(fleet.Options{AllowLocal: true}), Leases: lease.New(lease.Options{})})
				go func() { done <- server.Serve(ctx, l) }()
				c := l.dial()
				if _, err := io.WriteString(c, tc.sends); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				data, err := io.ReadAll(c)
				if took := time.Since(start); err != nil || took < tc.after || took > tc.after+time.Second {
					t.Errorf("cut off after %v, %v", took, err)
				}
				if tc.status == 0 && len(data) != 0 {
					t.Errorf("answered %s", data)
				}
				if tc.status != 0 && !strings.HasPrefix(string(data), fmt.Sprintf("HTTP/1.1 %d ", tc.status)) {
					t.Errorf("answered %s", data)
				}
				cancel()
				if err := <-done; err != nil {
					t.Errorf("Serve: %v", err)
				}
			})
		})
	}
}

func TestShutdownDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l, done := newPipes(), make(chan error, 1)
		hang := make(chan struct{})
		server := rest.New(rest.Options{
			Fleet: fleet.New(fleet.Options{AllowLocal: true}), Leases: lease.New(lease.Options{}),
			Ready: func() bool { <-hang; return true },
		})
		go func() { done <- server.Serve(ctx, l) }()
		c := l.dial()
		if _, err := io.WriteString(c, "POST /v1/leases HTTP/1.1\r\nHost: hub\r\nContent-Length: 0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		start := time.Now()
		cancel()
		if err := <-done; err != nil || time.Since(start) > 11*time.Second {
			t.Errorf("Serve returned %v after %v", err, time.Since(start))
		}
		close(hang)
	})
}
