package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// heartbeat is how often a long build says that it is still alive.
const heartbeat = 30 * time.Second

// lock takes an exclusive lock on a file, which ends with this process at the latest.
func lock(ctx context.Context, path string, progress io.Writer) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the cache of control plane binaries: %w", err)
	}
	stop := func() {}
	// Polling, because a blocking flock could not be interrupted by ctx.
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for first := true; ; first = false {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			stop()
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			stop()
			_ = file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if first {
			stop = report(progress, "another process is building the control plane binaries, waiting for it", "still waiting for the other process's build")
		}
		select {
		case <-ctx.Done():
			stop()
			_ = file.Close()
			return nil, fmt.Errorf("wait for the build of the control plane binaries: %w", context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// build compiles one binary into dir. The caller holds the lock.
func build(ctx context.Context, progress io.Writer, module string, pinned versions, b binary, dir string) error {
	goTool, err := exec.LookPath("go")
	if err != nil {
		return fmt.Errorf("build %s: Go is needed once: %w", b.name, err)
	}
	// A name that is fixed, so that what a killed build left behind is overwritten.
	unfinished := filepath.Join(dir, "."+b.name+".unfinished")
	cmd := exec.CommandContext(ctx, goTool, "build",
		"-ldflags", "-s -w -X k8s.io/component-base/version.gitVersion="+pinned.kubernetes,
		"-o", unfinished, b.pkg)
	cmd.Dir = module
	cmd.Env = buildEnv(os.Environ())
	// The compilers are children of the go command; an interrupt lets it end them and tidy up.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output

	began := time.Now()
	stop := report(progress,
		fmt.Sprintf("building %s from source, once per machine: %s on two cores, less when partly cached", b.name, b.lasting),
		"still building "+b.name)
	err = cmd.Run()
	stop()
	if ctx.Err() != nil {
		return fmt.Errorf("build %s: %w", b.name, context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("build %s: %w:\n%s", b.name, err, output.String())
	}
	if err := os.Rename(unfinished, filepath.Join(dir, b.name)); err != nil {
		return fmt.Errorf("put %s into place: %w", b.name, err)
	}
	fmt.Fprintf(progress, "built %s in %s\n", b.name, elapsed(began))
	return nil
}

// buildEnv keeps what reaches the module proxy and the caches, and drops what would make the
// result another one than the cache's key says, or keep it from being built: another target,
// a workspace, and all GOFLAGS but the harmless ones.
func buildEnv(environment []string) []string {
	harmless := []string{"-p", "-v", "-x", "-modcacherw"}
	var flags []string
	kept := slices.DeleteFunc(slices.Clone(environment), func(entry string) bool {
		name, value, _ := strings.Cut(entry, "=")
		if name == "GOFLAGS" {
			for _, flag := range strings.Fields(value) {
				flagName, _, _ := strings.Cut(strings.Replace(flag, "--", "-", 1), "=")
				if slices.Contains(harmless, flagName) {
					flags = append(flags, flag)
				}
			}
		}
		return slices.Contains([]string{"GOFLAGS", "GOOS", "GOARCH", "GOWORK", "CGO_ENABLED", "GOEXPERIMENT"}, name)
	})
	return append(kept, "CGO_ENABLED=0", "GOWORK=off", "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH,
		// Never empty: only then does it win over what `go env -w` has written.
		"GOFLAGS="+strings.Join(append(flags, "-mod=readonly"), " "))
}

// report writes a first line at once and then one every heartbeat until it is stopped.
func report(progress io.Writer, first, then string) (stop func()) {
	fmt.Fprintln(progress, first)
	began, done, ended := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(heartbeat)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				fmt.Fprintf(progress, "%s, %s so far\n", then, elapsed(began))
			}
		}
	}()
	return func() {
		close(done)
		<-ended // nothing is written to progress after stop
	}
}

func elapsed(began time.Time) time.Duration { return time.Since(began).Round(time.Second) }
