package clients_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"

	"github.com/proxyfleet/proxy-operator/test/crawler/clients"
)

func TestParseLease(t *testing.T) {
	_, ca := issue(t, exit)
	const user = "http://u:" + marker + "@"
	for _, c := range []struct {
		name, protocol, url string
		tls                 *answerTLS
		want                string // in the error; empty: none
	}{
		{"IPv4", "http", user + "10.2.3.4:3128", nil, ""},
		{"IPv6", "http", user + "[2001:db8::1]:3128", nil, ""},
		{"name", "http", user + "proxy-1.example:3128", nil, ""},
		{"open to all", "socks5", "socks5h://10.2.3.4:1080", nil, ""},
		{"https without tls", "https", "https://10.2.3.4:3128", nil, ""},
		{"https", "https", "https://10.2.3.4:3128", &answerTLS{proxyName, ca}, ""},
		{"no URL", "http", "", nil, "begins with none of"},
		{"SOCKS that resolves names at home", "socks5", "socks5://u:" + marker + "@10.2.3.4:1080", nil, "begins with none of"},
		{"another protocol", "https", user + "10.2.3.4:3128", nil, "differ"},
		{"user alone", "http", "http://" + marker + "@10.2.3.4:3128", nil, "user:password"},
		{"colon not encoded", "http", user[:len(user)-1] + ":x@10.2.3.4:3128", nil, "user:password"},
		{"at not encoded", "http", user + "@10.2.3.4:3128", nil, "host:port"},
		{"quote not encoded", "http", "http://u:" + marker + "\"@10.2.3.4:3128", nil, "user:password"},
		{"percent not encoded", "http", "http://u:" + marker + "%@10.2.3.4:3128", nil, "user:password"},
		{"no port", "http", user + "10.2.3.4", nil, "host:port"},
		{"port zero", "http", user + "10.2.3.4:0", nil, "host:port"},
		{"IPv6 without brackets", "http", user + "2001:db8::1:3128", nil, "host:port"},
		{"zone", "http", user + "[fe80::1%25eth0]:3128", nil, "host:port"},
		{"path", "http", user + "10.2.3.4:3128/", nil, "host:port"},
		{"query", "http", user + "10.2.3.4:3128?" + marker, nil, "host:port"},
		{"line feed", "http", user + "10.2.3.4:3128\nurl=x", nil, "host:port"},
		{"tls for http", "http", user + "10.2.3.4:3128", &answerTLS{proxyName, ca}, "no use"},
		{"CA without a certificate", "https", "https://10.2.3.4:3128", &answerTLS{proxyName, marker}, "tls.ca"},
		{"name that is none", "https", "https://10.2.3.4:3128", &answerTLS{marker + "\"", ca}, "tls.serverName"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := answer{TLS: c.tls}
			a.Proxy.Protocol, a.Proxy.URL = c.protocol, c.url
			_, err := clients.ParseLease(a.json(t))
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want one with %q", err, c.want)
			}
			mustNotTell(t, err.Error(), "u", marker)
		})
	}
}

// The hub's own answers have more in them than is read here.
func TestParseLeaseOfTheContract(t *testing.T) {
	lease, err := clients.ParseLease([]byte(`{"leaseID":"l-7","client":"default","target":"example.com",
 "expiresAt":"2026-01-02T15:04:05Z","ttlSeconds":300,
 "proxy":{"cluster":"eu-west","namespace":"crawl","name":"eu-1","uid":"x",
          "protocol":"https","host":"2001:db8::7","port":3128,
          "url":"https://user:pass@[2001:db8::7]:3128","attributes":{"region":"eu"},
          "healthy":true,"phase":"Ready","latencyMillis":41,"activeLeases":1,"maxLeases":10},
 "tls":{"serverName":"proxy.example"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if lease.ID != "l-7" || lease.Protocol != "https" || lease.Host != "2001:db8::7" || lease.Port != 3128 || lease.ServerName != proxyName || lease.CA != "" {
		t.Errorf("%+v", lease)
	}
}

// A test that prints a lease must not print the password, however it does so.
func TestLeasePrintsNoPassword(t *testing.T) {
	lease := running{protocol: "http", addr: "10.2.3.4:3128"}.lease(t, username, printable)
	type holder struct {
		Public clients.Lease
		hidden clients.Lease
		behind *clients.Lease
	}
	held := holder{lease, lease, &lease}
	var text strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, value := range []any{lease, &lease, held, &held, []clients.Lease{lease}} {
			fmt.Fprintf(&text, verb+"\n", value)
		}
	}
	for _, value := range []any{lease, held} {
		content, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(content)
		slog.New(slog.NewTextHandler(&text, nil)).Info("leased", "lease", value)
		slog.New(slog.NewJSONHandler(&text, nil)).Info("leased", "lease", value)
	}
	mustNotTell(t, text.String(), username, printable)
	if want := "lease l-1 of http://10.2.3.4:3128"; fmt.Sprint(lease) != want {
		t.Errorf("%v, want %s", lease, want)
	}
}

func FuzzParseLease(f *testing.F) {
	for _, url := range []string{"http://u:p%20q@10.2.3.4:3128", "https://u:p@[::1]:1", "socks5h://proxy.example:65535", "http://u:p@@h:1", "http://u:%zz@h:1"} {
		f.Add(url)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		scheme, _, _ := strings.Cut(raw, ":")
		a := answer{}
		a.Proxy.Protocol, a.Proxy.URL = strings.TrimSuffix(scheme, "h"), raw
		lease, err := clients.ParseLease(a.json(t))
		if err != nil {
			return
		}
		// What is taken is what net/url and with it all clients make of it.
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		if u.Hostname() != lease.Host || u.Port() != fmt.Sprint(lease.Port) || u.Path+u.RawQuery+u.Fragment != "" {
			t.Fatalf("%q is %+v", raw, lease)
		}
	})
}
