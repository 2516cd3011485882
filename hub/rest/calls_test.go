package rest_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/lease"
	"github.com/proxyfleet/proxy-operator/hub/rest"
)

// key sets the header Idempotency-Key, once for each value.
func key(values ...string) func(*http.Request) {
	return func(r *http.Request) { r.Header["Idempotency-Key"] = values }
}

func TestALeaseIsReadAsItIsNow(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a", attrs("region", "eu"), maxLeases(3), guarded))
	a.fleet.SetCredentials(px("c/n/a").Key, "i", &fleet.Credentials{Username: "crawler", Password: "hush"})
	granted := a.call("POST", "/v1/leases", `{"target":"example.com"}`)
	path := "/v1/leases/" + granted.text("leaseID")
	read := func() answer {
		got := a.call("GET", path, "")
		if got.status != http.StatusOK || got.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%d %v %s", got.status, got.header, got.body)
		}
		return got
	}
	sameJSON(t, read().body, granted.body)
	head := a.call("HEAD", path, "")
	if head.status != http.StatusOK || head.body != "" || head.header.Get("Content-Length") != fmt.Sprint(len(granted.body)) {
		t.Errorf("HEAD: %+v", head)
	}

	a.lease("")
	sameJSON(t, read().body, strings.Replace(granted.body, `"activeLeases":1`, `"activeLeases":2`, 1))
	a.fleet.Upsert(px("c/n/a", attrs("region", "us"), maxLeases(4), guarded, sick))
	now := read().body
	for _, want := range []string{`"healthy":false`, `"phase":"Unhealthy"`, `"attributes":{"region":"us"}`, `"maxLeases":4`, `"url":"http://crawler:hush@10.2.3.4:3128"`} {
		if !strings.Contains(now, want) {
			t.Errorf("no %s in %s", want, now)
		}
	}
	a.fleet.Delete(px("c/n/a").Key, "uid-a")
	gone := read().body
	for _, want := range []string{`"healthy":false`, `"phase":"Gone"`, `"activeLeases":2`, `"uid":"uid-a"`, `"host":"10.2.3.4"`, `"url":"http://crawler:hush@10.2.3.4:3128"`} {
		if !strings.Contains(gone, want) {
			t.Errorf("no %s in %s", want, gone)
		}
	}
	if strings.Contains(gone, "latencyMillis") {
		t.Errorf("what is gone has a latency: %s", gone)
	}
	if got := a.call("DELETE", path, ""); got.status != http.StatusNoContent {
		t.Errorf("release: %d", got.status)
	}
	a.wantError(a.call("GET", path, ""), http.StatusNotFound, "unknown_lease", "take a new one")
}

func TestRenewingMovesTheEnd(t *testing.T) {
	inBubble(t, lease.Options{}, nil, func(a *api) {
		path := "/v1/leases/" + a.lease(`{"ttlSeconds":10}`)
		want := func(got answer, ttl int) {
			a.t.Helper()
			end := time.Now().Add(time.Duration(ttl) * time.Second).UTC().Format(time.RFC3339)
			if got.status != http.StatusOK || !strings.Contains(got.body, fmt.Sprintf(`"expiresAt":%q,"ttlSeconds":%d,`, end, ttl)) {
				a.t.Errorf("%d %s, want %d s until %s", got.status, got.body, ttl, end)
			}
		}
		for range 3 { // each for as long as the last time
			<-time.After(9 * time.Second)
			want(a.call("POST", path+"/renew", ""), 10)
		}
		want(a.call("POST", path+"/renew", `{"ttlSeconds":60}`), 60)
		want(a.call("POST", path+"/renew", `{"ttlSeconds":60}`), 60) // again is no error
		want(a.call("POST", path+"/renew", `{"ttlSeconds":null}`), 60)
		want(a.call("POST", path+"/renew", " \n"), 60)
		want(a.call("GET", path, ""), 60)
		for body, says := range map[string]string{
			`{"ttlSeconds":0}`:                    "ttlSeconds must be a whole number of seconds, at least 1",
			`{"ttlSeconds":86401}`:                "ttlSeconds must be from 1 to 86400",
			`{"ttlSeconds":99999999999999999999}`: "ttlSeconds must be from 1 to 86400",
			`{"ttlSeconds":"60"}`:                 "ttlSeconds must be a whole number of seconds",
			`{"ttl":60}`:                          `unknown field "ttl": this call takes ttlSeconds`,
			`{"ttlSeconds":1,"ttlSeconds":1}`:     `"ttlSeconds" more than once`,
			`[]`:                                  "must be a JSON object",
			`{`:                                   "not one JSON value",
		} {
			a.wantError(a.call("POST", path+"/renew", body), http.StatusBadRequest, "invalid_request", says)
		}
		a.wantError(a.call("POST", path+"/renew?ttlSeconds=60", ""), http.StatusBadRequest, "invalid_request", `unknown query parameter "ttlSeconds"`)
		want(a.call("GET", path, ""), 60) // no refused one has moved it
	}, px("c/n/a"))
}

