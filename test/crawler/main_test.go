package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/proxyfleet/proxy-operator/cmd/forwardproxy/proxy"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	hublease "github.com/proxyfleet/proxy-operator/hub/lease"
	"github.com/proxyfleet/proxy-operator/hub/rest"
	"github.com/proxyfleet/proxy-operator/internal/testkit/certs"
	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
)

const (
	proxyPassword = "MaRkEr40962 /?#%&"
	apiToken      = "ToKeN77120"
)

// world is a hub's API with one https Proxy, a real one, and a site.
type world struct {
	t      *testing.T
	api    string
	leases *hublease.Store
	key    fleet.Key
	site   *origin.Server
	siteCA string // the file
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, site: origin.Start(t), key: fleet.Key{Cluster: "eu-west", Namespace: "crawl", Name: "eu-1"}}
	w.siteCA = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(w.siteCA, w.site.CAPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	authority, err := certs.NewAuthority("CA of the proxy")
	if err != nil {
		t.Fatal(err)
	}
	authorities, err := fleet.ParseAuthorities(authority.PEM)
	if err != nil {
		t.Fatal(err)
	}
	host, port := serveHTTPS(t, authority)
	all := fleet.New(fleet.Options{AllowLocal: true})
	w.leases = hublease.New(hublease.Options{})
	all.Upsert(fleet.Proxy{
		Key: w.key, UID: "u", Protocol: "https", ServerName: "proxy.example", Host: host, Port: port,
		Instance: "i", Attributes: map[string]string{"region": "eu"}, StatusPhase: "Ready", Provisioned: true,
		NeedsCredentials: true, Credentials: &fleet.Credentials{Username: "user", Password: proxyPassword},
		NeedsAuthorities: true, Authorities: authorities,
		Verdict: fleet.Verdict{Health: fleet.Healthy},
	})
	all.Follow(w.leases.Observe)
	api := httptest.NewServer(rest.New(rest.Options{Token: apiToken, Leases: w.leases}))
	t.Cleanup(api.Close)
	w.api = api.URL
	return w
}

