package e2e_test

import (
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"
)

// endTimeout is for the end of a whole demo on a busy machine; an idle one needs 5 s.
const endTimeout = time.Minute

// interrupted ends the demo as its user does, after all that was done to it.
func interrupted(t *testing.T, w *world) {
	pids := w.pids(t)
	for name, spoke := range w.spokes {
		for _, pods := range spoke.pods(t) {
			if pid := pidOf(t, &pods[0]); !slices.Contains(pids, pid) {
				t.Errorf("PID %d of a pod in %s is not among the demo's %v", pid, name, pids)
			}
		}
	}
	pids = append(pids, w.hubPID(t))
	if err := w.process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	took := eventually(t, endTimeout, "the demo ends", func() error {
		if w.process.Running() {
			return errors.New("it runs")
		}
		return nil
	})
	t.Logf("the demo ended %s after SIGINT", took.Round(time.Millisecond))
	// What a shell says of a command that Ctrl-C has ended.
	if exit := w.process.Exit(); exit != "exit status 130" {
		t.Errorf("it ended with %s", exit)
	}
	w.wantGone(t, 0, pids)
	w.wantRemoved(t, 0)
}

func (d *demo) wantRemoved(t *testing.T, within time.Duration) {
	t.Helper()
	eventually(t, within, "the demo's directory is removed", func() error {
		if _, err := os.Stat(d.dir); !os.IsNotExist(err) {
			return errors.New("it is still there")
		}
		return nil
	})
}

// TestNothingOutlivesADemo ends demos in the ways that give them no time, or no signal.
func TestNothingOutlivesADemo(t *testing.T) {
	t.Run("that is killed", func(t *testing.T) {
		t.Parallel()
		d := startDemo(t, false)
		pids := d.pids(t)
		if err := d.process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		d.wantGone(t, endTimeout, pids)
	})
	t.Run("whose parent is killed", func(t *testing.T) {
		t.Parallel()
		d := startDemo(t, true)
		pids := d.pids(t)
		if err := d.process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		d.wantGone(t, endTimeout, pids)
		d.wantRemoved(t, endTimeout)
	})
}
