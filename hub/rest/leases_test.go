package rest_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/rest"
)

func TestALeaseOnTheWire(t *testing.T) {
	a := newAPI(t, nil,
		px("eu-west/crawl/eu-1", attrs("region", "eu"), maxLeases(10)),
		px("us-east/crawl/us-1", attrs("region", "us")))
	before := time.Now()
	got := a.call("POST", "/v1/leases", `{"selector":{"region":"eu"},"cluster":"eu-west","target":"https://Example.com/x","ttlSeconds":60}`)
	if got.status != http.StatusCreated || got.header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %s", got.status, got.body)
	}
	id, expires := got.text("leaseID"), got.text("expiresAt")
	sameJSON(t, got.body, fmt.Sprintf(`{"leaseID":%q,"client":"default","target":"example.com","expiresAt":%q,"ttlSeconds":60,
		"proxy":{"cluster":"eu-west","namespace":"crawl","name":"eu-1","uid":"uid-eu-1","protocol":"http","host":"10.2.3.4","port":3128,
		"url":"http://10.2.3.4:3128","attributes":{"region":"eu"},"healthy":true,"phase":"Ready","latencyMillis":41,"activeLeases":1,"maxLeases":10}}`, id, expires))
	end, err := time.Parse("2006-01-02T15:04:05Z", expires)
	if off := end.Sub(before.Add(time.Minute)); err != nil || off < -time.Second || off > 10*time.Second {
		t.Errorf("expiresAt %s, %v off, %v", expires, off, err)
	}
	if len(id) < 22 || strings.ContainsAny(id, "/+=%?# ") {
		t.Errorf("id %q", id)
	}
}

func TestWhatAProxyLacksIsLeftOutOfItsLease(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a", func(p *fleet.Proxy) { p.Host, p.Verdict.Latency = "2001:db8::1", 0 }))
	for i, body := range []string{"", "  \n", "{}", `{"selector":null,"cluster":null,"target":null,"ttlSeconds":null,"waitSeconds":null}`, `{"selector":{},"cluster":"","target":""}`} {
		got := a.call("POST", "/v1/leases", body)
		if got.status != http.StatusCreated {
			t.Fatalf("%q: %d %s", body, got.status, got.body)
		}
		sameJSON(t, got.body, fmt.Sprintf(`{"leaseID":%q,"client":"default","target":"","expiresAt":%q,"ttlSeconds":300,
			"proxy":{"cluster":"c","namespace":"n","name":"a","uid":"uid-a","protocol":"http","host":"2001:db8::1","port":3128,
			"url":"http://[2001:db8::1]:3128","attributes":{},"healthy":true,"phase":"Ready","activeLeases":%d}}`, got.text("leaseID"), got.text("expiresAt"), i+1))
	}
}

func TestNoMatchSaysWhyAndWhenToComeBack(t *testing.T) {
	a := newAPI(t, nil, px("c/n/full", maxLeases(1)), px("c/n/cool", attrs("x", "y")), px("c/n/sick", sick),
		px("c/n/going", func(p *fleet.Proxy) { p.Deleting = true }))
	got := a.call("POST", "/v1/leases", `{"cluster":"nowhere"}`)
	sameJSON(t, got.body, `{"error":"no_match","message":"no Proxy matches the selector and cluster","considered":0,"unhealthy":0,"atCapacity":0,"inCooldown":0}`)
	if got.status != http.StatusConflict || got.header.Get("Retry-After") != "" {
		t.Errorf("%d, Retry-After %q: nothing there to wait for", got.status, got.header.Get("Retry-After"))
	}

	cool := a.lease(`{"selector":{"x":"y"},"target":"example.com"}`)
	if got := a.call("POST", "/v1/leases/"+cool+"/report", `{"result":"rate_limited","cooldownSeconds":30}`); got.status != http.StatusNoContent || got.body != "" {
		t.Fatalf("report: %d %s", got.status, got.body)
	}
	full := a.lease(`{"target":"example.com","ttlSeconds":3600}`)
	got = a.call("POST", "/v1/leases", `{"target":"http://EXAMPLE.com:80/"}`)
	a.wantError(got, http.StatusConflict, "no_match", "of 3, 1 are not healthy, 1 are at maxLeases and 1 are cooling down")
	sameJSON(t, got.body, fmt.Sprintf(`{"error":"no_match","message":%q,"considered":3,"unhealthy":1,"atCapacity":1,"inCooldown":1}`, got.text("message")))
	if after, err := strconv.Atoi(got.header.Get("Retry-After")); err != nil || after < 20 || after > 30 {
		t.Errorf("Retry-After %q", got.header.Get("Retry-After"))
	}
	if got := a.call("DELETE", "/v1/leases/"+full, ""); got.status != http.StatusNoContent || got.body != "" {
		t.Errorf("release: %d %s", got.status, got.body)
	}
	a.lease(`{"target":"example.com"}`)
	if got, want := a.metrics.String(), "no_match granted granted no_match granted"; got != want {
		t.Errorf("outcomes %s, want %s", got, want)
	}
}

