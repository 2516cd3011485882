// Command crawler uses a lease as crawlers do: it fetches a page through the lease's proxy with
// each client that is installed (package clients), and says how each fared.
//
//	crawler -url https://… [-client all] [-site-ca FILE] [-require go,curl,python,node] < lease.json
//	crawler -url https://… -api https://hub… [-token-env NAME] [-selector region=eu] …
//
// The first form reads what POST /v1/leases has answered. The second leases a proxy itself,
// for the page's host, reports ok if every fetch succeeded, and releases the lease in any case.
//
// A fetch succeeds if the page's status is 2xx. Clients that are not installed, or lack what it
// takes for the proxy's protocol, are said to be so; that is a failure for those that -client or
// -require name.
//
// Exit codes: 0 when every fetch succeeded, and there was one; 1 otherwise; 2 for a bad command
// line, with a line for each flag. What is printed has neither the proxy's password nor the
// token in it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/proxyfleet/proxy-operator/test/crawler/clients"
)

const (
	exitFailed = 1
	exitUsage  = 2

	maxLease     = 1 << 20
	fetchTimeout = 30 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without the process; it returns the exit code.
func run(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	s, errs := parse(args, getenv, stderr)
	for _, err := range errs {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		fmt.Fprintf(stderr, "crawler: %v\n", err)
	}
	if errs != nil {
		return exitUsage
	}
	if err := crawl(ctx, s, stdin, stdout); err != nil {
		fmt.Fprintf(stderr, "crawler: %v\n", err)
		return exitFailed
	}
	return 0
}

// crawl is the program with a good command line.
func crawl(ctx context.Context, s settings, stdin io.Reader, stdout io.Writer) error {
	if s.hub != nil {
		return s.hub.withLease(ctx, s.selector, s.host, stdout, func(lease clients.Lease) error {
			return fetchAll(ctx, s, lease, stdout)
		})
	}
	content, err := io.ReadAll(io.LimitReader(stdin, maxLease))
	if err != nil {
		return fmt.Errorf("read the lease from stdin: %w", err)
	}
	lease, err := clients.ParseLease(content)
	if err != nil {
		return fmt.Errorf("read the lease from stdin: %w", err)
	}
	return fetchAll(ctx, s, lease, stdout)
}

// fetchAll fetches the page with each client and prints a line for each.
func fetchAll(ctx context.Context, s settings, lease clients.Lease, stdout io.Writer) error {
	fmt.Fprintf(stdout, "%s through %v\n", s.page, lease)
	found, missing := clients.Installed(ctx)
	succeeded, failed := 0, 0
	absent := func(m clients.Missing) {
		fmt.Fprintf(stdout, "%-7s absent  %s\n", m.Name, m.Why)
		if slices.Contains(s.required, m.Name) {
			failed++
		}
	}
	for _, m := range missing {
		if slices.Contains(s.clients, m.Name) || slices.Contains(s.required, m.Name) {
			absent(m)
		}
	}
	for _, client := range found {
		if !slices.Contains(s.clients, client.Name()) {
			continue
		}
		if ok, why := client.Supports(lease.Protocol); !ok {
			absent(clients.Missing{Name: client.Name(), Why: why})
			continue
		}
		status, size, err := fetch(ctx, client, lease, s)
		if err != nil {
			failed++
			fmt.Fprintf(stdout, "%-7s failed  %v\n", client.Name(), err)
			continue
		}
		succeeded++
		fmt.Fprintf(stdout, "%-7s ok      status %d, %d bytes\n", client.Name(), status, size)
	}
	if failed > 0 || succeeded == 0 {
		return fmt.Errorf("%d clients succeeded, %d failed", succeeded, failed)
	}
	return nil
}

func fetch(ctx context.Context, client clients.Client, lease clients.Lease, s settings) (status, size int, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	status, body, err := clients.Fetch(ctx, client, lease, s.page, s.siteCA)
	if err == nil && status/100 != 2 {
		err = fmt.Errorf("%s: the page has status %d", client.Name(), status)
	}
	return status, len(body), err
}
