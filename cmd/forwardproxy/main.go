// Command forwardproxy is the proxy that pods run unless their Proxy names another image.
//
// It is configured by what any proxy image is told, environment and files:
//
//	PROXY_PORT          1 to 65535, required
//	PROXY_PROTOCOL      what clients speak to it: http, the default, https or socks5
//	PROXY_BIND_ADDRESS  an IP to listen on and to dial out from; empty: all interfaces
//	PROXY_FILES_DIR     where the files are; default /etc/proxy-operator
//
//	username, password  what clients must prove themselves with, to the byte; neither
//	                    file: whoever reaches the proxy may use it. No colon in a username
//	                    with http and https, at most 255 bytes each with socks5
//	tls.crt, tls.key    PEM; required with https, ignored otherwise
//
// The files are read once, at the start. The file user-data, which is there as well where the
// Proxy has cloud-init, is of no interest here. All that is wrong is one line on stderr and
// exit code 2. SIGTERM or SIGINT stops accepting, gives open tunnels a few seconds to finish,
// and exits 0. The proxy itself is package proxy.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/proxyfleet/proxy-operator/cmd/forwardproxy/proxy"
)

const (
	exitFailed = 1
	exitUsage  = 2

	defaultFilesDir = "/etc/proxy-operator"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := run(ctx, os.Getenv, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without the process: it serves until ctx ends and returns the exit code.
func run(ctx context.Context, getenv func(string) string, stderr io.Writer) int {
	options, err := parse(getenv)
	if err != nil {
		fmt.Fprintf(stderr, "forwardproxy: %v\n", err)
		return exitUsage
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	options.Logger = log
	server, err := proxy.Listen(ctx, options)
	if err != nil {
		log.Error("cannot listen", "error", err)
		return exitFailed
	}
	if err := server.Serve(ctx); err != nil {
		log.Error("stopped serving", "error", err)
		return exitFailed
	}
	return 0
}

// parse reports everything that is wrong at once, so that a pod's author fixes it in one go.
func parse(getenv func(string) string) (proxy.Options, error) {
	var options proxy.Options
	var errs []error
	switch port, err := strconv.ParseUint(getenv("PROXY_PORT"), 10, 16); {
	case getenv("PROXY_PORT") == "":
		errs = append(errs, errors.New("PROXY_PORT is required: the port to listen on, 1 to 65535"))
	case err != nil || port == 0:
		errs = append(errs, fmt.Errorf("PROXY_PORT is %q: must be a number from 1 to 65535", getenv("PROXY_PORT")))
	default:
		options.Port = uint16(port)
	}
	protocol, errProtocol := proxy.ParseProtocol(getenv("PROXY_PROTOCOL"))
	if errProtocol != nil {
		errs = append(errs, fmt.Errorf("PROXY_PROTOCOL is %q: %w", getenv("PROXY_PROTOCOL"), errProtocol))
	}
	options.Protocol = protocol
	if address := getenv("PROXY_BIND_ADDRESS"); address != "" {
		parsed, err := netip.ParseAddr(address)
		if err != nil {
			errs = append(errs, fmt.Errorf("PROXY_BIND_ADDRESS is %q: must be an IP address", address))
		}
		options.BindAddress = parsed
	}
	if dir, err := filesDir(getenv("PROXY_FILES_DIR")); err != nil {
		errs = append(errs, err)
	} else {
		errs = append(errs, readFiles(&options, dir, errProtocol == nil)...)
	}
	if err := join(errs); err != nil {
		return proxy.Options{}, err
	}
	return options, nil
}

// filesDir is the default one for empty. Only that one may be missing: a mistyped name must
// not open the proxy to everybody.
func filesDir(name string) (string, error) {
	if name == "" {
		return defaultFilesDir, nil
	}
	if info, err := os.Stat(name); err != nil || !info.IsDir() {
		return "", fmt.Errorf("PROXY_FILES_DIR is %q: must be an existing directory", name)
	}
	return name, nil
}

// readFiles reads what the protocol needs, and judges it by the protocol if that is known.
func readFiles(options *proxy.Options, dir string, known bool) (errs []error) {
	credentials, err := proxy.ReadCredentials(dir)
	if err != nil {
		errs = append(errs, err)
	} else if err := credentials.Check(options.Protocol); err != nil && known {
		errs = append(errs, fmt.Errorf("credentials in %s: %w", dir, err))
	}
	options.Credentials = credentials
	if options.Protocol == proxy.HTTPS {
		if options.Certificate, err = proxy.ReadCertificate(dir); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// join is errors.Join on one line.
func join(errs []error) error {
	var all error
	for _, err := range errs {
		if all == nil {
			all = err
			continue
		}
		all = fmt.Errorf("%w; %w", all, err)
	}
	return all
}