func TestReleaseIsAlways204(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	id := a.lease("")
	for _, path := range []string{id, id, "unknown", "%2e%2e", "..", "a%2Fb", "%00", strings.Repeat("x", 5000)} {
		if got := a.call("DELETE", "/v1/leases/"+path, "ignored"); got.status != http.StatusNoContent || got.body != "" {
			t.Errorf("DELETE %.20s: %d %s", path, got.status, got.body)
		}
	}
	if n := a.leases.ActiveByCluster()["c"]; n != 0 {
		t.Errorf("%d active leases", n)
	}
	if got := a.call("POST", "/v1/leases/"+id+"/report", `{"result":"banned"}`); got.status != http.StatusNoContent {
		t.Errorf("a late report: %d %s", got.status, got.body)
	}
}

func TestReportsThatAreRefused(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	id := a.lease("")
	for _, tc := range []struct {
		name, id, body string
		status         int
		code           string
		says           []string
	}{
		{"no body", id, "", 400, "invalid_result", []string{`"ok", "rate_limited" or "banned"`}},
		{"no result", id, `{"target":"x"}`, 400, "invalid_result", nil},
		{"another result", id, `{"result":"OK"}`, 400, "invalid_result", nil},
		{"result of another type", id, `{"result":1}`, 400, "invalid_result", nil},
		{"result null", id, `{"result":null}`, 400, "invalid_result", nil},
		{"unknown field", id, `{"result":"ok","cooldown":1}`, 400, "invalid_request", []string{`"cooldown"`, "result, target, cooldownSeconds"}},
		{"bad target", id, `{"result":"ok","target":"a b"}`, 400, "invalid_request", []string{"target must be a host name or a URL"}},
		{"no cooldown", id, `{"result":"banned","cooldownSeconds":0}`, 400, "invalid_request", []string{"cooldownSeconds must be a whole number of seconds, at least 1"}},
		{"too long a cooldown", id, `{"result":"banned","cooldownSeconds":604801}`, 400, "invalid_request", []string{"cooldownSeconds must be from 1 to 604800"}},
		{"unknown lease", "unknown", `{"result":"ok"}`, 404, "unknown_lease", []string{"no such lease"}},
		{"dots for an id", "%2e%2e", `{"result":"ok"}`, 404, "unknown_lease", nil},
		{"a slash in the id", "a%2Fb", `{"result":"ok"}`, 404, "unknown_lease", nil},
		{"a query", id, "\x00", 400, "invalid_request", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a.t = t
			a.wantError(a.call("POST", "/v1/leases/"+tc.id+"/report", tc.body), tc.status, tc.code, tc.says...)
		})
	}
	if n := a.leases.Cooldowns(); n != 0 {
		t.Errorf("%d cooldowns from refused reports", n)
	}
}

// refused is a body that an acquire refuses, and what the message says.
type refused struct {
	name, body string
	says       []string
}

var notJSON = []refused{
	{"not JSON", `{"ttlSeconds":`, []string{"not one JSON value", "byte 14"}},
	{"two values", `{} {}`, []string{"not one JSON value", "more after byte 2"}},
	{"trailing garbage", `{}x`, []string{"not one JSON value", "more after byte 2"}},
	{"trailing comma", `{"ttlSeconds":1,}`, []string{"not one JSON value"}},
	{"an array", `[]`, []string{"must be a JSON object"}},
	{"a string", `"{}"`, []string{"must be a JSON object"}},
	{"null", `null`, []string{"must be a JSON object"}},
	{"not UTF-8", "{\"target\":\"\xff\"}", []string{"not UTF-8"}},
	{"not UTF-8 in a name", "{\"\xff\":1}", []string{"not UTF-8"}},
	{"not UTF-8 between", "{\"ttlSeconds\":1\xff}", []string{"not UTF-8"}},
	{"half a surrogate pair", `{"target":"\ud800"}`, []string{"invalid surrogate pair", "in target"}},
	{"half a surrogate pair, the other half", `{"selector":{"a":"\udc00x"}}`, []string{"invalid surrogate pair", "in selector"}},
	{"half a surrogate pair in a name", `{"\ud800":1}`, []string{"invalid surrogate pair"}},
	{"a control character", "{\"target\":\"a\nb\"}", []string{"invalid character", "in target"}},
	{"a byte order mark", "\ufeff{}", []string{"not one JSON value"}},
	{"very deep", `{"selector":` + strings.Repeat("[", 30000), []string{"exceeded max depth"}},
	{"deep", `{"selector":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`, []string{"selector must be an object of strings"}},
}

