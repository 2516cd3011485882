// Command hub manages the fleet: see README.md and docs/architecture.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/proxyfleet/proxy-operator/cmd/hub/app"
)

// Exit codes: 1 when the hub could not run, 2 when it was told nonsense.
func main() {
	options, err := app.Parse(os.Args[1:], os.Getenv)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "hub:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err = app.Run(ctx, options)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "hub:", err)
		os.Exit(1)
	}
}
