package rest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// list is GET /v1/proxies, decoded: the names and the continue token.
func (a *api) list(query string) (names, next string) {
	a.t.Helper()
	got := a.call("GET", "/v1/proxies"+query, "")
	var body struct {
		Proxies []struct {
			Cluster, Namespace, Name string
			URL                      *string
		}
		Count    int
		Continue *string
	}
	if err := json.Unmarshal([]byte(got.body), &body); err != nil || got.status != http.StatusOK || body.Continue == nil {
		a.t.Fatalf("GET /v1/proxies%s: %d %s", query, got.status, got.body)
	}
	if body.Count != len(body.Proxies) {
		a.t.Errorf("count %d of %d", body.Count, len(body.Proxies))
	}
	var all []string
	for _, p := range body.Proxies {
		all = append(all, fmt.Sprintf("%s/%s/%s", p.Cluster, p.Namespace, p.Name))
		if p.URL != nil {
			a.t.Error("the list shows a url")
		}
	}
	return strings.Join(all, " "), *body.Continue
}

func TestTheListOnTheWire(t *testing.T) {
	a := newAPI(t, nil)
	if got := a.call("GET", "/v1/proxies", ""); got.status != http.StatusOK {
		t.Fatalf("an empty list is %d", got.status)
	} else {
		sameJSON(t, got.body, `{"proxies":[],"count":0,"continue":""}`)
	}
	a.fleet.Upsert(px("us/n/b", func(p *fleet.Proxy) { p.Provisioned, p.Host, p.Port, p.StatusPhase = false, "", 0, "Provisioning" }))
	a.fleet.Upsert(px("eu/n/a", attrs("region", "eu"), maxLeases(2)))
	a.lease("")
	sameJSON(t, a.call("GET", "/v1/proxies", "").body, `{"proxies":[
		{"cluster":"eu","namespace":"n","name":"a","uid":"uid-a","protocol":"http","host":"10.2.3.4","port":3128,"attributes":{"region":"eu"},
		 "healthy":true,"phase":"Ready","latencyMillis":41,"activeLeases":1,"maxLeases":2},
		{"cluster":"us","namespace":"n","name":"b","uid":"uid-b","protocol":"http","host":"","port":0,"attributes":{},
		 "healthy":false,"phase":"Provisioning","latencyMillis":41,"activeLeases":0}],"count":2,"continue":""}`)
	head := a.call("HEAD", "/v1/proxies", "")
	if head.status != http.StatusOK || head.body != "" || head.header.Get("Content-Length") == "" || head.header.Get("Content-Length") == "0" {
		t.Errorf("HEAD: %+v", head)
	}
}

func TestTheListIsFiltered(t *testing.T) {
	a := newAPI(t, nil,
		px("c1/n1/a", attrs("region", "eu", "tier", "dc")), px("c1/n1/b", attrs("region", "eu"), sick),
		px("c1/n2/c", attrs("region", "us", "tier", "dc")), px("c2/n1/d"),
		px("c2/n1/e", func(p *fleet.Proxy) { p.Deleting = true }))
	for query, want := range map[string]string{
		"":                                     "c1/n1/a c1/n1/b c1/n2/c c2/n1/d c2/n1/e",
		"?":                                    "c1/n1/a c1/n1/b c1/n2/c c2/n1/d c2/n1/e",
		"?cluster=c1":                          "c1/n1/a c1/n1/b c1/n2/c",
		"?cluster=&namespace=&continue=":       "c1/n1/a c1/n1/b c1/n2/c c2/n1/d c2/n1/e",
		"?namespace=n1&cluster=c1":             "c1/n1/a c1/n1/b",
		"?cluster=nowhere":                     "",
		"?healthy=true":                        "c1/n1/a c1/n2/c c2/n1/d",
		"?healthy=false":                       "c1/n1/b c2/n1/e",
		"?attr.region=eu":                      "c1/n1/a c1/n1/b",
		"?attr.region=eu&attr.tier=dc":         "c1/n1/a",
		"?attr%2Eregion=%65u&healthy=false":    "c1/n1/b",
		"?attr.zone=x":                         "",
		"?limit=5":                             "c1/n1/a c1/n1/b c1/n2/c c2/n1/d c2/n1/e",
		"?limit=5000&attr.tier=dc&cluster=c1&": "c1/n1/a c1/n2/c",
	} {
		if got, next := a.list(query); got != want || next != "" {
			t.Errorf("%s: got %q, continue %q; want %q", query, got, next, want)
		}
	}
}

