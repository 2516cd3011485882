package openapi

import (
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
)

// theAPI is the description that the kit is made for.
func theAPI(t *testing.T) *Description {
	t.Helper()
	text, err := os.ReadFile("../../../hub/rest/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return Load(t, text)
}

const (
	listed = `{"cluster":"eu-west","namespace":"crawl","name":"eu-1","uid":"u","protocol":"http","host":"10.2.3.4","port":3128,` +
		`"attributes":{"region":"eu"},"healthy":true,"phase":"Ready","latencyMillis":41,"activeLeases":1,"maxLeases":10}`
	page    = `{"proxies":[` + listed + `],"count":1,"continue":""}`
	leaseID = "4ZQ3XJ7VTRW2K5NC6BYDGHLMPA"
	noMatch = `{"error":"no_match","message":"none","considered":3,"unhealthy":1,"atCapacity":1,"inCooldown":1}`
)

var (
	leased = strings.Replace(listed, `"port":3128`, `"port":3128,"url":"http://user:p%40ss@10.2.3.4:3128"`, 1)
	lease  = `{"leaseID":"` + leaseID + `","client":"default","target":"","expiresAt":"2026-01-02T15:04:05Z","ttlSeconds":300,"proxy":` + leased + `}`
	https  = strings.NewReplacer(`"http"`, `"https"`, "http://", "https://").Replace(lease)
)

func errorBody(code string) string { return `{"error":"` + code + `","message":"why"}` }

// headers are pairs of name and value; Content-Type is JSON unless given, or given empty.
func headers(pairs ...string) http.Header {
	h := http.Header{"Content-Type": {"application/json"}, "Cache-Control": {"no-store"}}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
		if pairs[i+1] == "" {
			h.Del(pairs[i])
		}
	}
	return h
}

// exchange is a request and its answer, and what must be found wrong about them.
type exchange struct {
	name       string
	call, body string // "METHOD path"
	header     http.Header
	status     int
	answer     string
	with       http.Header
	says       string // empty: nothing is wrong
}

func (e exchange) check(d *Description) error {
	method, path, _ := strings.Cut(e.call, " ")
	with := e.with
	if with == nil {
		with = headers()
	}
	return d.Check(Request{method, path, e.header, []byte(e.body)}, Answer{e.status, with, []byte(e.answer)})
}

func run(t *testing.T, exchanges []exchange) {
	t.Helper()
	d := theAPI(t)
	for _, e := range exchanges {
		t.Run(e.name, func(t *testing.T) {
			err := e.check(d)
			switch {
			case e.says == "" && err != nil:
				t.Errorf("as it should be, yet: %v", err)
			case e.says != "" && err == nil:
				t.Errorf("nothing found wrong, want %q", e.says)
			case e.says != "" && !strings.Contains(err.Error(), e.says):
				t.Errorf("%v, want %q", err, e.says)
			}
		})
	}
}

