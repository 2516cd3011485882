package process_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/test/process"
)

// parentEnv makes the test binary play a program that starts a child and never ends by itself.
const parentEnv = "PROCESS_TEST_PARENT_LOG"

func TestMain(m *testing.M) {
	if log := os.Getenv(parentEnv); log != "" {
		child, err := process.Start(process.Spec{Name: "child", Path: "sleep", Args: []string{"600"}, LogFile: log})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(child.PID())
		<-child.Done()
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func start(t *testing.T, script string) *process.Process {
	t.Helper()
	p, err := process.Start(process.Spec{
		Name: t.Name(), Path: "/bin/sh", Args: []string{"-c", script},
		Env: []string{"GREETING=hello"}, LogFile: filepath.Join(t.TempDir(), "log"),
		Grace: 300 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Stop() })
	return p
}

// eventually waits for a condition that has no channel to wait on.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited 30s in vain: %s", what)
		case <-ticker.C:
		}
	}
}

func logHolds(text string) func(context.Context, *process.Process) error {
	return func(_ context.Context, p *process.Process) error {
		if !strings.Contains(p.LogTail(10), text) {
			return fmt.Errorf("log lacks %q", text)
		}
		return nil
	}
}

func ready(t *testing.T, p *process.Process, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := p.WaitReady(ctx, func(ctx context.Context) error { return logHolds(text)(ctx, p) }); err != nil {
		t.Fatal(err)
	}
}

func TestGracefulStopLetsAProgramCleanUp(t *testing.T) {
	p := start(t, `trap 'echo cleaned; exit 0' TERM; echo $GREETING; while :; do sleep 0.01; done`)
	ready(t, p, "hello")
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if got := p.LogTail(1); got != "cleaned" {
		t.Errorf("last line of the log is %q, want cleaned", got)
	}
	if p.Running() || p.Exit() != "exit status 0" {
		t.Errorf("running %v, exit %q", p.Running(), p.Exit())
	}
	if err := p.Stop(); err != nil {
		t.Errorf("second stop: %v", err)
	}
}

func TestStubbornProgramIsKilledAndSaidSo(t *testing.T) {
	p := start(t, `trap '' TERM; echo up; while :; do sleep 0.01; done`)
	ready(t, p, "up")
	if err := p.Stop(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("stop says %v, want that it killed", err)
	}
	if p.Running() || process.Alive(p.PID()) {
		t.Error("still alive after stop")
	}
}

func TestFrozenProgramIsStoppedGracefully(t *testing.T) {
	p := start(t, `trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done`)
	ready(t, p, "up")
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

func TestKilledProgramIsNoticedAndEndsNothingElse(t *testing.T) {
	victim, other := start(t, `exec sleep 600`), start(t, `exec sleep 600`)
	if err := syscall.Kill(victim.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-victim.Done()
	if victim.Exit() != "signal: killed" {
		t.Errorf("exit is %q", victim.Exit())
	}
	if !other.Running() || !process.Alive(other.PID()) {
		t.Error("the other one ended too")
	}
}

func TestWaitingForAProgramThatEndsTellsWhy(t *testing.T) {
	p := start(t, `echo 'no such flag: --colour' >&2; exit 2`)
	err := p.WaitReady(t.Context(), func(context.Context) error { return errors.New("not yet") })
	for _, want := range []string{"exit status 2", "no such flag: --colour"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q in it", err, want)
		}
	}
}

func TestChildDiesWithAParentThatIsKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Logf("%s has no parent-death signal; nothing is promised there", runtime.GOOS)
		return
	}
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), parentEnv+"="+filepath.Join(t.TempDir(), "log"))
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	child, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || !process.Alive(child) {
		t.Fatalf("the parent said %q, want the PID of a living child", line)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	eventually(t, "the child is gone", func() bool { return !process.Alive(child) })
}

func TestChildOutlivesTheThreadThatAskedForIt(t *testing.T) {
	started := make(chan *process.Process)
	go func() {
		runtime.LockOSThread() // never unlocked: this thread ends with the goroutine
		defer close(started)
		started <- start(t, `trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.01; done`)
	}()
	p := <-started
	if p == nil {
		t.FailNow() // start has told why
	}
	ready(t, p, "up")
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if p.LogTail(1) != "asked" {
		t.Errorf("ended by itself: %s", p.Exit())
	}
}

func TestReservedPortIsNobodyElsesBeforeAndBetweenServers(t *testing.T) {
	port, err := process.ReservePort("")
	if err != nil {
		t.Fatal(err)
	}
	defer port.Release()
	dialer := &net.Dialer{}
	for range 2 {
		if connection, err := dialer.DialContext(t.Context(), "tcp", port.Address()); err == nil {
			_ = connection.Close()
			t.Fatalf("%s answers, but nobody listens", port.Address())
		}
		for range 200 {
			other, err := process.ReservePort("")
			if err != nil {
				t.Fatal(err)
			}
			defer other.Release()
			if other.Number == port.Number {
				t.Fatalf("port %d was given to two", port.Number)
			}
		}
		server, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", port.Address())
		if err != nil {
			t.Fatal(err)
		}
		connection, err := dialer.DialContext(t.Context(), "tcp", port.Address())
		if err != nil {
			t.Fatal(err)
		}
		_ = connection.Close()
		_ = server.Close()
	}
}