func TestAnEndedLeaseSaysHowItEnded(t *testing.T) {
	const window = time.Minute
	inBubble(t, lease.Options{CooldownWindow: window}, nil, func(a *api) {
		expired := "/v1/leases/" + a.lease(`{"ttlSeconds":1}`)
		<-time.After(time.Second)
		released := "/v1/leases/" + a.lease("")
		a.call("DELETE", released, "")
		for range 2 {
			a.wantError(a.call("GET", expired, ""), http.StatusGone, "lease_expired", "take a new one")
			a.wantError(a.call("POST", expired+"/renew", ""), http.StatusGone, "lease_expired", "take a new one")
			a.wantError(a.call("GET", released, ""), http.StatusNotFound, "unknown_lease")
			a.wantError(a.call("POST", released+"/renew", ""), http.StatusNotFound, "unknown_lease")
			for _, path := range []string{expired, released} {
				if got := a.call("POST", path+"/report", `{"result":"ok"}`); got.status != http.StatusNoContent {
					a.t.Errorf("a late report: %d %s", got.status, got.body)
				}
				if got := a.call("DELETE", path, ""); got.status != http.StatusNoContent {
					a.t.Errorf("a late release: %d %s", got.status, got.body)
				}
			}
		}
		<-time.After(window)
		for _, path := range []string{expired, released, "/v1/leases/never"} {
			a.wantError(a.call("GET", path, ""), http.StatusNotFound, "unknown_lease")
			a.wantError(a.call("POST", path+"/renew", ""), http.StatusNotFound, "unknown_lease")
			a.wantError(a.call("POST", path+"/report", `{"result":"ok"}`), http.StatusNotFound, "unknown_lease")
			if got := a.call("DELETE", path, ""); got.status != http.StatusNoContent {
				a.t.Errorf("release: %d %s", got.status, got.body)
			}
		}
	}, px("c/n/a"))
}

func TestTheCallsOnALeaseTakeNoQuery(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	path := "/v1/leases/" + a.lease("")
	for _, call := range [][2]string{{"GET", path}, {"HEAD", path}, {"DELETE", path}, {"POST", path + "/renew"}, {"POST", path + "/report"}} {
		got := a.call(call[0], call[1]+"?x=1", `{"result":"ok"}`)
		if call[0] == "HEAD" {
			if got.status != http.StatusBadRequest {
				t.Errorf("%v: %d", call, got.status)
			}
			continue
		}
		a.wantError(got, http.StatusBadRequest, "invalid_request", `unknown query parameter "x"`)
	}
	if got := a.call("GET", path, ""); got.status != http.StatusOK {
		t.Errorf("the refused release has ended it: %d", got.status)
	}
}

func TestAHubThatDoesNotLeadSaysSoBeforeAllElse(t *testing.T) {
	var leads atomic.Bool
	leads.Store(true)
	a := newAPIOf(t, lease.Options{Leading: leads.Load}, func(o *rest.Options) { o.Ready = func() bool { return false } }, px("c/n/a"))
	leads.Store(false)
	for _, call := range [][3]string{
		{"POST", "/v1/leases", ""}, {"POST", "/v1/leases", "{"}, {"POST", "/v1/leases?x=1", `{"waitSeconds":50}`},
		{"GET", "/v1/leases/x", ""}, {"GET", "/v1/leases/%00?x=1", ""}, {"DELETE", "/v1/leases/x", ""}, {"DELETE", "/v1/leases/x?y", ""},
		{"POST", "/v1/leases/x/renew", "[]"}, {"POST", "/v1/leases/x/renew", ""},
		{"POST", "/v1/leases/x/report", `{"result":"ok"}`}, {"POST", "/v1/leases/x/report", ""},
	} {
		got := a.call(call[0], call[1], call[2], key("", ""))
		a.wantError(got, http.StatusServiceUnavailable, "not_leader", "does not lead")
		if got.header.Get("Retry-After") != "1" {
			t.Errorf("%v: Retry-After %q", call, got.header.Get("Retry-After"))
		}
	}
	if got := a.call("HEAD", "/v1/leases/x", ""); got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") != "1" {
		t.Errorf("HEAD: %d %v", got.status, got.header)
	}
	for _, path := range []string{"/v1/proxies", "/v1/clusters", "/healthz", "/openapi.yaml"} {
		if got := a.call("GET", path, ""); got.status != http.StatusOK {
			t.Errorf("%s: %d: whoever does not lead still knows", path, got.status)
		}
	}
	noToken := func(r *http.Request) { r.Header.Del("Authorization") }
	a.wantError(a.call("POST", "/v1/leases", "", noToken), http.StatusUnauthorized, "unauthorized")
	if got := a.metrics.String(); got != "not_leader not_leader not_leader" {
		t.Errorf("outcomes %s", got)
	}
}

