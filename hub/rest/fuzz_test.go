package rest

import (
	"encoding/json"
	"errors"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
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
	if err == nil {
		return
	}
	if !errors.As(err, &refused) && !errors.As(err, &bad) {
		t.Fatalf("an error of no kind: %v", err)
	}
	if text := err.Error(); len(text) > 1500 || !utf8.ValidString(text) || strings.ContainsAny(text, "\n\r\x00") {
		t.Errorf("not a sentence: %q", text)
	}
}

// FuzzBodies: every call that reads a body takes it or refuses it; what it takes is
// JSON by encoding/json as well, and means the same there.
func FuzzBodies(f *testing.F) {
	for _, seed := range []string{
		`{"selector":{"region":"eu"},"cluster":"eu-west","ttlSeconds":300,"target":"example.com","waitSeconds":5}`,
		`{"result":"ok","target":"x","cooldownSeconds":1}`, `{"ttlSeconds":1e999}`, `{"a":{}}x`, `{"selector":{"a":null}}`,
		"{\"\xff\":1}", `{"\ud800":1}`, `{"result":` + strings.Repeat("[", 100), ``, `null`, `{"":""}`, `{"ttlSeconds":1}{}`,
		`{"selector":{"a":"b","a":"c"}}`, `{"\u0074tlSeconds":7}`, `{"ttlSeconds":-0}`, `{"waitSeconds":0.0}`, `{"ttlSeconds":3e2,"waitSeconds":1e1}`, `{"x":{"y":1,"y":2}}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for _, into := range []request{&acquireRequest{}, &renewRequest{}, &reportRequest{}} {
			err := decode(httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)), into)
			mustBePolite(t, err)
			if err == nil && strings.Trim(body, " \t\r\n") != "" {
				mustMeanTheSame(t, body, into)
			}
		}
	})
}

// mustMeanTheSame compares what was taken with what encoding/json reads.
func mustMeanTheSame(t *testing.T, body string, got request) {
	t.Helper()
	var loose struct {
		Selector                                 map[string]string
		Cluster, Target, Result                  string
		TTLSeconds, WaitSeconds, CooldownSeconds json.Number
	}
	if err := json.Unmarshal([]byte(body), &loose); err != nil {
		t.Fatalf("took %q: %v", body, err)
	}
	in := func(n json.Number) time.Duration {
		if n == "" {
			return 0
		}
		exactly, _, err := big.ParseFloat(n.String(), 10, 256, big.ToNearestEven)
		if err != nil {
			t.Fatalf("took %q: %v", body, err)
		}
		i, _ := exactly.Int64() // the largest, for what is larger
		return seconds(i)
	}
	switch got := got.(type) {
	case *acquireRequest:
		want := acquireRequest{loose.Selector, loose.Cluster, loose.Target, in(loose.TTLSeconds), in(loose.WaitSeconds)}
		if !maps.Equal(got.Selector, want.Selector) || got.Cluster != want.Cluster || got.Target != want.Target || got.TTL != want.TTL || got.Wait != want.Wait {
			t.Errorf("%q is %+v, want %+v", body, got, want)
		}
	case *renewRequest:
		if want := in(loose.TTLSeconds); got.TTL != want {
			t.Errorf("%q is %v, want %v", body, got.TTL, want)
		}
	case *reportRequest:
		if want := (lease.Report{Result: lease.Result(loose.Result), Target: loose.Target, Cooldown: in(loose.CooldownSeconds)}); got.Report != want {
			t.Errorf("%q is %+v, want %+v", body, got, want)
		}
	}
}

// FuzzIdempotencyKeys: what is taken is what was sent.
func FuzzIdempotencyKeys(f *testing.F) {
	for _, seed := range []string{"", "a", " ", "a b", "\x7f", "ü", strings.Repeat("x", 255), strings.Repeat("x", 256)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, key string) {
		got, err := idempotencyKey([]string{key})
		mustBePolite(t, err)
		visible := key != "" && len(key) <= 255 && strings.Trim(key, "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~") == ""
		if (err == nil) != visible || err == nil && got != key {
			t.Errorf("%q is taken as %q, %v", key, got, err)
		}
		if _, err := idempotencyKey([]string{key, key}); err == nil {
			t.Errorf("%q is taken twice", key)
		}
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
		var page struct {
			Proxies []struct{}
			Count   int
		}
		text := q.appendPage(nil, func(_ fleet.Key, visit func(*fleet.Proxy, int) bool) {
			for i := 0; i < len(all) && visit(all[i], i); i++ {
				continue
			}
		})
		if err := json.Unmarshal(text, &page); err != nil || len(page.Proxies) > q.limit || len(page.Proxies) != page.Count {
			t.Errorf("%q: %v, a page %s", raw, err, text)
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
