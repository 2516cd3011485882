// Command leaseload asks for leases as fast as a hub grants them, for benchmarks:
//
//	leaseload -address 127.0.0.1:8080 -token … -bodies FILE [-connections 64]
//	    [-warm 300ms] [-time 2s] [-release no|after|each] [-pid PID]
//
// Each connection is kept alive and sends its next request when it has the answer to the
// last: a closed loop, which shows what the server can do and not what a queue does to
// those who come too often. The bodies, one a line, are sent in turn. With -release each,
// every lease is given back at once, by a DELETE; with after, when the time is over, so
// that granting alone was measured; with no, never.
//
// It prints one JSON object: what was answered within the time, how long that took, and
// what it cost the server with that PID, and this process, of the CPU. Answers that were
// not a 201, or to a DELETE a 204, are counted as errors, and so are broken connections,
// which stay broken.
//
// It writes requests that are made beforehand and reads of an answer its status, its length
// and the lease's id, because every cycle that it uses is one that the server does not get.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without the process; it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s, bodies, err := parse(args, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "leaseload: %v\n", err)
		return 2
	}
	content, err := os.ReadFile(bodies)
	if err != nil {
		fmt.Fprintf(stderr, "leaseload: %v\n", err)
		return 1
	}
	for line := range bytes.Lines(content) {
		s.bodies = append(s.bodies, bytes.TrimSpace(line))
	}
	result, err := s.measure(ctx)
	if err == nil {
		err = json.NewEncoder(stdout).Encode(result)
	}
	if err != nil {
		fmt.Fprintf(stderr, "leaseload: %v\n", err)
		return 1
	}
	return 0
}

// parse returns the settings, the bodies apart, and where those are.
func parse(args []string, stderr io.Writer) (s settings, bodies string, err error) {
	flags := flag.NewFlagSet("leaseload", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.address, "address", "", "host:port of the API")
	flags.StringVar(&s.token, "token", "", "the API's token")
	flags.StringVar(&bodies, "bodies", "", "file with the bodies of the requests, one a line")
	flags.IntVar(&s.connections, "connections", 64, "how many ask at once")
	flags.DurationVar(&s.warm, "warm", 300*time.Millisecond, "how long to ask before anything counts")
	flags.DurationVar(&s.time, "time", 2*time.Second, "how long to measure")
	flags.StringVar(&s.release, "release", releaseAfter, "when to give leases back: no, after or each")
	flags.IntVar(&s.pid, "pid", 0, "the server's process, whose CPU is counted; 0: it is not")
	if err := flags.Parse(args); err != nil {
		return s, "", err
	}
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case s.address == "" || bodies == "":
		err = fmt.Errorf("-address and -bodies are needed")
	case s.connections < 1 || s.time <= 0:
		err = fmt.Errorf("-connections and -time must be more than nothing")
	case s.release != releaseNo && s.release != releaseAfter && s.release != releaseEach:
		err = fmt.Errorf("-release is no, after or each, not %q", s.release)
	}
	return s, bodies, err
}
