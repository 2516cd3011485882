package forwardproxies

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The proxies.
const (
	Tinyproxy  = "tinyproxy"
	Squid      = "squid"
	Microsocks = "microsocks"
)

// requireEnv names, with commas, the proxies without which tests fail.
const requireEnv = "FORWARDPROXIES_REQUIRE"

// squidLogin is the program by which squid checks passwords.
const squidLogin = "/usr/lib/squid/basic_ncsa_auth"

// kind is how a proxy is started.
type kind struct {
	protocol string
	// needs are further programs.
	needs []string
	// prepare writes a configuration into a folder and returns the arguments.
	prepare func(dir string, port int, o Options) ([]string, error)
}

var kinds = map[string]kind{
	Tinyproxy:  {protocol: "http", prepare: tinyproxy},
	Squid:      {protocol: "http", prepare: squid, needs: []string{squidLogin}},
	Microsocks: {protocol: "socks5", prepare: microsocks},
}

// Names are all proxies that there are, in the order of Installed.
func Names() []string { return []string{Tinyproxy, Squid, Microsocks} }

// Protocol is what clients of a proxy speak to it, as a Proxy's spec says it.
func Protocol(name string) string { return kinds[name].protocol }

// Missing is a proxy that cannot be started here.
type Missing struct{ Name, Why string }

// String is for people.
func (m Missing) String() string { return m.Name + " is not installed: " + m.Why }

// Installed looks for all proxies.
func Installed() (found []string, missing []Missing) {
	for _, name := range Names() {
		if err := look(name); err != nil {
			missing = append(missing, Missing{name, err.Error()})
			continue
		}
		found = append(found, name)
	}
	return found, missing
}

func look(name string) error {
	if _, err := program(name); err != nil {
		return err
	}
	for _, path := range kinds[name].needs {
		if _, err := os.Stat(path); err != nil {
			return err
		}
	}
	return nil
}

// program finds one that may be where only root's PATH leads.
func program(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	if path, e := exec.LookPath(filepath.Join("/usr/sbin", name)); e == nil {
		return path, nil
	}
	return "", err
}

// ForTest is the installed proxies. The others are logged. The test ends when one that
// FORWARDPROXIES_REQUIRE names is among them.
func ForTest(t testing.TB) []string {
	t.Helper()
	found, missing := Installed()
	required, err := requiredBy(os.Getenv(requireEnv))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range missing {
		if slices.Contains(required, m.Name) {
			t.Fatal(m)
		}
		t.Log(m)
	}
	return found
}

func requiredBy(list string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	required := strings.Split(list, ",")
	for _, name := range required {
		if _, known := kinds[name]; !known {
			return nil, fmt.Errorf("%s names %q: want some of %v", requireEnv, name, Names())
		}
	}
	return required, nil
}
