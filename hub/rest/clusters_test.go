package rest_test

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/rest"
)

func TestTheClustersOnTheWire(t *testing.T) {
	local := time.FixedZone("UTC+2", 2*60*60)
	known := []rest.Cluster{
		{Name: "us-east", Reason: "Unreachable", Proxies: 80, Instances: 79, LastContact: time.Date(2026, 1, 2, 17, 4, 5, 999_999_999, local)},
		{Name: "bad", Reason: "KubeconfigForbidden"},
		{Name: "eu-west", Ready: true, Reason: "Connected", Proxies: 120, Instances: 118, LastContact: time.Date(2026, 1, 2, 15, 4, 15, 0, time.UTC)},
		{Name: "eu", Reason: "Connecting"},
	}
	given := slices.Clone(known)
	a := newAPI(t, func(o *rest.Options) { o.Clusters = func() []rest.Cluster { return given } })
	got := a.call("GET", "/v1/clusters", "")
	if got.status != http.StatusOK || got.header.Get("Content-Type") != "application/json" || got.header.Get("Cache-Control") != "no-store" {
		t.Errorf("%d %v", got.status, got.header)
	}
	sameJSON(t, got.body, `{"clusters":[
		{"name":"bad","ready":false,"reason":"KubeconfigForbidden","proxies":0,"instances":0},
		{"name":"eu","ready":false,"reason":"Connecting","proxies":0,"instances":0},
		{"name":"eu-west","ready":true,"reason":"Connected","proxies":120,"instances":118,"lastContactTime":"2026-01-02T15:04:15Z"},
		{"name":"us-east","ready":false,"reason":"Unreachable","proxies":80,"instances":79,"lastContactTime":"2026-01-02T15:04:05Z"}]}`)
	if !slices.Equal(given, known) {
		t.Errorf("the source's own slice is changed: %v", given)
	}
	head := a.call("HEAD", "/v1/clusters", "")
	if head.status != http.StatusOK || head.body != "" || head.header.Get("Content-Length") != got.header.Get("Content-Length") {
		t.Errorf("HEAD: %+v", head)
	}
}

func TestNoClusterIsAnEmptyList(t *testing.T) {
	for name, source := range map[string]func() []rest.Cluster{
		"no source":      nil,
		"no slice":       func() []rest.Cluster { return nil },
		"an empty slice": func() []rest.Cluster { return []rest.Cluster{} },
	} {
		a := newAPI(t, func(o *rest.Options) { o.Clusters = source })
		if got := a.call("GET", "/v1/clusters?", ""); got.status != http.StatusOK || strings.TrimSpace(got.body) != `{"clusters":[]}` {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
}

func TestTheClustersAreThoseOfNow(t *testing.T) {
	var contacts atomic.Int64
	a := newAPI(t, func(o *rest.Options) {
		o.Clusters = func() []rest.Cluster {
			return []rest.Cluster{{Name: "c", Proxies: int(contacts.Add(1))}}
		}
	})
	for _, want := range []string{`"proxies":1`, `"proxies":2`} {
		if got := a.call("GET", "/v1/clusters", ""); !strings.Contains(got.body, want) {
			t.Errorf("%s, want %s", got.body, want)
		}
	}
}

func TestTheClustersAreShownBeforeTheHubIsReady(t *testing.T) {
	a := newAPI(t, func(o *rest.Options) {
		o.Ready = func() bool { return false }
		o.Clusters = func() []rest.Cluster { return []rest.Cluster{{Name: "c", Reason: "Connecting"}} }
	})
	if got := a.call("GET", "/v1/clusters", ""); got.status != http.StatusOK || !strings.Contains(got.body, "Connecting") {
		t.Errorf("%d %s: who waits for a spoke sees nothing of it", got.status, got.body)
	}
}

func TestTheListOfClustersTakesNoQuery(t *testing.T) {
	a := newAPI(t, nil)
	for query, says := range map[string]string{
		"name=c&ready=true": `unknown query parameter "name", "ready": this call takes none`,
		"cluster=":          `unknown query parameter "cluster"`,
		"limit=1&limit=2":   `"limit" is given more than once`,
		"continue=%zz":      "percent-encode",
		"%ff":               "not UTF-8",
	} {
		a.wantError(a.call("GET", "/v1/clusters?"+query, ""), http.StatusBadRequest, "invalid_request", says)
	}
}
