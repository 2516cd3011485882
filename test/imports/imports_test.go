// Package imports holds the tree to its architecture: which files decide and
// therefore know no Kubernetes, HTTP or Prometheus package, and in which
// direction the rooms of the house know each other.
package imports

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/proxyfleet/proxy-operator/"
)

// decisions are the files with plain functions over plain values. A folder
// stands for all its files, tests apart.
var decisions = []string{
	"hub/fleet/address.go",
	"hub/fleet/authorities.go",
	"hub/fleet/bar.go",
	"hub/fleet/credentials.go",
	"hub/fleet/fleet.go",
	"hub/fleet/model.go",
	"hub/health/hold.go",
	"hub/health/path.go",
	"hub/health/slots.go",
	"hub/health/suspicion.go",
	"hub/health/tracker.go",
	"hub/lease",
	"hub/proxy/budget.go",
	"hub/proxy/pauses.go",
	"hub/proxy/plan.go",
	"hub/registry/claims.go",
	"hub/registry/state.go",
	"hub/rest/query.go",
}

// outside are what a decision must not know.
var outside = []string{"k8s.io/", "sigs.k8s.io/", "net/http", "github.com/prometheus/", "github.com/gorilla/", module + "api/"}

// rooms says, per folder, which of the product's other folders its code may
// import. The longest matching folder counts.
var rooms = map[string][]string{
	"api":                   {},
	"config":                {},
	"internal":              {"api", "internal"},
	"spoke":                 {"api", "internal", "spoke"},
	"hub/fleet":             {"api"},
	"hub/registry":          {"api", "config", "internal", "spoke", "hub/fleet"},
	"hub/proxy":             {"api", "internal", "spoke", "hub/fleet"},
	"hub/health":            {"api", "internal", "hub/fleet"},
	"hub/lease":             {"hub/fleet"},
	"hub/rest":              {"hub/fleet", "hub/lease"},
	"hub/metrics":           {"hub/fleet"},
	"cmd/hub":               {"api", "internal", "spoke", "hub", "cmd/hub"},
	"cmd/forwardproxy":      {"cmd/forwardproxy"},
	"test":                  {"api", "internal", "test"},
	"internal/testkit":      {"api", "internal/testkit"},
	"test/controlplane/cmd": {"test/controlplane"},
}

func TestDecisionsKnowNothingOfTheWorld(t *testing.T) {
	for _, decision := range decisions {
		for _, file := range goFiles(t, decision) {
			for _, path := range importsOf(t, file) {
				if slices.ContainsFunc(outside, func(prefix string) bool { return strings.HasPrefix(path, prefix) }) {
					t.Errorf("%s imports %s: move what needs it to a file beside it", file, path)
				}
			}
		}
	}
}

func TestImportsRunOneWay(t *testing.T) {
	for _, top := range []string{"api", "cmd", "config", "hub", "internal", "spoke", "test"} {
		for _, file := range goFiles(t, top) {
			room := roomOf(file)
			if room == "" {
				t.Errorf("%s is in no room that this test knows: say in rooms what it may import", file)
				continue
			}
			for _, path := range importsOf(t, file) {
				imported, ours := strings.CutPrefix(path, module)
				if ours && !slices.ContainsFunc(rooms[room], func(allowed string) bool { return within(imported, allowed) }) {
					t.Errorf("%s imports %s: %s may import %v", file, imported, room, rooms[room])
				}
			}
		}
	}
}

func roomOf(file string) string {
	best := ""
	for room := range rooms {
		if within(file, room) && len(room) > len(best) {
			best = room
		}
	}
	return best
}

func within(path, folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") }

// goFiles are the Go files at or below path that are no tests and belong to
// the module, relative to the root.
func goFiles(t *testing.T, path string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(filepath.Join(root, path), func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
				return filepath.SkipDir // a module of its own
			}
		case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
			relative, err := filepath.Rel(root, name)
			if err != nil {
				return err
			}
			files = append(files, filepath.ToSlash(relative))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func importsOf(t *testing.T, file string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, spec := range parsed.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

func TestEveryDecisionIsThere(t *testing.T) {
	for _, decision := range decisions {
		if len(goFiles(t, decision)) == 0 {
			t.Errorf("%s is gone: take it off the list, or put what took its place on it", decision)
		}
	}
}
