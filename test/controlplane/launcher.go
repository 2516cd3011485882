package controlplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// retiredFile in a control plane's directory keeps its launchers from launching.
const retiredFile = "retired"

// canBindToParent reports whether this machine has util-linux's setpriv. Without it children
// outlive a parent that is killed; that is worth a wait for nobody.
var canBindToParent = sync.OnceValue(func() bool {
	return exec.Command("setpriv", "--pdeathsig", "KILL", "true").Run() == nil
})

// writeLauncher writes the shell script that envtest starts in place of a binary, and returns
// its path. envtest offers no parent-death signal and tells no PID; the script does both, and
// becomes the binary by exec, so that it is the process that envtest knows.
//
// It comes in two halves, because the parent may die before the signal is asked for: the
// second half, which runs when it has been, looks whether the parent is still the one
// expected. What envtest asks with --help is not a server and leaves no PID.
func writeLauncher(dir, binary string) (string, error) {
	name := filepath.Base(binary)
	outer, inner := filepath.Join(dir, name+".launch"), filepath.Join(dir, name+".launch-bound")
	bound := fmt.Sprintf(`#!/bin/sh
[ "$PPID" = %d ] || exit 1
if [ "$1" != --help ]; then
	echo $$ > %s
	[ ! -e %s ] || exit 1
fi
exec %s "$@"
`, os.Getpid(), quote(pidFile(dir, name)), quote(filepath.Join(dir, retiredFile)), quote(binary))
	first := "#!/bin/sh\nexec " + quote(inner) + ` "$@"` + "\n"
	if canBindToParent() {
		first = "#!/bin/sh\nexec setpriv --pdeathsig KILL " + quote(inner) + ` "$@"` + "\n"
	}
	for path, script := range map[string]string{outer: first, inner: bound} {
		if err := writeScript(path, script); err != nil {
			return "", fmt.Errorf("write the launcher of %s: %w", name, err)
		}
	}
	return outer, nil
}

// writeScript writes an executable file. Nothing may be forked while it is open for writing:
// the child would hold it open too for a moment, and executing it would fail with "text file
// busy" (golang/go#22315).
func writeScript(path, script string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(script), 0o700)
}

func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

func pidFile(dir, name string) string { return filepath.Join(dir, name+".pid") }

// readPID returns 0 where there is none yet.
func readPID(dir, name string) int {
	content, err := os.ReadFile(pidFile(dir, name))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(content)))
	return pid
}

// retire ends a start that nobody waits for any more: what is starting is killed, and what
// envtest would start next does not. A launcher leaves its PID before it looks for the file,
// so that one of the two meets it.
func retire(dir string) {
	if err := os.WriteFile(filepath.Join(dir, retiredFile), nil, 0o600); err != nil && errors.Is(err, fs.ErrNotExist) {
		return // Stop has been quicker
	}
	kill(dir, "etcd", "kube-apiserver")
}

// kill kills what was started last under these names, and only that: a PID may be somebody
// else's once its process has ended.
func kill(dir string, names ...string) {
	for _, name := range names {
		pid := readPID(dir, name)
		commandLine, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if pid != 0 && strings.Contains(string(commandLine), dir) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// thaw wakes what a fault test may have frozen with SIGSTOP, so that it can take a SIGTERM.
func thaw(dir string) {
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if pid := readPID(dir, name); pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGCONT) // harmless to whoever has the PID by now
		}
	}
}
