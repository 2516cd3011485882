package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	defaultGrace = 15 * time.Second
	pollInterval = 50 * time.Millisecond
	pollTimeout  = 5 * time.Second
	tailBytes    = 64 << 10
)

// Spec says what to start. Name, Path and LogFile are required.
type Spec struct {
	// Name is what people see in messages.
	Name string
	// Path is the program, Args what follows it on its command line.
	Path string
	Args []string
	// Env is added to the environment of this process and wins over it.
	Env []string
	// Dir is the working directory, by default this process's.
	Dir string
	// LogFile takes standard output and standard error; it is appended to and readable by
	// its owner only, because programs under test may log what they should not.
	LogFile string
	// Grace is how long Stop waits between SIGTERM and SIGKILL, 15 s by default.
	Grace time.Duration
}

// Process is a started program.
type Process struct {
	spec Spec
	cmd  *exec.Cmd
	done chan struct{}
	exit error // written before done is closed
}

// Start starts a program and returns at once; WaitReady tells when it is of use.
func Start(spec Spec) (*Process, error) {
	if err := os.MkdirAll(filepath.Dir(spec.LogFile), 0o700); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	path, err := exec.LookPath(spec.Path)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	log, err := os.OpenFile(spec.LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	defer log.Close() // the child has its own descriptor
	// Bound to no context: the end of one would kill it, and Stop asks first.
	cmd := &exec.Cmd{
		Path: path, Args: append([]string{spec.Path}, spec.Args...),
		Env: append(os.Environ(), spec.Env...), Dir: spec.Dir,
		Stdout: log, Stderr: log,
		SysProcAttr: attributes(),
	}
	forker().Do(func() { err = cmd.Start() })
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	if spec.Grace == 0 {
		spec.Grace = defaultGrace
	}
	p := &Process{spec: spec, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.exit = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Name is the Spec's.
func (p *Process) Name() string { return p.spec.Name }

// PID stays the same after the end.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// LogFile is where its output goes.
func (p *Process) LogFile() string { return p.spec.LogFile }

// Done is closed when the program has ended and has been reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running reports whether the program has not ended yet.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Exit says in words how the program ended, for example "exit status 2" or "signal: killed";
// "running" before that.
func (p *Process) Exit() string {
	if p.Running() {
		return "running"
	}
	if p.exit == nil {
		return "exit status 0"
	}
	return p.exit.Error()
}

// Signal sends a signal; a program that has ended is no error.
func (p *Process) Signal(signal os.Signal) error {
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.spec.Name, err)
	}
	return nil
}

// Stop asks with SIGTERM and kills after the grace. The error says that it had to kill; the
// program is gone in any case. Calling it again is harmless.
func (p *Process) Stop() error {
	if !p.Running() {
		return nil
	}
	// A program stopped with SIGSTOP could not take the SIGTERM.
	_ = p.Signal(syscall.SIGCONT)
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	grace := time.NewTimer(p.spec.Grace)
	defer grace.Stop()
	select {
	case <-p.done:
		return nil
	case <-grace.C:
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return fmt.Errorf("stop %s: still running %s after SIGTERM, killed", p.spec.Name, p.spec.Grace)
}

// WaitReady polls until ready returns nil. It gives up when ctx ends, and at once when the
// program does; the error then carries the last answer of ready and the end of the log.
func (p *Process) WaitReady(ctx context.Context, ready func(context.Context) error) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		probe, cancel := context.WithTimeout(ctx, pollTimeout)
		err := ready(probe)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended before it was ready (%s); the end of %s:\n%s",
				p.spec.Name, p.Exit(), p.spec.LogFile, p.LogTail(20))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready (%w): %w; the end of %s:\n%s",
				p.spec.Name, context.Cause(ctx), err, p.spec.LogFile, p.LogTail(20))
		case <-ticker.C:
		}
	}
}

// LogTail returns the last lines of the log, or what kept it from being read.
func (p *Process) LogTail(lines int) string { return Tail(p.spec.LogFile, lines) }

// Tail returns the last lines of a file, or what kept it from being read, for messages.
func Tail(path string, lines int) string {
	file, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if end, err := file.Seek(0, io.SeekEnd); err == nil {
		_, err = file.Seek(max(0, end-tailBytes), io.SeekStart)
		if err != nil {
			return err.Error()
		}
	}
	content, err := io.ReadAll(io.LimitReader(file, tailBytes))
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
