package app

import (
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/proxyfleet/proxy-operator/cmd/hub/app/leadership"
	"github.com/proxyfleet/proxy-operator/hub/health"
	"github.com/proxyfleet/proxy-operator/hub/proxy"
)

// Options are all that the hub can be told. Parse fills them from flags and
// environment; the contract lists the flags.
type Options struct {
	// Kubeconfig leads to the hub's own cluster; empty: in-cluster, or the
	// user's default.
	Kubeconfig string
	// Namespace holds the kubeconfig Secrets and the Spokes.
	Namespace string
	// HubID marks what is this hub's; empty: the UID of the hub cluster's
	// kube-system namespace.
	HubID string

	// LeaderElect has the replicas of a hub elect the one that leads.
	LeaderElect bool
	// elected is given what knows whether this hub leads, in tests.
	elected func(*leadership.Leadership)

	// LocalSpoke is the name under which the hub's own cluster is registered as
	// a spoke; empty: it is not.
	LocalSpoke string
	// AllowInsecureSpokes takes kubeconfigs with insecure-skip-tls-verify,
	// AllowSpokeProxyURL those with proxy-url.
	AllowInsecureSpokes, AllowSpokeProxyURL bool
	// AllowLocalEndpoints dials proxies on loopback, link-local and the like.
	AllowLocalEndpoints bool
	// Resolver looks up the names of proxies; the system's where nil. No flag sets it.
	Resolver health.Resolver

	APIAddress, MetricsAddress, ProbeAddress string
	// APIToken is what crawlers authenticate with; empty: no authentication.
	APIToken string

	MaxConcurrentReconciles int
	// MaxUnavailable is how many of the Proxies that one edit of a Secret replaces
	// may be out of service at once.
	MaxUnavailable    proxy.Limit
	DefaultProxyImage string

	HealthURL         string
	HealthRoots       *x509.CertPool
	HealthMaxInFlight int

	// MetricsPerProxyLimit is how many Proxies the fleet may have before metrics of
	// probes are those of clusters; 0: they always are.
	MetricsPerProxyLimit int

	LeaseDefaultTTL, LeaseMaxTTL, LeaseCooldownWindow time.Duration
	// APIMaxWaiters is how many requests for a lease may wait at once.
	APIMaxWaiters int

	Zap zap.Options
}

// Parse reads the command line and the environment. Its error is one line
// that names every bad value. With -h it prints the flags and returns
// flag.ErrHelp.
func Parse(args []string, getenv func(string) string) (Options, error) {
	var o Options
	var healthCAFile, maxUnavailable string
	fs := flag.NewFlagSet("hub", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&o.Kubeconfig, "kubeconfig", "", "path of a kubeconfig of the hub's own cluster; not needed inside it")
	fs.StringVar(&o.Namespace, "namespace", "proxy-operator-system", "namespace of the kubeconfig Secrets and the Spokes")
	fs.StringVar(&o.HubID, "hub-id", "", "id that marks what is this hub's; default: the UID of the hub cluster's kube-system namespace")
	fs.BoolVar(&o.LeaderElect, "leader-elect", false, "run as one of several replicas, of which one leads: only that one grants leases, probes and writes to clusters, while the others follow, answer what only reads, and take over when it ends; without it a hub leads from its start, and must be the only one")
	fs.StringVar(&o.LocalSpoke, "local-spoke", "", "also register the hub's own cluster, under this name")
	fs.BoolVar(&o.AllowInsecureSpokes, "allow-insecure-spokes", false, "take kubeconfigs with insecure-skip-tls-verify, whose servers are not verified")
	fs.BoolVar(&o.AllowSpokeProxyURL, "allow-spoke-proxy-url", false, "take kubeconfigs with proxy-url, through whose proxy the hub then reaches the spoke")
	fs.BoolVar(&o.AllowLocalEndpoints, "allow-local-endpoints", false, "dial proxies on loopback, link-local (where clouds keep metadata), multicast and unspecified addresses")
	fs.StringVar(&o.APIAddress, "api-bind-address", ":8080", "host:port of the crawlers' API")
	fs.IntVar(&o.APIMaxWaiters, "api-max-waiters", 1000, "requests for a lease that may wait (waitSeconds) at once; further ones are told to come again")
	fs.StringVar(&o.MetricsAddress, "metrics-bind-address", ":9090", "host:port of /metrics")
	fs.StringVar(&o.ProbeAddress, "health-probe-bind-address", ":8081", "host:port of the hub's own /healthz and /readyz")
	fs.IntVar(&o.MaxConcurrentReconciles, "max-concurrent-reconciles", 16, "Proxies worked on at once")
	fs.StringVar(&maxUnavailable, "max-unavailable-replacements", "10%", "how many of the Proxies that an edited Secret replaces may be out of service at once: a number, or a percentage, of which at least one")
	fs.StringVar(&o.DefaultProxyImage, "default-proxy-image", "proxyfleet/forwardproxy:latest", "image of pods whose Proxy names none")
	fs.StringVar(&o.HealthURL, "health-url", "https://www.gstatic.com/generate_204", "URL that is fetched through Proxies that name none")
	fs.StringVar(&healthCAFile, "health-ca-file", "", "PEM file of certificate authorities that verify probed sites, beside the system's")
	fs.IntVar(&o.HealthMaxInFlight, "health-max-in-flight", 4096, "probes under way at once")
	fs.IntVar(&o.MetricsPerProxyLimit, "metrics-per-proxy-limit", 2000, "with more Proxies than this, metrics of probes are those of clusters, until it is less than 80% of it; 0: always")
	fs.DurationVar(&o.LeaseDefaultTTL, "lease-default-ttl", 5*time.Minute, "how long a lease lasts that asks for nothing else")
	fs.DurationVar(&o.LeaseMaxTTL, "lease-max-ttl", 24*time.Hour, "longest time that a lease may ask for")
	fs.DurationVar(&o.LeaseCooldownWindow, "lease-cooldown-window", 10*time.Minute, "how long a proxy rests for a target after a report of rate_limited or banned that names no time; and how long an ended lease is known, so that reports on it are taken")
	o.Zap.BindFlags(fs)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fs.SetOutput(os.Stderr)
			fs.Usage()
			fmt.Fprintln(os.Stderr, "Environment:\n  DISCOVERY_TOKEN\n    \tthe token that crawlers authenticate with; without it the API asks for none")
			return o, err
		}
		return o, fmt.Errorf("%w (hub -h lists the flags)", err)
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: the hub takes flags alone", fs.Arg(0))
	}
	o.APIToken = getenv("DISCOVERY_TOKEN")
	var err error
	if o.HealthRoots, err = roots(healthCAFile); err != nil {
		return o, err
	}
	var limitErr error
	o.MaxUnavailable, limitErr = proxy.ParseLimit(maxUnavailable)
	return o, o.validate(limitErr)
}

