package rest_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/proxyfleet/proxy-operator/hub/rest"
)

func TestHealthzNeedsNoToken(t *testing.T) {
	a := newAPI(t, nil)
	noToken := func(r *http.Request) { r.Header.Del("Authorization") }
	if got := a.call("GET", "/healthz", "", noToken); got.status != http.StatusOK || got.body != "ok" {
		t.Errorf("%d %q", got.status, got.body)
	}
	if got := a.call("HEAD", "/healthz?from=lb", "", noToken); got.status != http.StatusOK || got.body != "" {
		t.Errorf("HEAD: %d %q", got.status, got.body)
	}
}

func TestOnlyTheTokenOpensTheAPI(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	for _, tc := range []struct {
		name   string
		header []string
		opens  bool
	}{
		{"none", nil, false},
		{"empty", []string{""}, false},
		{"the right one", []string{"Bearer " + token}, true},
		{"the scheme in lower case", []string{"bearer " + token}, true},
		{"no scheme", []string{token}, false},
		{"another scheme", []string{"Basic " + token}, false},
		{"scheme alone", []string{"Bearer"}, false},
		{"empty token", []string{"Bearer "}, false},
		{"a prefix", []string{"Bearer " + token[:5]}, false},
		{"more than it", []string{"Bearer " + token + "x"}, false},
		{"another case", []string{"Bearer " + strings.ToUpper(token)}, false},
		{"two headers", []string{"Bearer " + token, "Bearer x"}, false},
		{"very long", []string{"Bearer " + strings.Repeat("x", 20000)}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a.t = t
			with := func(r *http.Request) { r.Header["Authorization"] = tc.header }
			for _, call := range [][2]string{
				{"GET", "/v1/proxies"}, {"GET", "/v1/clusters"}, {"POST", "/v1/leases"}, {"DELETE", "/v1/leases/x"}, {"POST", "/v1/leases/x/report"},
				{"GET", "/v1/leases/x"}, {"POST", "/v1/leases/x/renew"}, {"GET", "/openapi.yaml"},
				{"GET", "/nowhere"}, {"PUT", "/v1/leases"}, {"GET", "/healthz/"}, {"GET", "//healthz"}, {"GET", "/v1/..%2fhealthz"},
			} {
				got := a.call(call[0], call[1], "", with)
				if tc.opens {
					if got.status == http.StatusUnauthorized {
						t.Errorf("%v refused", call)
					}
					continue
				}
				a.wantError(got, http.StatusUnauthorized, "unauthorized", "Authorization: Bearer")
				if got.header.Get("WWW-Authenticate") != "Bearer" {
					t.Errorf("WWW-Authenticate %q", got.header.Get("WWW-Authenticate"))
				}
			}
		})
	}
}

func TestAnEmptyTokenMeansNoAuthentication(t *testing.T) {
	a := newAPI(t, func(o *rest.Options) { o.Token = "" }, px("c/n/a"))
	for _, header := range []string{"", "Bearer whatever"} {
		if got := a.call("POST", "/v1/leases", "", func(r *http.Request) { r.Header.Set("Authorization", header) }); got.status != http.StatusCreated {
			t.Errorf("%q: %d", header, got.status)
		}
	}
}

func TestPathsThatAreNoneAre404WithoutARedirect(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	for _, path := range []string{
		"/", "/v1", "/v1/", "/v1//leases", "//v1/leases", "//v1//leases", "/v1/leases/", "/v1/leases//report", "/v1/./leases",
		"/v1/../v1/leases", "/V1/leases", "/v1/%6ceases", "/v1%2Fleases", "/v1/leases%00", "/v1/leases/x/report/", "/v1/leases/x/y/report",
		"/v1/leases/x/renew/", "/v1/leases//renew", "/v1/leases/x/Renew", "/v1/leases/x%2Frenew/y", "/v1/clusters/", "/v1/clusters/c", "/v1/gc",
		"/openapi.yaml/", "/openapi.yml", "/openapi", "/OPENAPI.yaml", "/metrics", "/debug/pprof/", "/healthz/", "/%68ealthz",
	} {
		for _, method := range []string{"GET", "POST", "DELETE", "BREW"} {
			a.wantError(a.call(method, path, ""), http.StatusNotFound, "not_found")
		}
	}
}

func TestMethodsThatAreNotAllowedAreTold(t *testing.T) {
	a := newAPI(t, nil)
	for path, allow := range map[string]string{
		"/healthz":            "GET, HEAD",
		"/v1/proxies":         "GET, HEAD",
		"/v1/clusters":        "GET, HEAD",
		"/v1/leases":          "POST",
		"/openapi.yaml":       "GET, HEAD",
		"/v1/leases/x":        "GET, HEAD, DELETE",
		"/v1/leases/x/renew":  "POST",
		"/v1/leases/x/report": "POST",
	} {
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"} {
			if slices.Contains(strings.Split(allow, ", "), method) {
				continue
			}
			got := a.call(method, path, "")
			a.wantError(got, http.StatusMethodNotAllowed, "method_not_allowed", "this path takes "+allow)
			if got.header.Get("Allow") != allow {
				t.Errorf("%s %s: Allow %q", method, path, got.header.Get("Allow"))
			}
		}
	}
	if got := a.call("HEAD", "/v1/leases", ""); got.status != http.StatusMethodNotAllowed || got.body != "" {
		t.Errorf("HEAD /v1/leases: %d %q", got.status, got.body)
	}
}

