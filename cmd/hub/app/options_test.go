package app

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func none(string) string { return "" }

func TestDefaultsAreTheContracts(t *testing.T) {
	o, err := Parse(nil, func(name string) string {
		if name == "DISCOVERY_TOKEN" {
			return "t"
		}
		return ""
	})
	if err != nil {
		t.Fatal(err)
	}
	if o.Namespace != "proxy-operator-system" || o.APIAddress != ":8080" || o.MetricsAddress != ":9090" || o.ProbeAddress != ":8081" ||
		o.MaxConcurrentReconciles != 16 || o.HealthMaxInFlight != 4096 || o.APIMaxWaiters != 1000 || o.MetricsPerProxyLimit != 2000 || o.HealthURL != "https://www.gstatic.com/generate_204" ||
		o.LeaseDefaultTTL != 5*time.Minute || o.LeaseMaxTTL != 24*time.Hour || o.LeaseCooldownWindow != 10*time.Minute || o.APIToken != "t" || o.HubID != "" ||
		o.LeaderElect || o.LocalSpoke != "" || o.AllowInsecureSpokes || o.AllowSpokeProxyURL {
		t.Errorf("defaults %+v", o)
	}
}

func TestABadValueIsOneLineThatNamesIt(t *testing.T) {
	notPEM := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(notPEM, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		says []string
	}{
		{[]string{"--no-such-flag"}, []string{"no-such-flag"}},
		{[]string{"--lease-max-ttl=soon"}, []string{"lease-max-ttl", "soon"}},
		{[]string{"stray"}, []string{"stray"}},
		{[]string{"--namespace=Not_A_Name"}, []string{"--namespace", "Not_A_Name"}},
		{[]string{"--hub-id=a/b"}, []string{"--hub-id"}},
		{[]string{"--local-spoke=Home"}, []string{"--local-spoke", `"Home"`, "lower-case"}},
		{[]string{"--local-spoke=home.example"}, []string{"--local-spoke", "home.example"}},
		{[]string{"--local-spoke=home-"}, []string{"--local-spoke", "either end"}},
		{[]string{"--local-spoke=a\nb"}, []string{"--local-spoke", `a\nb`}},
		{[]string{"--local-spoke=" + strings.Repeat("a", 64)}, []string{"--local-spoke", "63"}},
		{[]string{"--allow-insecure-spokes=maybe"}, []string{"allow-insecure-spokes", "maybe"}},
		{[]string{"--allow-spoke-proxy-url", "false"}, []string{"unexpected argument", "false"}},
		{[]string{"--api-bind-address=8080"}, []string{"--api-bind-address", "host:port"}},
		{[]string{"--api-bind-address=127.0.0.1:99999"}, []string{"--api-bind-address", "65535"}},
		{[]string{"--metrics-bind-address=127.0.0.1:nope"}, []string{"--metrics-bind-address", "nope"}},
		{[]string{"--metrics-bind-address="}, []string{"--metrics-bind-address"}},
		{[]string{"--health-probe-bind-address=x"}, []string{"--health-probe-bind-address"}},
		{[]string{"--max-concurrent-reconciles=0"}, []string{"--max-concurrent-reconciles"}},
		{[]string{"--max-unavailable-replacements=0"}, []string{"--max-unavailable-replacements", `"0"`, "percentage"}},
		{[]string{"--max-unavailable-replacements=200%"}, []string{"--max-unavailable-replacements", "100%"}},
		{[]string{"--health-max-in-flight=-1"}, []string{"--health-max-in-flight"}},
		{[]string{"--api-max-waiters=0"}, []string{"--api-max-waiters"}},
		{[]string{"--metrics-per-proxy-limit=-1"}, []string{"--metrics-per-proxy-limit", "at least 0"}},
		{[]string{"--metrics-per-proxy-limit=many"}, []string{"metrics-per-proxy-limit", "many"}},
		{[]string{"--default-proxy-image="}, []string{"--default-proxy-image"}},
		{[]string{"--health-url=ftp://x"}, []string{"--health-url", "ftp://x"}},
		{[]string{"--health-ca-file=/does/not/exist"}, []string{"--health-ca-file", "/does/not/exist"}},
		{[]string{"--health-ca-file", notPEM}, []string{"--health-ca-file", "PEM"}},
		{[]string{"--lease-default-ttl=48h"}, []string{"--lease-default-ttl", "--lease-max-ttl"}},
		{[]string{"--lease-cooldown-window=0s"}, []string{"--lease-cooldown-window"}},
		{[]string{"--namespace=X", "--health-url=y"}, []string{"--namespace", "--health-url"}},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			_, err := Parse(tc.args, none)
			if err == nil {
				t.Fatal("accepted")
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %v", err)
			}
			for _, s := range tc.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%v does not name %q", err, s)
				}
			}
		})
	}
}

func TestWhatSpokesMayBeIsAsTheFlagsSay(t *testing.T) {
	longest := strings.Repeat("a", 63)
	for _, tc := range []struct {
		args            []string
		local           string
		insecure, proxy bool
	}{
		{[]string{"--local-spoke=home"}, "home", false, false},
		{[]string{"--local-spoke", longest}, longest, false, false},
		{[]string{"--local-spoke="}, "", false, false},
		{[]string{"--allow-insecure-spokes"}, "", true, false},
		{[]string{"--allow-spoke-proxy-url"}, "", false, true},
		{[]string{"--allow-insecure-spokes=false", "--allow-spoke-proxy-url=true"}, "", false, true},
	} {
		o, err := Parse(tc.args, none)
		if err != nil || o.LocalSpoke != tc.local || o.AllowInsecureSpokes != tc.insecure || o.AllowSpokeProxyURL != tc.proxy {
			t.Errorf("%v: local %q, insecure %v, proxy %v, %v", tc.args, o.LocalSpoke, o.AllowInsecureSpokes, o.AllowSpokeProxyURL, err)
		}
	}
}

func TestHelpIsNoMistake(t *testing.T) {
	if _, err := Parse([]string{"-h"}, none); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("got %v", err)
	}
}