// serveHTTPS runs a proxy until the test ends.
func serveHTTPS(t *testing.T, authority *certs.Authority) (host string, port int) {
	t.Helper()
	pair, err := authority.Issue("proxy.example")
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	server, err := proxy.Listen(t.Context(), proxy.Options{
		Protocol: proxy.HTTPS, Certificate: &certificate, BindAddress: netip.MustParseAddr("127.0.0.1"),
		Credentials: &proxy.Credentials{Username: "user", Password: proxyPassword},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	host, digits, err := net.SplitHostPort(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	port, err = strconv.Atoi(digits)
	if err != nil {
		t.Fatal(err)
	}
	return host, port
}

// crawler runs the program and returns what it printed.
func (w *world) crawler(stdin string, args ...string) (code int, stdout, stderr string) {
	w.t.Helper()
	getenv := func(name string) string { return map[string]string{"TOKEN": apiToken, "WRONG": "wrong"}[name] }
	var out, errs strings.Builder
	code = run(w.t.Context(), args, getenv, strings.NewReader(stdin), &out, &errs)
	for _, secret := range []string{"MaRkEr40962", apiToken} {
		if strings.Contains(out.String()+errs.String(), secret) {
			w.t.Errorf("%s is told: %s%s", secret, out.String(), errs.String())
		}
	}
	return code, out.String(), errs.String()
}

// required are the clients that have to be there.
func required() string { return cmp.Or(os.Getenv("CRAWLER_REQUIRE"), "go") }

func TestLeasesFetchesReportsAndReleases(t *testing.T) {
	w := newWorld(t)
	code, stdout, stderr := w.crawler("", "-url", w.site.URL+"/page", "-site-ca", w.siteCA, "-require", required(),
		"-api", w.api+"/", "-token-env", "TOKEN", "-selector", "region=eu")
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	wants := []string{"\nreported ok\nreleased\n"}
	for name := range strings.SplitSeq(required(), ",") {
		wants = append(wants, fmt.Sprintf("%-8sok      status 200, ", name))
	}
	for _, want := range wants {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if n := len(w.leases.ActiveByCluster()); n != 0 {
		t.Errorf("leases are left in %d clusters", n)
	}
}

// A fetch that failed must not count as the site being fine with the proxy, nor keep the lease.
func TestAFailedFetchIsNotReportedAndReleasesAllTheSame(t *testing.T) {
	w := newWorld(t)
	for name, args := range map[string][]string{
		"site not trusted": {"-url", w.site.URL},
		"status":           {"-url", w.site.URL + "/status/503", "-site-ca", w.siteCA},
	} {
		code, stdout, stderr := w.crawler("", append(args, "-client", "go", "-api", w.api, "-token-env", "TOKEN")...)
		if code != 1 || !strings.Contains(stdout, "go      failed  go: ") || strings.Contains(stdout, "reported") || !strings.Contains(stdout, "released") {
			t.Errorf("%s: exit code %d\n%s%s", name, code, stdout, stderr)
		}
		if n := len(w.leases.ActiveByCluster()); n != 0 {
			t.Errorf("%s: leases are left in %d clusters", name, n)
		}
	}
}

func TestTheAPIsReasonIsTold(t *testing.T) {
	w := newWorld(t)
	for want, args := range map[string][]string{
		"401, want 201: unauthorized": {"-token-env", "WRONG"},
		"409, want 201: no_match":     {"-token-env", "TOKEN", "-selector", "region=us"},
	} {
		code, _, stderr := w.crawler("", append(args, "-url", w.site.URL, "-api", w.api)...)
		if code != 1 || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("exit code %d, %s, want %s", code, stderr, want)
		}
	}
}

func TestReadsALeaseFromStdin(t *testing.T) {
	w := newWorld(t)
	h, err := newHub(w.api)
	if err != nil {
		t.Fatal(err)
	}
	h.token = apiToken
	answer, err := h.call(t.Context(), "POST", "/v1/leases", map[string]any{}, 201)
	if err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := w.crawler(string(answer), "-url", w.site.URL, "-site-ca", w.siteCA, "-client", "go")
	if code != 0 || strings.Count(stdout, " ok ") != 1 || strings.Contains(stdout, "python") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	code, _, stderr = w.crawler(strings.ReplaceAll(string(answer), "https:", "ftp:"), "-url", w.site.URL)
	if code != 1 || !strings.Contains(stderr, "read the lease from stdin: proxy.url begins with") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// What -require and -client name must be there; without them a missing client is only told.
func TestMissingClients(t *testing.T) {
	w := newWorld(t)
	t.Setenv("PATH", t.TempDir())
	args := []string{"-url", w.site.URL, "-site-ca", w.siteCA, "-api", w.api, "-token-env", "TOKEN"}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 0, "node    absent  "},
		{[]string{"-require", "go"}, 0, "curl    absent  "},
		{[]string{"-require", "go,curl"}, 1, "curl    absent  "},
		{[]string{"-client", "go", "-require", "curl"}, 1, "curl    absent  "},
		{[]string{"-client", "node"}, 1, "node    absent  "},
	} {
		code, stdout, stderr := w.crawler("", append(c.args, args...)...)
		if code != c.code || !strings.Contains(stdout, c.want) {
			t.Errorf("%v: exit code %d, want %d\n%s%s", c.args, code, c.code, stdout, stderr)
		}
	}
}

func TestABadCommandLineIsALineForEachFlag(t *testing.T) {
	w := &world{t: t}
	noPEM := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(noPEM, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	const url = "https://site.example/"
	for _, c := range []struct {
		name string
		args []string
		want []string // the beginning of each line
	}{
		{"nothing", nil, []string{"-url: "}},
		{"plain http", []string{"-url", "http://site.example/"}, []string{"-url: "}},
		{"user in the page", []string{"-url", "https://u:MaRkEr40962@site.example/"}, []string{"-url: "}},
		{"unknown client", []string{"-url", url, "-client", "wget"}, []string{`-client: "wget"`}},
		{"no client", []string{"-url", url, "-client", ""}, []string{"-client: "}},
		{"unknown requirement", []string{"-url", url, "-require", "go,all"}, []string{`-require: "all"`}},
		{"no such file", []string{"-url", url, "-site-ca", noPEM + "x"}, []string{"-site-ca: open "}},
		{"no certificate", []string{"-url", url, "-site-ca", noPEM}, []string{"-site-ca: "}},
		{"selector", []string{"-url", url, "-api", "http://hub", "-selector", "region"}, []string{`-selector: "region"`}},
		{"API", []string{"-url", url, "-api", "hub:8080", "-token-env", "TOKEN"}, []string{"-api: "}},
		{"no token", []string{"-url", url, "-api", "http://hub", "-token-env", "NONE"}, []string{"-token-env: the environment has no NONE"}},
		{"leasing without an API", []string{"-url", url, "-token-env", "TOKEN", "-selector", "a=b"}, []string{"-selector: ", "-token-env: "}},
		{"unknown flag", []string{"-verbose"}, []string{"flag provided but not defined: -verbose"}},
		{"argument", []string{"-url", url, "x"}, []string{`unexpected argument "x"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, stdout, stderr := w.crawler("", c.args...)
			lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
			if code != 2 || stdout != "" || len(lines) != len(c.want) {
				t.Fatalf("exit code %d, %q, %q, want 2 and %q", code, stdout, stderr, c.want)
			}
			for i, want := range c.want {
				if !strings.HasPrefix(lines[i], "crawler: "+want) {
					t.Errorf("%q, want %q", lines[i], want)
				}
			}
		})
	}
}