func TestAFaultInsideIsA500OfEveryCall(t *testing.T) {
	var broken atomic.Bool
	fault := func() bool {
		if broken.Load() {
			panic("boom inside")
		}
		return true
	}
	a := newAPIOf(t, lease.Options{Leading: fault}, func(o *rest.Options) {
		o.Clusters = func() []rest.Cluster { fault(); return nil }
	}, px("c/n/a"))
	path := "/v1/leases/" + a.lease("")
	broken.Store(true)
	for _, call := range [][2]string{
		{"POST", "/v1/leases"}, {"GET", path}, {"DELETE", path}, {"POST", path + "/renew"}, {"POST", path + "/report"}, {"GET", "/v1/clusters"},
	} {
		got := a.call(call[0], call[1], "")
		a.wantError(got, http.StatusInternalServerError, "internal", "its log says why")
		if strings.Contains(got.body, "boom") {
			t.Errorf("the client sees %s", got.body)
		}
	}
	broken.Store(false)
	if got := a.call("GET", path, ""); got.status != http.StatusOK {
		t.Errorf("it does not go on: %d %s", got.status, got.body)
	}
}

func TestTheSameRequestWithItsKeyIsTheSameLease(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"), px("c/n/b"))
	const body = `{"target":"example.com","ttlSeconds":60}`
	first := a.call("POST", "/v1/leases", body, key("k1"))
	if first.status != http.StatusCreated {
		t.Fatalf("%d %s", first.status, first.body)
	}
	// The same request in other words is the same.
	for _, same := range []string{body, `{"ttlSeconds":60,"target":"https://Example.com./x"}`} {
		got := a.call("POST", "/v1/leases", same, key("k1"))
		if got.status != http.StatusCreated || got.text("leaseID") != first.text("leaseID") {
			t.Errorf("%s: %d %s, want the lease %s", same, got.status, got.body, first.text("leaseID"))
		}
	}
	a.wantError(a.call("POST", "/v1/leases", `{"target":"example.org"}`, key("k1")), http.StatusUnprocessableEntity, "idempotency_conflict", "send a new key")
	if got := a.call("POST", "/v1/leases", body, key("k2")); got.text("leaseID") == first.text("leaseID") {
		t.Error("another key is the same lease")
	}
	if got := a.call("POST", "/v1/leases", body); got.text("leaseID") == first.text("leaseID") {
		t.Error("no key is the same lease")
	}
	if n := a.leases.ActiveByCluster()["c"]; n != 3 {
		t.Errorf("%d leases", n)
	}
	a.call("DELETE", "/v1/leases/"+first.text("leaseID"), "")
	if got := a.call("POST", "/v1/leases", body, key("k1")); got.status != http.StatusCreated || got.text("leaseID") == first.text("leaseID") {
		t.Errorf("after its end: %d %s", got.status, got.body)
	}
	if got, want := a.metrics.String(), "granted granted granted idempotency_conflict granted granted granted"; got != want {
		t.Errorf("outcomes %s, want %s", got, want)
	}
}

func TestIdempotencyKeysThatAreRefused(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	for name, values := range map[string][]string{
		"two": {"a", "b"}, "the same twice": {"a", "a"}, "empty": {""}, "blank": {" "}, "a space inside": {"a b"}, "a tab inside": {"a\tb"},
		"256": {strings.Repeat("k", 256)}, "20000": {strings.Repeat("k", 20000)}, "not ASCII": {"schlüssel"}, "not UTF-8": {"\xff"},
	} {
		got := a.call("POST", "/v1/leases", "", key(values...))
		a.wantError(got, http.StatusBadRequest, "invalid_request", "Idempotency-Key", "1 to 255 visible ASCII characters")
		if len(got.body) > 300 {
			t.Errorf("%s: an error of %d bytes", name, len(got.body))
		}
	}
	if n := a.leases.ActiveByCluster()["c"]; n != 0 {
		t.Errorf("%d leases from refused requests", n)
	}
	for _, good := range []string{"k", `!"#$%&'()*+,-./:;<=>?@[\]^_{|}~` + "`", strings.Repeat("k", 255), " padded "} {
		if got := a.call("POST", "/v1/leases", "", key(good)); got.status != http.StatusCreated {
			t.Errorf("%.40q: %d %s", good, got.status, got.body)
		}
	}
	path := "/v1/leases/" + a.lease("")
	for _, call := range [][3]string{
		{"GET", "/v1/proxies", ""}, {"GET", path, ""}, {"POST", path + "/renew", ""}, {"POST", path + "/report", `{"result":"ok"}`}, {"DELETE", path, ""},
	} {
		if got := a.call(call[0], call[1], call[2], key("", "b")); got.status >= 300 {
			t.Errorf("%v: %d %s: the header means nothing here", call, got.status, got.body)
		}
	}
}
