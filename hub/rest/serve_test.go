package rest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/lease"
	"github.com/proxyfleet/proxy-operator/hub/rest"
	"github.com/proxyfleet/proxy-operator/internal/testkit/openapi"
)

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
		got := a.send(tc.start + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n").read()
		if took := time.Since(began); got.status != tc.status || took > 10*time.Second {
			t.Errorf("%.40q: %d after %s, want %d at once", tc.start, got.status, took.Round(time.Millisecond), tc.status)
		}
	}
}

func TestSlowClientsDelayNobody(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	for i := range 2000 { // a page that fits into no buffer
		a.fleet.Upsert(px(fmt.Sprintf("d/n/p%04d", i), func(p *fleet.Proxy) { p.Provisioned = false }))
	}
	const page = "GET /v1/proxies?limit=5000 HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer " + token + "\r\n\r\n"
	var slow, idle *conn
	for range 4 {
		a.send(strings.Repeat(page, 8)) // reads none of its answers
	}
	for range 200 {
		idle = a.connect()                           // never says a word
		a.send("POST /v1/lea")                       // half a request line
		a.send("GET / HTTP/1.1\r\nHost:")            // half the headers
		slow = a.send(slowLease + "{\"ttlSeconds\"") // half the body
	}
	// They are still there, and so is everybody else.
	var ids []string
	for range 20 {
		ids = append(ids, a.lease(""))
	}
	for _, id := range ids {
		a.call("DELETE", "/v1/leases/"+id, "")
	}
	if n := a.leases.ActiveByCluster()["c"]; n != 0 {
		t.Errorf("%d leases; half a body granted one", n)
	}
	slow.send(":    1}")
	if got := slow.read(); got.status != http.StatusCreated {
		t.Errorf("the slow one in the end: %d %s", got.status, got.body)
	}
	idle.send(page)
	if got := idle.read(); got.status != http.StatusOK {
		t.Errorf("the idle one in the end: %d", got.status)
	}
	trickle := a.connect()
	for _, part := range slowLease + `{"ttlSeconds":    1}` {
		trickle.send(string(part))
	}
	if got := trickle.read(); got.status != http.StatusCreated {
		t.Errorf("byte by byte: %d %s", got.status, got.body)
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
		got := a.send(line + auth).read()
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
		if got := a.send(raw).read(); got.status != status {
			t.Errorf("%.60s: %d, want %d", raw, got.status, status)
		}
	}
}

func TestHeadersChangeNothingThatTheyMustNot(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	path := "/v1/leases/" + a.lease("")
	auth := "Authorization: Bearer " + token + "\r\n"
	for _, tc := range []struct {
		name, line, headers, body string
		status                    int
		code                      string
	}{
		{"HTTP/1.0", "POST /v1/leases HTTP/1.0", auth, "", 201, ""},
		{"no token, but a path that needs none", "GET /v1/proxies HTTP/1.1", "X-Original-URL: /healthz\r\nX-Rewrite-URL: /healthz\r\n", "", 401, "unauthorized"},
		{"no token, from nearby", "GET /v1/proxies HTTP/1.1", "X-Forwarded-For: 127.0.0.1\r\nForwarded: for=127.0.0.1\r\n", "", 401, "unauthorized"},
		{"the token twice", "GET /v1/proxies HTTP/1.1", auth + auth, "", 401, "unauthorized"},
		{"the token as a cookie", "GET /v1/proxies HTTP/1.1", "Cookie: Authorization=Bearer " + token + "\r\n", "", 401, "unauthorized"},
		{"another method", "POST " + path + " HTTP/1.1", auth + "X-HTTP-Method-Override: DELETE\r\n", "", 405, "method_not_allowed"},
		{"a length that is too much", "POST /v1/leases HTTP/1.1", auth + "Content-Length: 9223372036854775807\r\n", "", 413, "body_too_large"},
		{"two keys in other cases", "POST /v1/leases HTTP/1.1", auth + "idempotency-key: a\r\nIDEMPOTENCY-KEY: a\r\n", "", 400, "invalid_request"},
		{"an encoding", "POST /v1/leases HTTP/1.1", auth + "Content-Encoding: gzip\r\nContent-Length: 2\r\n", "\x1f\x8b", 400, "invalid_request"},
		{"a range", "GET " + path + " HTTP/1.1", auth + "Range: bytes=0-1\r\nIf-None-Match: *\r\n", "", 200, ""},
		{"an upgrade", "GET " + path + " HTTP/1.1", auth + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n", "", 200, ""},
		{"what only a form would accept", "GET " + path + " HTTP/1.1", auth + "Accept: text/html\r\nAccept-Encoding: gzip\r\n", "", 200, ""},
		{"another origin", "OPTIONS /v1/leases HTTP/1.1", auth + "Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n", "", 405, "method_not_allowed"},
	} {
		got := a.send(tc.line + "\r\nHost: hub\r\n" + tc.headers + "\r\n" + tc.body).read()
		if got.status != tc.status || got.code() != tc.code {
			t.Errorf("%s: %d %s, want %d %s", tc.name, got.status, got.body, tc.status, tc.code)
		}
		for name := range got.header {
			if strings.HasPrefix(name, "Access-Control-") || name == "Content-Encoding" || name == "Set-Cookie" {
				t.Errorf("%s: the answer has %s", tc.name, name)
			}
		}
	}
	if got := a.call("GET", path, ""); got.status != http.StatusOK {
		t.Errorf("the lease is gone: %d", got.status)
	}
}

func TestServeSaysWhyItCannot(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	server := rest.New(rest.Options{Leases: lease.New(lease.Options{})})
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

func TestClientsThatStallAreCutOff(t *testing.T) {
	half := func(path string) string { return strings.Replace(slowLease, "/v1/leases", path, 1) + "{" }
	for _, tc := range []struct {
		name, path, sends string
		after             time.Duration
	}{
		{"in the headers", "", "POST /v1/leases HTTP/1.1\r\nHost:", 5 * time.Second}, // closed without an answer
		{"in an acquire", "/v1/leases", half("/v1/leases"), 15 * time.Second},
		{"in a renewal", "/v1/leases/x/renew", half("/v1/leases/x/renew"), 15 * time.Second},
		{"in a report", "/v1/leases/x/report", half("/v1/leases/x/report"), 15 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, lease.Options{}, nil, func(a *api) {
				c := a.send(tc.sends)
				start := time.Now()
				if tc.path == "" {
					if c.rest() != "" {
						a.t.Error("answered")
					}
				} else {
					got := c.read()
					a.wantError(got, http.StatusRequestTimeout, "request_timeout", "did not arrive in time")
					described(a.t, openapi.Request{Method: "POST", Path: tc.path}, got)
					if c.rest() != "" {
						a.t.Error("the connection stays open")
					}
				}
				if took := time.Since(start); took < tc.after || took > tc.after+time.Second {
					a.t.Errorf("cut off after %v", took)
				}
			})
		})
	}
}

func TestAClientThatDoesNotReadItsAnswerIsCutOff(t *testing.T) {
	inBubble(t, lease.Options{}, nil, func(a *api) {
		a.fleet.Upsert(px("c/n/a"))
		c := a.send("GET /v1/proxies HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer " + token + "\r\n\r\n")
		start := time.Now()
		a.lease("") // while the other's answer is stuck
		if took := time.Since(start); took != 0 {
			a.t.Errorf("a lease took %v", took)
		}
		<-time.After(31 * time.Second)
		if data, err := io.ReadAll(c); err != nil || len(data) != 0 {
			a.t.Errorf("after 31 s there still is %q, %v", data, err)
		}
	})
}
