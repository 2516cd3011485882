// Command node is a Kubernetes node for clusters on one machine, without a container engine: it
// runs the pods of its cluster as host processes, each on a loopback address of its own. The
// demo and the end-to-end tests run one per spoke; package agent says how it works.
//
//	node --kubeconfig spoke.yaml --name node-1 --image example/proxy:1=/path/to/executable
//
// Beside the node it is the cluster's cloud, as far as Services of type LoadBalancer need one;
// package cloud says how that works. Of several nodes of a cluster one is the cloud at a time.
//
// SIGTERM or SIGINT stops every process gracefully and ends it. Killed, it takes its processes
// along, and started again it runs its pods anew.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/proxyfleet/proxy-operator/test/cloud"
	"github.com/proxyfleet/proxy-operator/test/node/agent"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stderr)
	stop()
	os.Exit(code)
}

type settings struct {
	kubeconfig string
	name       string
	address    netip.Addr
	logDir     string
	images     images
	balancers  bool
}

// run is main without the process: it runs the node until ctx ends and returns the exit code.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	s, err := parse(args, stderr)
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(stderr, "node: %v\n", err)
		}
		return 2
	}
	log := slog.New(slog.NewTextHandler(stderr, nil)).With("node", s.name)
	klog.SetSlogLogger(log) // what client-go has to say of a lost connection
	if err := serve(ctx, s, log); err != nil {
		log.Error("stopped", "error", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, s settings, log *slog.Logger) error {
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	if s.logDir == "" {
		if s.logDir, err = os.MkdirTemp("", "node-"+s.name+"-"); err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(s.logDir) }()
	} else if err := os.MkdirAll(s.logDir, 0o700); err != nil {
		return err
	}
	return runBoth(ctx, s, config, log)
}

// runBoth runs the node and, if that is asked for, the cloud beside it. Either's failure ends
// the other.
func runBoth(ctx context.Context, s settings, config *rest.Config, log *slog.Logger) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	// Pods may end gracefully, with the clients that reach them through a load balancer.
	outlasting, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	ended := make(chan error, 1)
	go func() {
		if !s.balancers {
			ended <- nil
			return
		}
		err := cloud.Run(outlasting, config, cloud.Options{Logger: log})
		stop()
		ended <- err
	}()
	err := agent.Run(ctx, agent.Options{
		Name: s.name, Config: config, Images: maps.Clone(s.images), LogDir: s.logDir,
		Address: s.address, Logger: log,
	})
	end()
	return errors.Join(err, <-ended)
}

func parse(args []string, stderr io.Writer) (settings, error) {
	s := settings{images: images{}}
	flags := flag.NewFlagSet("node", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; its user is to be a cluster admin")
	flags.StringVar(&s.name, "name", "", "name of the Node")
	flags.Func("address", "loopback address of the node itself, where its pods' host ports are (default: one that comes from the name)",
		func(value string) error { return setAddress(&s.address, value) })
	flags.BoolVar(&s.balancers, "load-balancers", true, "give Services of type LoadBalancer their load balancers")
	flags.StringVar(&s.logDir, "log-dir", "", "directory for the output and the files of the pods (default: a temporary one, removed at the end)")
	flags.Var(s.images, "image", "IMAGE=EXECUTABLE: what a pod with this image runs; repeatable")
	if err := flags.Parse(args); err != nil {
		// flag has printed it.
		return settings{}, flag.ErrHelp
	}
	switch {
	case flags.NArg() > 0:
		return settings{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case s.kubeconfig == "":
		return settings{}, errors.New("--kubeconfig is required")
	case s.name == "":
		return settings{}, errors.New("--name is required")
	}
	return s, nil
}

// setAddress is the --address flag.
func setAddress(to *netip.Addr, value string) error {
	address, err := netip.ParseAddr(value)
	if err != nil {
		return err
	}
	if !address.IsLoopback() {
		return errors.New("want a loopback address")
	}
	*to = address
	return nil
}

// images is the --image flag.
type images map[string]string

func (i images) String() string { return "" }

func (i images) Set(value string) error {
	// An image's digest or tag holds no "=", a path may.
	image, executable, found := strings.Cut(value, "=")
	if !found || image == "" || executable == "" {
		return errors.New("want IMAGE=EXECUTABLE")
	}
	// Processes do not run in this one's working directory.
	executable, err := filepath.Abs(executable)
	if err != nil {
		return err
	}
	if _, err := os.Stat(executable); err != nil {
		return err
	}
	i[image] = executable
	return nil
}