func TestWhatIsAsDescribedPasses(t *testing.T) {
	empty, plain := headers("Content-Type", ""), headers("Content-Type", "text/plain; charset=utf-8")
	run(t, []exchange{
		{name: "health", call: "GET /healthz", status: 200, answer: "ok", with: plain},
		{name: "health with any query", call: "GET /healthz?from=lb&a=1&a=2&%zz", status: 200, answer: "ok", with: plain},
		{name: "HEAD", call: "HEAD /v1/proxies?limit=5", status: 200},
		{name: "HEAD where GET is not", call: "HEAD /v1/leases", status: 405, with: headers("Allow", "POST")},
		{name: "list", call: "GET /v1/proxies?attr.region=eu&attr%2Etier=dc&cluster=&namespace=n&healthy=true&limit=5000&continue=&", status: 200, answer: page},
		{name: "empty list", call: "GET /v1/proxies?", status: 200, answer: `{"proxies":[],"count":0,"continue":""}` + "\n"},
		{name: "a bad query that is refused", call: "GET /v1/proxies?Limit=0", status: 400, answer: errorBody("invalid_request")},
		{name: "clusters", call: "GET /v1/clusters", status: 200, answer: `{"clusters":[{"name":"c","ready":false,"reason":"","proxies":0,"instances":0}]}`},
		{name: "lease", call: "POST /v1/leases", body: `{"selector":null,"target":"x","ttlSeconds":1,"waitSeconds":0}`, status: 201, answer: lease},
		{name: "lease for an empty body", call: "POST /v1/leases", body: " \n", status: 201, answer: lease},
		{name: "lease of an https proxy", call: "POST /v1/leases", status: 201, answer: strings.TrimSuffix(https, "}") + `,"tls":{"serverName":"p"}}`},
		{name: "a longer ttl than a float can tell", call: "POST /v1/leases", body: `{"ttlSeconds":9007199254740993}`, status: 201, answer: lease},
		{name: "key", call: "POST /v1/leases", header: http.Header{"Idempotency-Key": {" a-key "}}, status: 201, answer: lease},
		{name: "no match", call: "POST /v1/leases", status: 409, answer: noMatch},
		{name: "no match for now", call: "POST /v1/leases", status: 409, answer: noMatch, with: headers("Retry-After", "30")},
		{name: "not ready", call: "POST /v1/leases", status: 503, answer: errorBody("not_ready"), with: headers("Retry-After", "1")},
		{name: "a lease by any id", call: "GET /v1/leases/a%2Fb", status: 404, answer: errorBody("unknown_lease")},
		{name: "renewed", call: "POST /v1/leases/" + leaseID + "/renew", body: `{}`, status: 200, answer: lease},
		{name: "released", call: "DELETE /v1/leases/..", body: "ignored", status: 204, with: empty},
		{name: "reported", call: "POST /v1/leases/x/report", body: `{"result":"ok","cooldownSeconds":604800}`, status: 204, with: empty},
		{name: "no result", call: "POST /v1/leases/x/report", status: 400, answer: errorBody("invalid_result")},
		{name: "no token", call: "GET /v1/clusters", status: 401, answer: errorBody("unauthorized"), with: headers("WWW-Authenticate", "Bearer")},
		{name: "description", call: "GET /openapi.yaml", status: 200, with: headers("Content-Type", "application/yaml"),
			answer: "openapi: 3.1.0\ninfo: {}\npaths: {}\ncomponents: {}\n"},
		{name: "unknown path", call: "GET /v1/leases/", status: 404, answer: errorBody("not_found")},
		{name: "another spelling", call: "GET /v1/%6ceases/x", status: 404, answer: errorBody("not_found")},
		{name: "unknown path without a token", call: "BREW *", status: 401, answer: errorBody("unauthorized"), with: headers("WWW-Authenticate", "Bearer")},
		{name: "other method", call: "PUT /v1/leases/x", status: 405, answer: errorBody("method_not_allowed"), with: headers("Allow", "GET, HEAD, DELETE")},
	})
}

