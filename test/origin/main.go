// Command origin runs the test origins of internal/testkit/origin as a process of their own, for
// the demo and for tests that use real processes.
//
// When both servers accept it writes the CA's certificate to --ca-out and then, atomically, the
// ready file, so that whoever waits for that file needs nothing else:
//
//	{"url":"https://127.0.0.1:40001","plainURL":"http://127.0.0.1:40002","caFile":"ca.crt"}
//
// SIGTERM or SIGINT ends it.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
)

const shutdownTimeout = 2 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stderr)
	stop()
	os.Exit(code)
}

// ready is the content of the ready file.
type ready struct {
	URL      string `json:"url"`
	PlainURL string `json:"plainURL"`
	CAFile   string `json:"caFile,omitempty"`
}

// run serves until ctx ends and returns the exit code.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	var options origin.Options
	var caOut, readyFile string
	flags := flag.NewFlagSet("origin", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&options.Addr, "addr", "127.0.0.1:0", "where the TLS origin listens")
	flags.StringVar(&options.PlainAddr, "plain-addr", "127.0.0.1:0", "where the plain origin listens")
	flags.StringVar(&caOut, "ca-out", "", "file to write the CA's certificate to")
	flags.StringVar(&readyFile, "ready-file", "", "file to write, as JSON, where everything is once it is there")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "origin: unexpected argument %q\n", flags.Arg(0))
		return 2
	}
	if err := serve(ctx, options, caOut, readyFile, stderr); err != nil {
		fmt.Fprintf(stderr, "origin: %v\n", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, options origin.Options, caOut, readyFile string, stderr io.Writer) error {
	server, err := origin.Run(ctx, options)
	if err != nil {
		return err
	}
	defer server.Close()
	if caOut != "" {
		if err := writeFile(caOut, server.CAPEM); err != nil {
			return fmt.Errorf("write CA: %w", err)
		}
	}
	if readyFile != "" {
		content, err := json.Marshal(ready{URL: server.URL, PlainURL: server.PlainURL, CAFile: caOut})
		if err != nil {
			return err
		}
		if err := writeFile(readyFile, append(content, '\n')); err != nil {
			return fmt.Errorf("write ready file: %w", err)
		}
	}
	fmt.Fprintf(stderr, "origin: listening at %s and %s\n", server.URL, server.PlainURL)
	<-ctx.Done()
	deadline, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	// What is still open after the timeout is cut by Close.
	_ = server.Shutdown(deadline)
	return nil
}

// writeFile makes the file appear complete or not at all, whoever is watching for it.
func writeFile(path string, content []byte) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temporary.Name()) }() // fails once renamed, which is fine
	if _, err := temporary.Write(content); err != nil {
		_ = temporary.Close()
		return err
	}
	// CreateTemp's 0600 would keep a CA from other users.
	if err := temporary.Chmod(0o644); err != nil {
		_ = temporary.Close()
		return err
	}
	if err := temporary.Close(); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}
