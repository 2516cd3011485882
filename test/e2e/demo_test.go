package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/test/process"
)

// demoTimeout is for a start on a busy machine; an idle one needs 20 s.
const demoTimeout = 5 * time.Minute

// demo is a running demo as its user sees it.
type demo struct {
	// process is the demo, or the shell that is its parent.
	process *process.Process
	// temp is the test's own directory, dir in it the demo's.
	temp, dir string
	env       map[string]string
	hubs      []*process.Process // started again by the test
}

// startDemo starts the demo, with shell from one that stays its parent, and returns when the
// fleet serves. At the end of the test it is stopped and, if the test has failed, shown.
func startDemo(t *testing.T, shell bool) *demo {
	t.Helper()
	noteSources()
	d := &demo{temp: t.TempDir()}
	d.dir = filepath.Join(d.temp, "demo")
	if err := os.Mkdir(filepath.Join(d.temp, "races"), 0o700); err != nil {
		t.Fatal(err)
	}
	spec := process.Spec{
		Name: "demo", Path: filepath.Join(bin, "demo"),
		Args: []string{"--dir", d.dir, "--bin", bin, "--config", filepath.Join(root, "config")},
		Env:  d.raceEnv(), LogFile: filepath.Join(d.temp, "demo.log"), Grace: time.Minute,
	}
	if shell {
		// The second command keeps the shell from becoming the demo.
		spec.Path, spec.Args = "sh", append([]string{"-c", `"$0" "$@"; exit 1`, spec.Path}, spec.Args...)
	}
	var err error
	if d.process, err = process.Start(spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.finish(t) })
	ctx, cancel := context.WithTimeout(t.Context(), demoTimeout)
	defer cancel()
	if err := d.process.WaitReady(ctx, d.readEnv); err != nil {
		t.Fatal(err)
	}
	return d
}

// raceEnv makes every program that inherits it write races to a file that outlives the demo.
func (d *demo) raceEnv() []string {
	return []string{"GORACE=log_path=" + filepath.Join(d.temp, "races", "race")}
}

// readEnv reads the file that the demo writes last.
func (d *demo) readEnv(context.Context) error {
	content, err := os.ReadFile(filepath.Join(d.dir, "env"))
	if err != nil {
		return err
	}
	d.env = map[string]string{}
	for line := range strings.Lines(string(content)) {
		name, value, found := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !found {
			return fmt.Errorf("the demo's env holds the line %q", line)
		}
		d.env[name] = strings.Trim(value, "'")
	}
	return nil
}

// pids are the demo's process and all that it and its children have started.
func (d *demo) pids(t *testing.T) []int {
	t.Helper()
	pid := d.pid(t, "DEMO")
	return append([]int{pid}, descendants(t, pid)...)
}

// wantNamed fails unless every process that the file env names is one of the demo's.
func (d *demo) wantNamed(t *testing.T) {
	t.Helper()
	pids, named := d.pids(t), 0
	for name := range d.env {
		if process, found := strings.CutPrefix(name, "PID_"); found {
			named++
			if pid := d.pid(t, process); !slices.Contains(pids, pid) {
				t.Errorf("%s=%d is none of the demo's processes %v", name, pid, pids)
			}
		}
	}
	// Demo, hub, origin, external proxy; etcd and API server of three clusters; two nodes.
	if named < 4+2*3+2 {
		t.Errorf("the file env names %d processes: %v", named, d.env)
	}
}

func (d *demo) pid(t *testing.T, name string) int {
	t.Helper()
	pid, err := strconv.Atoi(d.env["PID_"+name])
	if err != nil {
		t.Fatalf("PID_%s: %v", name, err)
	}
	return pid
}

// descendants are the children of a process, their children and so on.
func descendants(t *testing.T, pid int) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	children := map[int][]int{}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has just ended
		}
		var child, parent int
		var state string
		// "PID (name) STATE PPID …", where the name may hold blanks and parentheses.
		name := bytes.LastIndexByte(stat, ')')
		_, err = fmt.Sscan(string(stat[name+1:]), &state, &parent)
		if child, _ = strconv.Atoi(filepath.Base(filepath.Dir(path))); err != nil || child == 0 {
			t.Fatalf("%s: %q: %v", path, stat, err)
		}
		children[parent] = append(children[parent], child)
	}
	all := children[pid]
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// wantGone waits until none of the processes lives. Those that do after all end with the test.
func (d *demo) wantGone(t *testing.T, within time.Duration, pids []int) {
	t.Helper()
	t.Cleanup(func() {
		for _, pid := range pids {
			// Unless it is somebody else's by now.
			if command := commandLine(pid); strings.Contains(command, bin) || strings.Contains(command, d.dir) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	took := eventually(t, within, "the demo's processes are gone", func() error {
		var errs []error
		for _, pid := range pids {
			if process.Alive(pid) {
				errs = append(errs, fmt.Errorf("PID %d lives: %s", pid, commandLine(pid)))
			}
		}
		return errors.Join(errs...)
	})
	t.Logf("%d processes were gone after %s", len(pids), took.Round(time.Millisecond))
}

// commandLine is empty for a process that has ended.
func commandLine(pid int) string {
	command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may end at any time
	return strings.ReplaceAll(string(command), "\x00", " ")
}

// finish shows what there is to see of a failure, and ends what still runs.
func (d *demo) finish(t *testing.T) {
	if t.Failed() {
		t.Logf("the demo's output:\n%s", d.process.LogTail(80))
		t.Logf("the end of the hub's log:\n%s", process.Tail(filepath.Join(d.dir, "logs", "hub.log"), 40))
		for _, hub := range d.hubs {
			t.Logf("the end of the log of the %s (%s):\n%s", hub.Name(), hub.Exit(), hub.LogTail(40))
		}
	}
	for _, hub := range d.hubs {
		if hub.Running() { // where the shell has not become the hub
			for _, pid := range descendants(t, hub.PID()) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if err := hub.Stop(); err != nil {
			t.Error(err)
		}
	}
	if err := d.process.Stop(); err != nil {
		t.Error(err)
	}
	races, err := filepath.Glob(filepath.Join(d.temp, "races", "*"))
	if err != nil {
		t.Error(err)
	}
	for _, race := range races {
		t.Errorf("a data race:\n%s", process.Tail(race, 200))
	}
}
