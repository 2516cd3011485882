package rest

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/lease"
)

// mustBePolite: whatever comes in, the answer is a value or a refusal in one
// short printable sentence.
func mustBePolite(t *testing.T, err error) {
	t.Helper()
	var bad *lease.InvalidError
	var refused *requestError
	if err == nil || errors.Is(err, lease.ErrInvalidResult) {
		return
	}
	if !errors.As(err, &refused) && !errors.As(err, &bad) {
		t.Fatalf("an error of no kind: %v", err)
	}
	if text := err.Error(); len(text) > 1500 || !utf8.ValidString(text) || strings.ContainsAny(text, "\n\r\x00") {
		t.Errorf("not a sentence: %q", text)
	}
}

func FuzzBodies(f *testing.F) {
	for _, seed := range []string{
		`{"selector":{"region":"eu"},"cluster":"eu-west","ttlSeconds":300,"target":"example.com"}`,
		`{"result":"ok","target":"x","cooldownSeconds":1}`, `{"ttlSeconds":1e999}`, `{"a":{}}x`, `{"selector":{"a":null}}`,
		"{\"\xff\":1}", `{"\ud800":1}`, `{"result":` + strings.Repeat("[", 100), ``, `null`, `{"":""}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		req, err := readAcquire(httptest.NewRequest(http.MethodPost, "/v1/leases", strings.NewReader(body)))
		mustBePolite(t, err)
		if err == nil && req.TTL < 0 {
			t.Errorf("ttl %v from %q", req.TTL, body)
		}
		if err == nil && strings.TrimSpace(body) != "" && !json.Valid([]byte(body)) {
			t.Errorf("took %q", body)
		}
		_, err = readReport(httptest.NewRequest(http.MethodPost, "/v1/leases/x/report", strings.NewReader(body)))
		mustBePolite(t, err)
	})
}

func FuzzQueries(f *testing.F) {
	for _, seed := range []string{
		"attr.region=eu&cluster=c&namespace=n&healthy=true&limit=5&continue=", "limit=%31", "a=%zz", ";", "attr.=&attr.a",
		"continue=" + encodeToken(fleet.Key{Cluster: "c", Namespace: "n", Name: "a"}), "%ff", "x\n=1",
	} {
		f.Add(seed)
	}
	all := []*fleet.Proxy{{Key: fleet.Key{Cluster: "c", Name: "a"}}, {Key: fleet.Key{Cluster: "c", Name: "b"}}}
	f.Fuzz(func(t *testing.T, raw string) {
		q, err := parseListQuery(raw)
		mustBePolite(t, err)
		if err != nil {
			return
		}
		if page, _ := q.page(all); len(page) > q.limit {
			t.Errorf("%q: a page of %d", raw, len(page))
		}
	})
}

func TestAContinueTokenComesBackAsItWas(t *testing.T) {
	for _, key := range []fleet.Key{{Cluster: "c", Namespace: "n", Name: "a"}, {Cluster: "ü/", Namespace: `"`, Name: ""}, {}} {
		if got, ok := decodeToken(encodeToken(key)); !ok || got != key {
			t.Errorf("%v came back as %v, %v", key, got, ok)
		}
	}
}