var wrongFields = []refused{
	{"unknown fields", `{"wait":1,"ttlSeconds":1,"ttl":2}`, []string{`unknown field "ttl", "wait": this call takes selector, cluster, target, ttlSeconds, waitSeconds`}},
	{"another case", `{"TTLSeconds":1}`, []string{`"TTLSeconds"`}},
	{"many unknown fields", manyFields(2000), []string{" and 1990 more"}},
	{"another case of another field", `{"Selector":{}}`, []string{`"Selector"`}},
	{"a field twice, spelt otherwise", `{"ttlSeconds":1,"\u0074tlSeconds":2}`, []string{`"ttlSeconds" more than once`}},
	{"a field twice, once null", `{"ttlSeconds":null,"ttlSeconds":2}`, []string{`"ttlSeconds" more than once`}},
	{"a field twice", `{"ttlSeconds":1,"ttlSeconds":86400}`, []string{`"ttlSeconds" more than once`}},
	{"ttl a string", `{"ttlSeconds":"300"}`, []string{"ttlSeconds must be a whole number"}},
	{"ttl a small fraction", `{"ttlSeconds":1e-9}`, []string{"ttlSeconds must be a whole number"}},
	{"ttl a huge negative", `{"ttlSeconds":-1e300}`, []string{"ttlSeconds must be a whole number"}},
	{"ttl a huge exponent", `{"ttlSeconds":1e400}`, []string{"ttlSeconds must be from 1 to 86400"}},
	{"wait a huge exponent", `{"waitSeconds":1e18}`, []string{"waitSeconds must be a whole number from 0 to 50"}},
	{"ttl a fraction", `{"ttlSeconds":1.5}`, []string{"ttlSeconds must be a whole number"}},
	{"ttl zero", `{"ttlSeconds":0}`, []string{"at least 1"}},
	{"ttl negative", `{"ttlSeconds":-1}`, []string{"at least 1"}},
	{"ttl hugely negative", `{"ttlSeconds":-99999999999999999999}`, []string{"at least 1"}},
	{"ttl a second too long", `{"ttlSeconds":86401}`, []string{"ttlSeconds must be from 1 to 86400"}},
	{"ttl that overflows nanoseconds", `{"ttlSeconds":18446744074}`, []string{"ttlSeconds must be from 1 to 86400"}},
	{"ttl that overflows everything", `{"ttlSeconds":` + strings.Repeat("9", 1000) + `}`, []string{"ttlSeconds must be from 1 to 86400"}},
	{"cluster a number", `{"cluster":1}`, []string{"cluster must be a string"}},
	{"target an object", `{"target":{}}`, []string{"target must be a string"}},
	{"target no host", `{"target":"https://"}`, []string{"target must be a host name or a URL"}},
	{"selector a string", `{"selector":"region=eu"}`, []string{`write for example {"region":"eu"}`}},
	{"selector value a number", `{"selector":{"tier":1}}`, []string{`selector: the value of "tier" must be a string`}},
	{"selector value null", `{"selector":{"tier":null}}`, []string{`selector: the value of "tier" must be a string`}},
	{"selector key twice", `{"selector":{"a":"b","a":"c"}}`, []string{`selector names "a" more than once`}},
	{"selector key that cannot be", `{"selector":{"Region":"eu"}}`, []string{`selector has a key "Region"`, "lower-case"}},
	{"selector value that cannot be", `{"selector":{"region":"eu west"}}`, []string{`selector has a value "eu west" of region`}},
	{"a selector of 33", `{"selector":` + pairs(33) + `}`, []string{"selector", "32"}},
	{"wait a string", `{"waitSeconds":"5"}`, []string{"waitSeconds must be a whole number from 0 to 50"}},
	{"wait a fraction", `{"waitSeconds":0.5}`, []string{"waitSeconds must be a whole number from 0 to 50"}},
	{"wait negative", `{"waitSeconds":-1}`, []string{"waitSeconds must be a whole number from 0 to 50"}},
	{"wait a second too long", `{"waitSeconds":51}`, []string{"waitSeconds must be a whole number from 0 to 50"}},
	{"wait that overflows nanoseconds", `{"waitSeconds":18446744074}`, []string{"waitSeconds must be a whole number from 0 to 50"}},
	{"wait that overflows everything", `{"waitSeconds":` + strings.Repeat("9", 1000) + `}`, []string{"waitSeconds must be a whole number from 0 to 50"}},
	{"wait an array", `{"waitSeconds":[` + strings.Repeat("[],", 2000) + `[]]}`, []string{"waitSeconds must be a whole number from 0 to 50"}},
	{"cut off in a string", `{"target":"exam`, []string{"not one JSON value", "in target"}},
}

