package clients_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
	"github.com/proxyfleet/proxy-operator/test/crawler/clients"
)

// Command lines and environments can be read by others on the machine.
func TestNoPasswordOnACommandLineOrInTheEnvironment(t *testing.T) {
	dir := t.TempDir()
	seen := filepath.Join(dir, "seen")
	for _, name := range []string{"curl", "python3", "node"} {
		program, err := exec.LookPath(name)
		if err != nil {
			continue // ForTest sees to what must be there
		}
		wrapper := fmt.Sprintf("#!/bin/sh\n{ echo %s \"$@\"; env; } >> %s\nexec %s \"$@\"\n", name, seen, program)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(wrapper), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(seen, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("DISCOVERY_TOKEN", marker)

	site := origin.Start(t)
	proxy := serve(t, "http", credentials)
	found, missing := clients.Installed(t.Context())
	t.Log(missing)
	for _, client := range found {
		fetched(t, client, proxy.lease(t, username, printable), site)
	}
	content, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	mustNotTell(t, string(content), username, printable)
	if !strings.Contains(string(content), "curl --disable --config -") {
		t.Errorf("the wrappers were not used: %s", content)
	}
}

// A client that repeats what it reads has nothing of it passed on.
func TestWhatRepeatsThePasswordIsWithheld(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	const config = `url=$(cat); case "$*" in *--version*) echo HTTPS-proxy; exit;; esac; `
	lease := running{protocol: "http", addr: "127.0.0.1:1"}.lease(t, username, printable)
	quoted, err := json.Marshal(printable)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "quoted"), quoted, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, say := range map[string]string{
		"as it is given":     `echo "cannot use $url"`,
		"upper-case":         `echo "cannot use $url" | tr a-z A-Z`,
		"quoted, by a shell": `cat ` + filepath.Join(dir, "quoted"),
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(dir, "curl"), []byte("#!/bin/sh\n"+config+say+" >&2; exit 5\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			found, _ := clients.Installed(t.Context())
			for _, client := range found {
				if client.Name() != "curl" {
					continue
				}
				_, _, err := clients.Fetch(t.Context(), client, lease, "https://site.example/", nil)
				if err == nil || !strings.Contains(err.Error(), "withheld") {
					t.Errorf("error %v", err)
				}
			}
		})
	}
}
