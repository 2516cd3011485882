package clients

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// requireEnv names, with commas, the clients without which tests fail, go apart.
const requireEnv = "CRAWLER_REQUIRE"

// once is Installed: it starts some interpreters, which many tests need not do again.
var once = sync.OnceValues(func() ([]Client, []Missing) { return Installed(context.Background()) })

// ForTest is the installed clients that can use proxies of all these protocols. The others are
// logged. The test ends when one that CRAWLER_REQUIRE names is among them.
func ForTest(t testing.TB, protocols ...string) []Client {
	t.Helper()
	required := []string{"go"}
	for name := range strings.SplitSeq(os.Getenv(requireEnv), ",") {
		if name != "" && !slices.Contains(Names(), name) {
			t.Fatalf("%s names %q: want some of %v", requireEnv, name, Names())
		}
		required = append(required, name)
	}
	var able []Client
	found, missing := once()
	for _, client := range found {
		i := slices.IndexFunc(protocols, func(p string) bool { ok, _ := client.Supports(p); return !ok })
		if i < 0 {
			able = append(able, client)
			continue
		}
		_, why := client.Supports(protocols[i])
		missing = append(slices.Clip(missing), Missing{client.Name(), why})
	}
	for _, m := range missing {
		if slices.Contains(required, m.Name) {
			t.Fatal(m)
		}
		t.Log(m)
	}
	return able
}
