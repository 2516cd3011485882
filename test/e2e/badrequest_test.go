package e2e_test

import (
	"net/http"
	"strings"
	"testing"
)

// refusedRequests are what a crawler's author may get wrong: the answer, and the words that
// name the mistake.
var refusedRequests = []struct {
	name, method, path, body string
	status                   int
	code                     string
	says                     []string
}{
	{"an unknown field", "POST", "/v1/leases", `{"selecter":{"region":"eu"}}`, 400, "invalid_request", []string{`"selecter"`, "selector"}},
	{"a field of other case", "POST", "/v1/leases", `{"TTLSeconds":60}`, 400, "invalid_request", []string{`"TTLSeconds"`, "ttlSeconds"}},
	{"a selector that is a list", "POST", "/v1/leases", `{"selector":["eu"]}`, 400, "invalid_request", []string{"selector must be an object"}},
	{"a selector's value that is a number", "POST", "/v1/leases", `{"selector":{"region":5}}`, 400, "invalid_request", []string{"selector", `"region"`, "string"}},
	{"a selector's key that no Proxy has", "POST", "/v1/leases", `{"selector":{"Region":"eu"}}`, 400, "invalid_request", []string{"selector", `"Region"`, "lower-case"}},
	{"a selector's value that no Proxy has", "POST", "/v1/leases", `{"selector":{"region":"e u"}}`, 400, "invalid_request", []string{"selector", `"e u"`}},
	{"a ttl that is a string", "POST", "/v1/leases", `{"ttlSeconds":"300"}`, 400, "invalid_request", []string{"ttlSeconds", "number"}},
	{"a ttl of 0", "POST", "/v1/leases", `{"ttlSeconds":0}`, 400, "invalid_request", []string{"ttlSeconds", "at least 1"}},
	{"a ttl that is too long", "POST", "/v1/leases", `{"ttlSeconds":86401}`, 400, "invalid_request", []string{"ttlSeconds", "86400"}},
	{"a cluster that is a number", "POST", "/v1/leases", `{"cluster":1}`, 400, "invalid_request", []string{"cluster must be a string"}},
	{"a body that is cut off", "POST", "/v1/leases", `{"cluster":`, 400, "invalid_request", []string{"JSON", "end"}},
	{"a body with something after it", "POST", "/v1/leases", `{} {}`, 400, "invalid_request", []string{"JSON", "byte 2"}},
	{"a body that is too large", "POST", "/v1/leases", `{"target":"` + strings.Repeat("a", 64<<10) + `"}`, 413, "body_too_large", []string{"65536"}},
	{"an unknown parameter of the list", "GET", "/v1/proxies?region=eu", "", 400, "invalid_request", []string{`"region"`, "attr.KEY"}},
	{"a limit that is too high", "GET", "/v1/proxies?limit=5001", "", 400, "invalid_request", []string{"limit", "5000"}},
	{"a parameter where none is taken", "POST", "/v1/leases?cluster=eu-west", `{}`, 400, "invalid_request", []string{`"cluster"`}},
	{"an unknown path", "GET", "/v1/lease", "", 404, "not_found", []string{"path"}},
	{"a slash at the end", "POST", "/v1/leases/", `{}`, 404, "not_found", []string{"slash at its end"}},
	{"a method that a path does not take", "PUT", "/v1/leases", `{}`, 405, "method_not_allowed", []string{"POST"}},
	{"a report on no lease", "POST", "/v1/leases/none/report", `{"result":"ok"}`, 404, "unknown_lease", []string{"no such lease"}},
}

// refusedHeaders are what HTTP says must come with a status.
var refusedHeaders = map[int]struct{ name, value string }{
	http.StatusMethodNotAllowed: {"Allow", "POST"},
	http.StatusUnauthorized:     {"Www-Authenticate", "Bearer"},
}

func badRequests(t *testing.T, w *world) {
	w.wantUnchanged(t, func() {
		for _, bad := range refusedRequests {
			r := w.api.call(t, bad.method, bad.path, bad.body)
			wantRefusal(t, bad.name, r, bad.status, bad.code, bad.says)
		}
		for name, token := range map[string]string{"no token": "", "a wrong token": "wrong", "more than the token": w.api.token + "x"} {
			stranger := api{base: w.api.base, token: token}
			for _, path := range []string{"/v1/leases", "/v1/proxies", "/nowhere"} {
				r := stranger.call(t, http.MethodPost, path, `{}`)
				wantRefusal(t, name+" at "+path, r, http.StatusUnauthorized, "unauthorized", []string{"Authorization: Bearer"})
			}
		}
		l := w.api.mustAcquire(t, `{}`)
		r := w.api.call(t, http.MethodPost, "/v1/leases/"+l.LeaseID+"/report", `{"result":"blocked"}`)
		wantRefusal(t, "an unknown result", r, http.StatusBadRequest, "invalid_result", []string{`"rate_limited"`, `"banned"`})
		w.api.release(t, l)
	})
}

func wantRefusal(t *testing.T, name string, r reply, status int, code string, says []string) {
	t.Helper()
	if got := r.header.Get("Content-Type"); !strings.HasPrefix(got, "application/json") {
		t.Errorf("%s: the answer is %s: %s", name, got, r)
		return
	}
	got := decode[refusal](t, r)
	if r.status != status || got.Error != code {
		t.Errorf("%s: %s, want %d %s", name, r, status, code)
	}
	for _, words := range says {
		if !strings.Contains(got.Message, words) {
			t.Errorf("%s: the message does not say %q: %s", name, words, r)
		}
	}
	if want := refusedHeaders[status]; want.name != "" && r.header.Get(want.name) != want.value {
		t.Errorf("%s: %s is %q, want %q", name, want.name, r.header.Get(want.name), want.value)
	}
}