func TestBodiesOver64KiBAreRefused(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	fill := func(size int) string { return "{}" + strings.Repeat(" ", size-2) }
	id := a.lease(fill(64 << 10))
	chunked := func(body string) func(*http.Request) {
		return func(r *http.Request) {
			r.ContentLength = -1
			r.Body = io.NopCloser(struct{ io.Reader }{strings.NewReader(body)})
		}
	}
	for name, got := range map[string]answer{
		"a byte more":          a.call("POST", "/v1/leases", fill(64<<10+1)),
		"a byte more, chunked": a.call("POST", "/v1/leases", "", chunked(fill(64<<10+1))),
		"much more, chunked":   a.call("POST", "/v1/leases", "", chunked(fill(200<<10))),
		"a report":             a.call("POST", "/v1/leases/"+id+"/report", fill(100<<10)),
		"a renewal":            a.call("POST", "/v1/leases/"+id+"/renew", fill(100<<10)),
		"a look":               a.call("GET", "/v1/leases/"+id, fill(100<<10)),
		"the list":             a.call("GET", "/v1/proxies", fill(100<<10)),
		"the clusters":         a.call("GET", "/v1/clusters", fill(100<<10)),
		"the description":      a.call("GET", "/openapi.yaml", fill(100<<10)),
		"the health":           a.call("GET", "/healthz", fill(100<<10)),
		"where none is read":   a.call("DELETE", "/v1/leases/"+id, fill(100<<10)),
		"nor in chunks":        a.call("DELETE", "/v1/leases/"+id, "", chunked(fill(200<<10))),
		"to a list, in chunks": a.call("GET", "/v1/proxies", "", chunked(fill(200<<10))),
		"on an unknown path":   a.call("POST", "/nowhere", fill(100<<10)),
	} {
		a.wantError(got, http.StatusRequestEntityTooLarge, "body_too_large", "larger than 65536 bytes")
		if !got.closes {
			t.Errorf("%s: the connection stays open for the rest", name)
		}
	}
	if n := a.leases.ActiveByCluster()["c"]; n != 1 {
		t.Errorf("%d active leases, want the first alone", n)
	}
}

func TestAPanicIsA500AndTheServerGoesOn(t *testing.T) {
	var panicked atomic.Bool
	a := newAPI(t, func(o *rest.Options) {
		o.Ready = func() bool {
			if panicked.CompareAndSwap(false, true) {
				panic("boom " + "inside")
			}
			return true
		}
	}, px("c/n/a"))
	got := a.call("POST", "/v1/leases", "")
	a.wantError(got, http.StatusInternalServerError, "internal", "its log says why")
	if strings.Contains(got.body, "boom") {
		t.Errorf("the client sees %s", got.body)
	}
	a.lease("")
	log := a.log.String()
	if !strings.Contains(log, "boom inside") || !strings.Contains(log, "http_test.go") || !strings.Contains(log, `"status"=500`) {
		t.Errorf("log %s", log)
	}
	if got := a.metrics.String(); got != "error granted" {
		t.Errorf("outcomes %s", got)
	}
}

func TestTheLogHasALinePerRequestAndNoSecrets(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	a.call("GET", "/v1/proxies?cluster=query-secret", "")
	a.call("GET", "/v1/clusters?x=query-secret", "")
	a.call("POST", "/v1/leases", `{"target":"body-secret.example"}`, func(r *http.Request) { r.Header.Set("X-Key", "header-secret") })
	a.call("GET", "/"+strings.Repeat("x", 5000), "")
	a.call("GET", "/nowhere", "", func(r *http.Request) { r.Header.Set("Authorization", "Bearer wrong-secret") })
	a.call("GET", "/healthz", "")
	a.stop()
	a.stopped()
	log := a.log.String()
	for _, want := range []string{
		`"method"="GET" "path"="/v1/proxies" "status"=200 "duration"=`,
		`"method"="GET" "path"="/v1/clusters" "status"=400`,
		`"method"="POST" "path"="/v1/leases" "status"=201`,
		`"status"=404`,
		`"path"="/nowhere" "status"=401`,
	} {
		if !strings.Contains(log, want) {
			t.Errorf("no %s in %s", want, log)
		}
	}
	if strings.Contains(log, "secret") || strings.Contains(log, token) || len(log) > 2000 || strings.Contains(log, "/healthz") {
		t.Errorf("log %s", log)
	}
}
