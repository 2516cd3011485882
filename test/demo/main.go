package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

const (
	exitFailed = 1
	exitUsage  = 2

	parentPoll = 500 * time.Millisecond
)

type settings struct {
	once   bool
	dir    string
	bin    string
	config string
}

func main() {
	s, err := parse(os.Args[1:], os.Stderr)
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		}
		os.Exit(exitUsage)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	go watchSignals(cancel)
	go watchParent(ctx, os.Getppid(), cancel)
	os.Exit(run(ctx, s, newOutput(os.Stdout)))
}

func parse(args []string, stderr io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&s.once, "once", false, "end when every step has held, instead of staying up")
	flags.StringVar(&s.dir, "dir", ".demo", "directory for everything that the demo writes")
	flags.StringVar(&s.bin, "bin", "", "directory of hub, forwardproxy, node and origin (default: this program's)")
	flags.StringVar(&s.config, "config", "config", "the repository's directory of CRDs, RBAC and samples")
	if err := flags.Parse(args); err != nil {
		return settings{}, flag.ErrHelp // flag has told the reason
	}
	if flags.NArg() > 0 {
		return settings{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if s.bin == "" {
		self, err := os.Executable()
		if err != nil {
			return settings{}, fmt.Errorf("find the binaries: %w; give --bin", err)
		}
		s.bin = filepath.Dir(self)
	}
	var err error
	s.bin, err = filepath.Abs(s.bin)
	return s, err
}

// run is the demo from an empty directory to an empty directory; it returns the exit code.
func run(ctx context.Context, s settings, out *output) int {
	state, err := openState(s.dir)
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		return exitFailed
	}
	d := newDemo(s, state, out)
	err = d.runSteps(ctx)
	if err == nil && !s.once {
		d.printWaysIn()
		d.stayUp(ctx)
	}
	reason := context.Cause(ctx)
	if reason != nil {
		out.line("stopping: %v", reason)
	}
	_ = state.clear("env") // scripts that look again find no demo
	// Errors after an interrupt are its consequences.
	failed := err != nil && reason == nil
	if failed {
		d.printFailure(ctx, err)
	}
	if err := d.stop(); err != nil {
		out.line("while stopping: %v", err)
		failed = true
	}
	if err := state.close(failed); err != nil {
		out.line("while removing files: %v", err)
		failed = true
	}
	switch {
	case failed:
		out.line("FAILED; everything is stopped, the logs are in %s", state.path("logs"))
	case reason == nil:
		out.line("every step held; everything is stopped and removed")
	default:
		out.line("everything is stopped and removed")
	}
	var interrupt signalError
	switch {
	case errors.As(reason, &interrupt):
		return 128 + int(interrupt.signal)
	case failed || reason != nil:
		return exitFailed
	}
	return 0
}

// signalError is the cause of a context that a signal ended.
type signalError struct{ signal syscall.Signal }

func (e signalError) Error() string { return e.signal.String() }

var errParentEnded = errors.New("the parent process has ended")

// watchSignals ends the demo at the first signal and leaves at once at the second.
func watchSignals(cancel context.CancelCauseFunc) {
	watched := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		watched = append(watched, syscall.SIGHUP)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, watched...)
	// Received and not looked at: by default a write to a standard output that nobody reads any
	// more would end the program at once and leave its files.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	first := (<-signals).(syscall.Signal)
	cancel(signalError{first})
	os.Exit(128 + int((<-signals).(syscall.Signal)))
}

// watchParent ends the demo when the process that started it is gone: a child of a dead parent
// is given another one.
func watchParent(ctx context.Context, parent int, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(parentPoll)
	defer ticker.Stop()
	for os.Getppid() == parent {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
	cancel(errParentEnded)
}
