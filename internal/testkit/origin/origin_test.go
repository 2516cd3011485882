package origin

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
)

func TestAnswers(t *testing.T) {
	s := Start(t)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.CertPool()}}}
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/", 200},
		{"GET", "/any/path", 200},
		{"GET", "/generate_204", 204},
		{"HEAD", "/", 204},
		{"GET", "/status/503", 503},
		{"GET", "/status/1", 400},
	} {
		for _, base := range []string{s.URL, s.PlainURL, strings.Replace(s.URL, "127.0.0.1", "localhost", 1)} {
			req, err := http.NewRequestWithContext(t.Context(), c.method, base+c.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != c.want {
				t.Errorf("%s %s%s = %d, want %d", c.method, base, c.path, resp.StatusCode, c.want)
			}
		}
	}
}

// A client that verifies with anything but the private CA must fail, or interception would pass.
func TestUnknownToTheSystemsCAs(t *testing.T) {
	s := Start(t)
	if _, err := Fetch(t.Context(), http.DefaultClient, s.URL); err == nil {
		t.Fatal("accepted without the private CA")
	}
}
