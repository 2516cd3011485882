package rest_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/testkit/certs"
)

func speaks(protocol string) func(*fleet.Proxy) {
	return func(p *fleet.Proxy) { p.Protocol = protocol }
}

func TestALeaseSaysAllThatAClientOfTheProtocolNeeds(t *testing.T) {
	ca, err := certs.NewAuthority("ours")
	if err != nil {
		t.Fatal(err)
	}
	authorities, err := fleet.ParseAuthorities(ca.PEM)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		edits []func(*fleet.Proxy)
		url   string
		tls   map[string]string // nil: absent
	}{
		{"http", nil, "http://10.2.3.4:3128", nil},
		{"http of an instance that https is asked of", []func(*fleet.Proxy){func(p *fleet.Proxy) { p.ServerName = "proxy.example" }}, "http://10.2.3.4:3128", nil},
		{"socks5", []func(*fleet.Proxy){speaks("socks5")}, "socks5h://10.2.3.4:3128", nil},
		{"socks5 over IPv6", []func(*fleet.Proxy){speaks("socks5"), at("2001:db8::1")}, "socks5h://[2001:db8::1]:3128", nil},
		{"https, verified by its address and what systems trust", []func(*fleet.Proxy){speaks("https")},
			"https://10.2.3.4:3128", map[string]string{"serverName": "10.2.3.4"}},
		{"https by a name", []func(*fleet.Proxy){speaks("https"), at("lb.example")},
			"https://lb.example:3128", map[string]string{"serverName": "lb.example"}},
		{"https, verified by a name and an authority", []func(*fleet.Proxy){speaks("https"), func(p *fleet.Proxy) {
			p.ServerName, p.NeedsAuthorities, p.Authorities = "proxy.example", true, authorities
		}}, "https://10.2.3.4:3128", map[string]string{"serverName": "proxy.example", "ca": string(ca.PEM)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := newAPI(t, nil, px("c/n/a", tc.edits...))
			got := a.call("POST", "/v1/leases", "")
			var body struct {
				Proxy struct{ URL, Protocol string }
				TLS   map[string]string
			}
			if err := json.Unmarshal([]byte(got.body), &body); err != nil || got.status != http.StatusCreated {
				t.Fatalf("%d %s", got.status, got.body)
			}
			if body.Proxy.URL != tc.url || len(body.TLS) != len(tc.tls) || body.TLS["serverName"] != tc.tls["serverName"] || body.TLS["ca"] != tc.tls["ca"] {
				t.Errorf("lease %s, want url %s and tls %v", got.body, tc.url, tc.tls)
			}
			if body.Proxy.Protocol == "" || strings.HasSuffix(body.Proxy.Protocol, "h") {
				t.Errorf("protocol %q is none of the contract's", body.Proxy.Protocol)
			}
			if list := a.call("GET", "/v1/proxies", "").body; strings.Contains(list, `"tls"`) || strings.Contains(list, `"url"`) {
				t.Errorf("an item of the list has what only a lease has: %s", list)
			}
		})
	}
}