// validate reports every bad value at once; limit is what was wrong with the
// limit of replacements.
func (o *Options) validate(limit error) error {
	var wrong []string
	check := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	check(len(validation.IsDNS1123Label(o.Namespace)) == 0, "--namespace %q is no namespace's name", o.Namespace)
	check(o.HubID == "" || len(validation.IsValidLabelValue(o.HubID)) == 0,
		"--hub-id %q is no label value: use at most 63 letters, digits, '-', '_' and '.'", o.HubID)
	check(o.LocalSpoke == "" || len(validation.IsDNS1123Label(o.LocalSpoke)) == 0,
		"--local-spoke %q is no spoke's name: use at most 63 lower-case letters, digits and '-', with no '-' at either end", o.LocalSpoke)
	for _, a := range []struct{ name, value string }{
		{"--api-bind-address", o.APIAddress}, {"--metrics-bind-address", o.MetricsAddress}, {"--health-probe-bind-address", o.ProbeAddress},
	} {
		_, port, err := net.SplitHostPort(a.value)
		_, portErr := strconv.ParseUint(port, 10, 16)
		check(err == nil && portErr == nil, "%s %q is not host:port with a port from 0 to 65535", a.name, a.value)
	}
	check(o.MaxConcurrentReconciles > 0, "--max-concurrent-reconciles must be at least 1")
	check(o.APIMaxWaiters > 0, "--api-max-waiters must be at least 1")
	check(o.HealthMaxInFlight > 0, "--health-max-in-flight must be at least 1")
	check(o.MetricsPerProxyLimit >= 0, "--metrics-per-proxy-limit must be at least 0")
	check(limit == nil, "--max-unavailable-replacements: %v", limit)
	check(o.DefaultProxyImage != "", "--default-proxy-image must not be empty")
	u, err := url.Parse(o.HealthURL)
	if err == nil && u.User != nil {
		check(false, "--health-url must hold no username and password: proxies are asked for it")
	} else {
		check(health.Usable(o.HealthURL), "--health-url %q is no http:// or https:// URL with a host and, if any, a port from 1 to 65535", o.HealthURL)
	}
	check(o.LeaseMaxTTL >= time.Second, "--lease-max-ttl must be at least 1s")
	check(o.LeaseDefaultTTL >= time.Second && o.LeaseDefaultTTL <= o.LeaseMaxTTL, "--lease-default-ttl must be between 1s and --lease-max-ttl")
	check(o.LeaseCooldownWindow >= time.Second, "--lease-cooldown-window must be at least 1s")
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

// roots are the system's certificate authorities and those in file.
func roots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--health-ca-file: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--health-ca-file %q holds no PEM certificate", file)
	}
	return pool, nil
}