func TestWrongAnswersAreFound(t *testing.T) {
	replaced := func(in, old, now string) string {
		if !strings.Contains(in, old) {
			t.Fatalf("%s is not in %s", old, in)
		}
		return strings.Replace(in, old, now, 1)
	}
	retry, empty := headers("Retry-After", "1"), headers("Content-Type", "")
	run(t, []exchange{
		{name: "extra field", call: "GET /v1/proxies", status: 200, answer: replaced(page, `"count"`, `"total":1,"count"`), says: "'total' not allowed"},
		{name: "missing field", call: "GET /v1/proxies", status: 200, answer: replaced(page, `"uid":"u",`, ``), says: "missing property 'uid'"},
		{name: "wrong phase", call: "GET /v1/proxies", status: 200, answer: replaced(page, `"Ready"`, `"ready"`), says: "/proxies/0/phase"},
		{name: "healthy in another phase", call: "GET /v1/proxies", status: 200, answer: replaced(page, `"Ready"`, `"Probing"`), says: "/proxies/0/phase"},
		{name: "credentials in the list", call: "GET /v1/proxies", status: 200, answer: replaced(page, listed, leased), says: "at '/proxies/0/url'"},
		{name: "no latency is not zero", call: "GET /v1/proxies", status: 200, answer: replaced(page, `:41`, `:0`), says: "latencyMillis"},
		{name: "null attributes", call: "GET /v1/proxies", status: 200, answer: replaced(page, `{"region":"eu"}`, `null`), says: "want object"},
		{name: "an attribute that cannot be", call: "GET /v1/proxies", status: 200, answer: replaced(page, `region`, `Region`), says: "Region"},
		{name: "no url in a lease", call: "POST /v1/leases", status: 201, answer: replaced(lease, leased, listed), says: "missing property 'url'"},
		{name: "url not encoded", call: "POST /v1/leases", status: 201, answer: replaced(lease, "p%40ss", "p@ss"), says: "/proxy/url"},
		{name: "url of no scheme", call: "POST /v1/leases", status: 201, answer: replaced(lease, "http://", "socks5://"), says: "/proxy/url"},
		{name: "a lease that is not counted", call: "POST /v1/leases", status: 201, answer: replaced(lease, `"activeLeases":1`, `"activeLeases":0`), says: "activeLeases"},
		{name: "fraction of a second", call: "POST /v1/leases", status: 201, answer: replaced(lease, `:05Z`, `:05.5Z`), says: "/expiresAt"},
		{name: "no such day", call: "POST /v1/leases", status: 201, answer: replaced(lease, `01-02T`, `02-30T`), says: "date-time"},
		{name: "https without tls", call: "POST /v1/leases", status: 201, answer: https, says: "missing property 'tls'"},
		{name: "http with tls", call: "POST /v1/leases", status: 201, answer: strings.TrimSuffix(lease, "}") + `,"tls":{"serverName":"p"}}`, says: "/tls"},
		{name: "another status", call: "POST /v1/leases", status: 200, answer: lease, says: "this status is not described"},
		{name: "redirect", call: "GET /v1/clusters/", status: 301, with: headers("Location", "/v1/clusters"), says: "this status is not described"},
		{name: "a code of another call", call: "GET /v1/leases/x", status: 503, answer: errorBody("not_ready"), with: retry, says: "/error"},
		{name: "no retry", call: "POST /v1/leases", status: 503, answer: errorBody("not_ready"), says: "header Retry-After is missing"},
		{name: "retry at once", call: "POST /v1/leases", status: 503, answer: errorBody("not_ready"), with: headers("Retry-After", "0"), says: "header Retry-After: "},
		{name: "retry at a date", call: "POST /v1/leases", status: 409, answer: noMatch, with: headers("Retry-After", "Fri, 02 Jan 2026 15:04:05 GMT"), says: "header Retry-After: "},
		{name: "retry twice", call: "POST /v1/leases", status: 409, answer: noMatch, says: "is there 2 times",
			with: http.Header{"Content-Type": {"application/json"}, "Retry-After": {"1", "1"}}},
		{name: "retry where it helps nothing", call: "POST /v1/leases", status: 400, answer: errorBody("invalid_request"), with: retry, says: "Retry-After is not described"},
		{name: "no challenge", call: "GET /v1/clusters", status: 401, answer: errorBody("unauthorized"), says: "header Www-Authenticate is missing"},
		{name: "health asks for a token", call: "GET /healthz", status: 401, answer: errorBody("unauthorized"), with: headers("WWW-Authenticate", "Bearer"), says: "this status is not described"},
		{name: "content type", call: "GET /v1/clusters", status: 200, answer: `{"clusters":[]}`, with: headers("Content-Type", "text/plain"), says: "header Content-Type is"},
		{name: "charset", call: "GET /healthz", status: 200, answer: "ok", with: headers("Content-Type", "text/plain"), says: "header Content-Type is"},
		{name: "no content type", call: "GET /v1/clusters", status: 200, answer: `{"clusters":[]}`, with: empty, says: "header Content-Type is"},
		{name: "a body on HEAD", call: "HEAD /v1/clusters", status: 200, answer: `{"clusters":[]}`, says: "a body of 15 bytes"},
		{name: "a body on 204", call: "DELETE /v1/leases/x", status: 204, answer: `{}`, with: empty, says: "a body of 2 bytes"},
		{name: "the type of no body", call: "DELETE /v1/leases/x", status: 204, says: "where there is no body"},
		{name: "no JSON", call: "GET /v1/clusters", status: 200, answer: `{"clusters":[`, says: "the body is not application/json"},
		{name: "two values", call: "GET /v1/clusters", status: 200, answer: `{"clusters":[]}{}`, says: "the body is not application/json"},
		{name: "a health of another kind", call: "GET /healthz", status: 200, answer: "OK", with: headers("Content-Type", "text/plain; charset=utf-8"), says: "ok"},
		{name: "a code that is none", call: "GET /v1/leases/x", status: 404, answer: errorBody("not_found"), says: "/error"},
		{name: "an error that says more", call: "GET /nowhere", status: 404, answer: replaced(errorBody("not_found"), `}`, `,"path":"/"}`), says: "at '/path'"},
		{name: "404 in plain text", call: "GET /nowhere", status: 404, answer: "404", with: headers("Content-Type", "text/plain"), says: "Content-Type"},
		{name: "200 from nowhere", call: "GET /v1/gc", status: 200, answer: `{}`, says: "this status is not described"},
		{name: "405 from nowhere", call: "GET /nowhere", status: 405, answer: errorBody("method_not_allowed"), with: headers("Allow", "GET"), says: "which is 404"},
		{name: "404 from somewhere", call: "PUT /v1/leases", status: 404, answer: errorBody("not_found"), says: "so another is 405"},
		{name: "methods that are not told", call: "PUT /v1/leases/x", status: 405, answer: errorBody("method_not_allowed"), with: headers("Allow", "DELETE"), says: "header Allow is"},
	})
}

