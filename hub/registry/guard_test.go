package registry

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

type answering func(*http.Request) (*http.Response, error)

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

func TestAServerCannotHaveUsWaitForLong(t *testing.T) {
	for told, want := range map[string]string{"3600": "10", "3": "3", "": "", "Wed, 21 Oct 2099 07:28:00 GMT": ""} {
		g := guard{conn: &connection{}, next: answering(func(*http.Request) (*http.Response, error) {
			res := &http.Response{StatusCode: http.StatusServiceUnavailable, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(""))}
			if told != "" {
				res.Header.Set("Retry-After", told)
			}
			return res, nil
		})}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://spoke.example/version", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := g.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if got := res.Header.Get("Retry-After"); got != want {
			t.Errorf("%q is passed on as %q, want %q", told, got, want)
		}
	}
}
