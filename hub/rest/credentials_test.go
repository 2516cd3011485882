package rest_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

func guarded(p *fleet.Proxy) { p.NeedsCredentials = true }

func at(host string) func(*fleet.Proxy) { return func(p *fleet.Proxy) { p.Host = host } }

// leaseURL takes a lease and returns its proxy's url as it is on the wire.
func (a *api) leaseURL() string {
	a.t.Helper()
	got := a.call("POST", "/v1/leases", "")
	var body struct{ Proxy struct{ URL string } }
	if err := json.Unmarshal([]byte(got.body), &body); err != nil || got.status != http.StatusCreated {
		a.t.Fatalf("%d %s", got.status, got.body)
	}
	return body.Proxy.URL
}

func TestALeasesURLCarriesTheCredentialsWhateverIsInThem(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a", guarded), px("c/n/b", sick))
	v6 := newAPI(t, nil, px("c/n/a", guarded, at("2001:db8::1")))
	for _, tc := range []struct{ username, password string }{
		{"crawler", "hush"},
		{`u:/@?#[]%& +"\`, `p:/@?#[]%& +"\`},
		{"üñ€😀", "пароль"},
		{"%41%zz", "%2F%"},
		{"~-._!$'()*,;=", "<>^`{|}"},
		{"user", ""},
		{"", "pass"},
		{"a\tb\nc\x00", "\xff\xfe"},
		{"http://x@y:1/", "a@b:c@d"},
	} {
		for host, a := range map[string]*api{"10.2.3.4:3128": a, "[2001:db8::1]:3128": v6} {
			a.t = t
			a.fleet.SetCredentials(px("c/n/a").Key, "i", &fleet.Credentials{Username: tc.username, Password: tc.password})
			raw := a.leaseURL()
			u, err := url.Parse(raw)
			if err != nil {
				t.Errorf("%q: %v", tc, err)
				continue
			}
			password, set := u.User.Password()
			if u.User.Username() != tc.username || password != tc.password || !set || u.Host != host || u.Scheme != "http" || u.Path != "" {
				t.Errorf("%s becomes %q %q at %s, want %q %q at %s", raw, u.User.Username(), password, u.Host, tc.username, tc.password, host)
			}
			if strings.ContainsAny(raw, ` +"\&`) || strings.Count(raw, "@") != 1 {
				t.Errorf("%s is not encoded in full", raw)
			}
		}
	}
	a.fleet.SetCredentials(px("c/n/a").Key, "i", &fleet.Credentials{Username: "a b", Password: "x:y"})
	if got := a.leaseURL(); got != "http://a%20b:x%3Ay@10.2.3.4:3128" {
		t.Errorf("url %s", got)
	}
}

func TestAProxyWhoseCredentialsAreNotKnownIsNotLeased(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a", guarded))
	got := a.call("POST", "/v1/leases", "")
	a.wantError(got, http.StatusConflict, "no_match", "1 are not healthy")
	if names, _ := a.list("?healthy=true"); names != "" {
		t.Errorf("listed as healthy: %s", names)
	}
	if list := a.call("GET", "/v1/proxies", "").body; !strings.Contains(list, `"phase":"Probing"`) {
		t.Errorf("listed %s", list)
	}
	a.fleet.SetCredentials(px("c/n/a").Key, "i", &fleet.Credentials{Username: "crawler", Password: "hush"})
	if got := a.leaseURL(); got != "http://crawler:hush@10.2.3.4:3128" {
		t.Errorf("url %s", got)
	}
}

func TestNothingButALeasesURLShowsCredentials(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a", guarded, maxLeases(1)))
	a.fleet.SetCredentials(px("c/n/a").Key, "i", &fleet.Credentials{Username: "cr@wler", Password: "hu$h"})
	lease := a.call("POST", "/v1/leases", `{"target":"example.com"}`)
	var body map[string]any
	if err := json.Unmarshal([]byte(lease.body), &body); err != nil {
		t.Fatal(err)
	}
	id := "/v1/leases/" + body["leaseID"].(string)
	proxy := body["proxy"].(map[string]any)
	if proxy["url"] != "http://cr%40wler:hu%24h@10.2.3.4:3128" {
		t.Fatalf("url %s", proxy["url"])
	}
	delete(proxy, "url")
	rest, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	shown := []string{string(rest)}
	for _, call := range [][3]string{
		{"GET", "/v1/proxies", ""}, {"GET", "/v1/proxies?healthy=true&cluster=c", ""}, {"GET", "/v1/clusters", ""},
		{"POST", "/v1/leases", ""}, {"POST", "/v1/leases", "{"}, {"POST", id + "/report", `{"result":"no"}`},
		{"POST", id + "/report", `{"result":"banned"}`}, {"PUT", id, ""}, {"POST", id + "/renew", "{"}, {"DELETE", id, ""}, {"POST", "/v1/leases", `{"target":"example.com"}`},
	} {
		got := a.call(call[0], call[1], call[2])
		shown = append(shown, got.body)
		for name, values := range got.header {
			shown = append(shown, name+strings.Join(values, " "))
		}
	}
	a.stop()
	a.stopped()
	for _, text := range append(shown, a.log.String()) {
		for _, secret := range []string{"cr@wler", "hu$h", "cr%40wler", "hu%24h", "wler"} {
			if strings.Contains(text, secret) {
				t.Errorf("%q is in %s", secret, text)
			}
		}
	}
}