func TestRequestsThatTheServerTookButTheDescriptionDoesNot(t *testing.T) {
	key := func(values ...string) http.Header { return http.Header{"Idempotency-Key": values} }
	empty := headers("Content-Type", "")
	run(t, []exchange{
		{name: "unknown parameter", call: "GET /v1/proxies?Cluster=c", status: 200, answer: page, says: "'Cluster' not allowed"},
		{name: "unknown parameter where there are none", call: "GET /v1/clusters?x=", status: 200, answer: `{"clusters":[]}`, says: `query parameter "x" is not described`},
		{name: "a name that cannot be decoded", call: "GET /v1/proxies?%zz", status: 200, answer: page, says: "'%zz' not allowed"},
		{name: "too large a limit", call: "GET /v1/proxies?limit=5001", status: 200, answer: page, says: "query parameter limit"},
		{name: "no limit", call: "GET /v1/proxies?limit=", status: 200, answer: page, says: "query parameter limit"},
		{name: "half a truth", call: "GET /v1/proxies?healthy=yes", status: 200, answer: page, says: "query parameter healthy"},
		{name: "twice", call: "GET /v1/proxies?cluster=a&cluster=b", status: 200, answer: page, says: "it is given 2 times"},
		{name: "an attribute twice", call: "GET /v1/proxies?attr.a=b&attr.a=c", status: 200, answer: page, says: "want string"},
		{name: "an attribute that cannot be", call: "GET /v1/proxies?attr.A=b", status: 200, answer: page, says: "'attr.A' not allowed"},
		{name: "on HEAD as well", call: "HEAD /v1/proxies?x", status: 200, says: "'x' not allowed"},
		{name: "unknown field", call: "POST /v1/leases", body: `{"ttl":1}`, status: 201, answer: lease, says: "'ttl' not allowed"},
		{name: "too long a wait", call: "POST /v1/leases", body: `{"waitSeconds":51}`, status: 201, answer: lease, says: "/waitSeconds"},
		{name: "a selector that cannot be", call: "POST /v1/leases", body: `{"selector":{"a":"b c"}}`, status: 201, answer: lease, says: "/selector/a"},
		{name: "a fraction that a float would lose", call: "POST /v1/leases", body: `{"ttlSeconds":9007199254740993.5}`, status: 201, answer: lease, says: "/ttlSeconds"},
		{name: "no object", call: "POST /v1/leases", body: `null`, status: 201, answer: lease, says: "want object"},
		{name: "no JSON", call: "POST /v1/leases", body: `{}x`, status: 201, answer: lease, says: "the request's body"},
		{name: "an empty key", call: "POST /v1/leases", header: key(" "), status: 201, answer: lease, says: "header parameter Idempotency-Key"},
		{name: "a long key", call: "POST /v1/leases", header: key(strings.Repeat("k", 256)), status: 201, answer: lease, says: "header parameter Idempotency-Key"},
		{name: "two keys", call: "POST /v1/leases", header: key("a", "b"), status: 201, answer: lease, says: "it is given 2 times"},
		{name: "no result", call: "POST /v1/leases/x/report", status: 204, with: empty, says: "it is missing"},
		{name: "another result", call: "POST /v1/leases/x/report", body: `{"result":"OK"}`, status: 204, with: empty, says: "/result"},
	})
}

func TestWhatNoExchangeHasShownIsListed(t *testing.T) {
	d := theAPI(t)
	left := func() string { return "\n" + strings.Join(d.Unseen(), "\n") + "\n" }
	for _, key := range []string{"GET /healthz 200", "POST /v1/leases 422 idempotency_conflict", "POST /v1/leases 503 too_many_waiters", "POST /v1/leases/{id}/report 204"} {
		if !strings.Contains(left(), "\n"+key+"\n") {
			t.Errorf("%s is not listed: %s", key, left())
		}
	}
	before := left()
	for _, none := range []exchange{
		{call: "HEAD /v1/proxies", status: 200},
		{call: "GET /nowhere", status: 404, answer: errorBody("not_found")},
		{call: "GET /v1/proxies?nothing", status: 200, answer: page},
		{call: "POST /v1/leases", status: 422, answer: errorBody("no_match")},
	} {
		_ = none.check(d) // right or wrong: it shows nothing
		if left() != before {
			t.Errorf("%s %d counts", none.call, none.status)
		}
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := (exchange{call: "POST /v1/leases", status: 422, answer: errorBody("idempotency_conflict")}).check(d); err != nil {
				t.Error(err)
			}
			_ = d.Unseen()
		})
	}
	all.Wait()
	if want := strings.Replace(before, "POST /v1/leases 422 idempotency_conflict\n", "", 1); left() != want {
		t.Errorf("left are %s", left())
	}
}