func TestListQueriesThatAreRefused(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	for query, says := range map[string]string{
		"region=eu&Cluster=x":          `unknown query parameter "Cluster", "region"`,
		"cluster=a&cluster=b":          `"cluster" is given more than once`,
		"attr.a=b&attr.a=b":            `"attr.a" is given more than once`,
		"healthy=yes":                  "healthy must be true or false",
		"healthy":                      "healthy must be true or false",
		"limit=0":                      "limit must be a whole number from 1 to 5000",
		"limit=5001":                   "limit must be a whole number from 1 to 5000",
		"limit=-1":                     "limit must be a whole number from 1 to 5000",
		"limit=9999999999999999999":    "limit must be a whole number from 1 to 5000",
		"limit=":                       "limit must be a whole number from 1 to 5000",
		"continue=!":                   "leave it out to start from the beginning",
		"continue=bm9wZQ":              "leave it out to start from the beginning",
		"continue=WyJhIl0":             "leave it out to start from the beginning",
		"attr.=x":                      "attr has a key",
		"attr.Region=eu":               "attr has a key",
		"attr.region=":                 "attr has a value",
		"attr.region=%ff":              "not UTF-8",
		"%ff=x":                        "not UTF-8",
		"cluster=%zz":                  "percent-encode",
		"cluster=a;namespace=b":        "percent-encode",
		"token=" + token:               `unknown query parameter "token"`,
		strings.Repeat("a", 5000) + "": "unknown query parameter",
	} {
		got := a.call("GET", "/v1/proxies?"+query, "")
		a.wantError(got, http.StatusBadRequest, "invalid_request", says)
		if len(got.body) > 1000 {
			t.Errorf("%.20s: an error of %d bytes", query, len(got.body))
		}
	}
}

func TestPagesNeitherRepeatNorHideWhileTheFleetChanges(t *testing.T) {
	a := newAPI(t, nil)
	for i := range 20 {
		a.fleet.Upsert(px(fmt.Sprintf("c%d/n/p%02d", i/10, i)))
	}
	var pages []string
	next := ""
	for page := 0; page == 0 || next != ""; page++ {
		names, token := a.list("?limit=3&continue=" + url.QueryEscape(next))
		pages, next = append(pages, names), token
		switch page {
		case 0: // the page's last one and one already seen go, one comes before, one after
			a.fleet.Delete(px("c0/n/p02").Key, "uid-p02")
			a.fleet.Delete(px("c0/n/p00").Key, "uid-p00")
			a.fleet.Upsert(px("c0/n/p01a"))
			a.fleet.Upsert(px("c0/n/p02a"))
		case 1: // a whole spoke goes, and comes back
			a.fleet.Retain("c1", nil)
		case 2:
			for i := 10; i < 20; i++ {
				a.fleet.Upsert(px(fmt.Sprintf("c1/n/p%02d", i)))
			}
		}
	}
	got := strings.Join(pages, " | ")
	want := "c0/n/p00 c0/n/p01 c0/n/p02 | c0/n/p02a c0/n/p03 c0/n/p04 | c0/n/p05 c0/n/p06 c0/n/p07 | " +
		"c0/n/p08 c0/n/p09 c1/n/p10 | c1/n/p11 c1/n/p12 c1/n/p13 | c1/n/p14 c1/n/p15 c1/n/p16 | c1/n/p17 c1/n/p18 c1/n/p19"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestTheLastPageHasNoContinue(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"), px("c/n/b"), px("c/n/c", sick))
	if names, next := a.list("?limit=2&healthy=true"); names != "c/n/a c/n/b" || next != "" {
		t.Errorf("%q, continue %q, though nothing that matches follows", names, next)
	}
}

func TestALimitOfItsOwnBoundsAPage(t *testing.T) {
	a := newAPI(t, nil)
	for i := range 501 {
		a.fleet.Upsert(px(fmt.Sprintf("c/n/p%03d", i)))
	}
	names, next := a.list("")
	if n := len(strings.Fields(names)); n != 500 || next == "" {
		t.Errorf("%d on the first page, continue %q", n, next)
	}
	if names, next := a.list("?continue=" + next); names != "c/n/p500" || next != "" {
		t.Errorf("the second page: %q, continue %q", names, next)
	}
}