func TestLeaseRequestsThatAreRefused(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	for _, tc := range slices.Concat(notJSON, wrongFields) {
		t.Run(tc.name, func(t *testing.T) {
			a.t = t
			got := a.call("POST", "/v1/leases", tc.body)
			a.wantError(got, http.StatusBadRequest, "invalid_request", tc.says...)
			if len(got.body) > 2000 {
				t.Errorf("an error of %d bytes", len(got.body))
			}
		})
	}
	a.t = t
	if got := a.call("POST", "/v1/leases", `{"a<b>&c":1}`); !strings.Contains(got.body, "a<b>&c") {
		t.Errorf("not in the client's words: %s", got.body)
	}
	a.wantError(a.call("POST", "/v1/leases?wait=5&x=1", ""), 400, "invalid_request", `unknown query parameter "wait", "x": this call takes none`)
	if n := a.leases.ActiveByCluster()["c"]; n != 0 {
		t.Errorf("%d leases from refused requests", n)
	}
	if seen := a.metrics.String(); strings.Trim(seen, "invald ") != "" || !strings.HasPrefix(seen, "invalid") {
		t.Errorf("outcomes %s", seen)
	}
}

// pairs is a selector of so many.
func pairs(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"k%d":"v"`, i)
	}
	return "{" + b.String()[1:] + "}"
}

func manyFields(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"f%d":0`, i)
	}
	return "{" + b.String()[1:] + "}"
}

func TestTheContentTypeIsTolerated(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	for _, ct := range []string{"", "text/plain", "application/x-www-form-urlencoded", "nonsense"} {
		got := a.call("POST", "/v1/leases", `{"ttlSeconds":5}`, func(r *http.Request) { r.Header.Set("Content-Type", ct) })
		if got.status != http.StatusCreated {
			t.Errorf("Content-Type %q: %d %s", ct, got.status, got.body)
		}
	}
}

func TestNotReadyKeepsLeasesBackAndNothingElse(t *testing.T) {
	ready := make(chan struct{})
	a := newAPI(t, func(o *rest.Options) {
		o.Ready = func() bool {
			select {
			case <-ready:
				return true
			default:
				return false
			}
		}
	}, px("c/n/a"))
	got := a.call("POST", "/v1/leases", "")
	a.wantError(got, http.StatusServiceUnavailable, "not_ready", "try again")
	if got.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", got.header.Get("Retry-After"))
	}
	a.wantError(a.call("POST", "/v1/leases", "x"), http.StatusBadRequest, "invalid_request")
	if got := a.call("GET", "/v1/proxies", ""); got.status != http.StatusOK {
		t.Errorf("the list: %d", got.status)
	}
	if got := a.call("GET", "/healthz", ""); got.status != http.StatusOK {
		t.Errorf("healthz: %d", got.status)
	}
	close(ready)
	a.lease("")
	if got := a.metrics.String(); got != "not_ready invalid granted" {
		t.Errorf("outcomes %s", got)
	}
}

func TestMaxLeasesHoldsOverHTTP(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a", maxLeases(3)))
	var granted, refused int
	var mu sync.Mutex
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			got := a.call("POST", "/v1/leases", "")
			mu.Lock()
			defer mu.Unlock()
			switch got.status {
			case http.StatusCreated:
				granted++
			case http.StatusConflict:
				refused++
			}
		})
	}
	group.Wait()
	if granted != 3 || refused != 17 {
		t.Errorf("%d granted, %d refused", granted, refused)
	}
}

func TestAWholeNumberMayBeWrittenInManyWays(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	for _, number := range []string{"300", "300.0", "3e2", "30000E-2"} {
		got := a.call("POST", "/v1/leases", `{"ttlSeconds":`+number+`}`)
		if got.status != http.StatusCreated || !strings.Contains(got.body, `"ttlSeconds":300,`) {
			t.Errorf("%s: %d %s", number, got.status, got.body)
		}
	}
}
