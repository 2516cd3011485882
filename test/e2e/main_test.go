package e2e_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/test/controlplane"
)

// root is the module's.
const root = "../.."

// bin is the directory of the programs under test.
var bin string

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run builds before the tests' clock runs: a first build takes minutes.
func run(m *testing.M) (code int) {
	dir, err := os.MkdirTemp("", "proxy-operator-e2e-")
	if err == nil {
		defer os.RemoveAll(dir)
		bin = dir
		err = build()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func build() error {
	began := time.Now()
	if _, err := controlplane.Assets(context.Background(), os.Stderr); err != nil {
		return err
	}
	args := []string{"build", "-o", bin + string(filepath.Separator)}
	if raceEnabled {
		args = append(args, "-race")
	}
	args = append(args, "./cmd/hub", "./cmd/forwardproxy", "./test/node", "./test/origin", "./test/demo")
	cmd := exec.CommandContext(context.Background(), "go", args...)
	cmd.Dir = root
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, output)
	}
	fmt.Fprintf(os.Stderr, "built the programs in %s\n", time.Since(began).Round(time.Second))
	return nil
}

// noteSources looks at everything that the programs are made of. The go command repeats an
// earlier result while nothing has changed that a test has looked at while it ran, and does not
// see what the compiler looks at.
func noteSources() {
	for _, dir := range []string{"api", "cmd", "config", "hub", "internal", "spoke", "test"} {
		_ = filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, _ error) error {
			_, _ = os.Stat(path) // another test's file may have come and gone
			return nil
		})
	}
}
