package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"
)

// Alive reports whether a process with this PID exists and runs. One that has ended and waits
// for its parent to reap it counts as gone: who adopts orphans is not ours to know.
func Alive(pid int) bool {
	if pid <= 0 || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		// Without /proc the signal's answer is all there is.
		_, noProc := os.Stat("/proc/self/stat")
		return noProc != nil
	}
	// "PID (name) STATE …", where the name may hold blanks and parentheses.
	_, after, found := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
	return found && len(after) > 0 && after[0] != 'Z' && after[0] != 'X'
}

// WaitGone waits until none of these processes, which need not be children, is alive, and
// reports whether it came to that in time.
func WaitGone(limit time.Duration, pids ...int) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for slices.ContainsFunc(pids, Alive) {
		select {
		case <-timer.C:
			return false
		case <-ticker.C:
		}
	}
	return true
}
