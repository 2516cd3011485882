// Package app is the hub: Run puts the rooms of the house together. It knows no
// signals and no exit codes, so that a test can start what users start.
package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/health"
	"github.com/proxyfleet/proxy-operator/hub/lease"
	"github.com/proxyfleet/proxy-operator/hub/metrics"
	"github.com/proxyfleet/proxy-operator/hub/proxy"
	"github.com/proxyfleet/proxy-operator/hub/registry"
	restapi "github.com/proxyfleet/proxy-operator/hub/rest"
	"github.com/proxyfleet/proxy-operator/spoke/kubeconfig"
)

// Run runs the hub until ctx ends. It returns an error when the hub cannot
// start, or when a part that must run has ended; or when it has led and does not any
// more. The process must end then: parts of it may still be running.
func Run(ctx context.Context, o Options) error {
	log := newLogger(&o.Zap)
	ctrl.SetLogger(log)
	cfg, scheme, err := hubCluster(ctx, &o)
	if err != nil {
		return err
	}
	elected, err := newElection(cfg, o)
	if err != nil {
		return err
	}

	everyProxy := fleet.New(fleet.Options{AllowLocal: o.AllowLocalEndpoints})
	leases := lease.New(lease.Options{
		DefaultTTL: o.LeaseDefaultTTL, MaxTTL: o.LeaseMaxTTL, CooldownWindow: o.LeaseCooldownWindow,
		MaxWaiters: o.APIMaxWaiters, Leading: elected.Leading,
	})
	everyProxy.Follow(leases.Observe)
	// Both are read by the metrics, and tell them, so one has to come first.
	var spokes *registry.Registry
	var prober *health.Engine
	gatherer := prometheus.NewRegistry()
	recorder := metrics.New(gatherer, metrics.Options{
		Proxies: everyProxy.All, SpokeReasons: func() map[string]int { return spokes.Reasons() }, PathsBroken: func() []string { return spokes.PathsBroken() },
		LeasesByCluster: leases.ActiveByCluster, Cooldowns: leases.Cooldowns, VerdictsHeld: func() bool { return prober.Held() },
		PerProxyLimit: o.MetricsPerProxyLimit,
	})
	spokes = registry.New(registry.Options{
		Fleet: everyProxy, HubID: o.HubID, Recorder: recorder, Scheme: scheme, Log: log.WithName("registry"),
		Allowed:    kubeconfig.Options{AllowInsecure: o.AllowInsecureSpokes, AllowProxyURL: o.AllowSpokeProxyURL},
		LocalSpoke: o.LocalSpoke, Local: cfg, Fence: elected.Fence,
	})
	api := restapi.New(restapi.Options{
		Token: o.APIToken, Leases: leases, Ready: spokes.Settled, Metrics: recorder, Log: log.WithName("api"),
		Clusters: func() []restapi.Cluster { return clusters(spokes.Summaries()) },
	})

	mgr, err := newManager(cfg, scheme, spokes, elected, o, log)
	if err != nil {
		return err
	}
	prober = health.New(health.Options{
		Fleet: everyProxy, URL: o.HealthURL, Roots: o.HealthRoots, MaxInFlight: inFlight(o.HealthMaxInFlight, log), Recorder: recorder,
		Resolver: o.Resolver, AllowLocal: o.AllowLocalEndpoints, Log: log.WithName("health"),
		Connected: spokes.Answers, PathBroken: spokes.SetPathBroken, Announce: announce(mgr.GetLocalManager().GetEventRecorder("proxy-operator"), o.Namespace),
	})
	if err := spokes.SetUp(mgr.GetLocalManager(), o.Namespace); err != nil {
		return err
	}
	if err := proxy.SetUp(mgr, proxy.Options{
		Fleet: everyProxy, HubID: o.HubID, ClusterUID: registry.ClusterUID, Answers: spokes.Answers, Listed: spokes.Listed, DefaultImage: o.DefaultProxyImage,
		MaxConcurrent: o.MaxConcurrentReconciles, MaxUnavailable: o.MaxUnavailable, Recorder: recorder, Log: log.WithName("proxy"),
	}); err != nil {
		return err
	}
	if err := serve(ctx, mgr.GetLocalManager(), o, log, api, gatherer); err != nil {
		return err
	}
	probe := func(ctx context.Context) error {
		// Before the first lease is granted: what others' statuses say of spokes that are
		// out of sight may be long past.
		everyProxy.Judge(spokes.Answers)
		elected.TakeUp()
		return prober.Run(ctx)
	}
	for _, run := range []manager.RunnableFunc{leases.Run, probe} {
		if err := mgr.GetLocalManager().Add(run); err != nil {
			return fmt.Errorf("add to the manager: %w", err)
		}
	}
	if o.APIToken == "" {
		log.Info("WARNING: the API asks for no token: everybody who can reach it can lease every proxy. Set DISCOVERY_TOKEN.")
	}
	log.Info("WARNING: leases and cooldowns are kept in memory and end with this process")
	log.Info("Starting the hub", "hubID", o.HubID, "namespace", o.Namespace, "leaderElect", o.LeaderElect)
	return elected.run(ctx, mgr, log)
}

// hubCluster leads to the hub's own cluster, and says which kinds are known. It fills
// in the hub's id where none is given.
func hubCluster(ctx context.Context, o *Options) (*rest.Config, *runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, nil, fmt.Errorf("build the scheme: %w", err)
	}
	cfg, err := hubConfig(o.Kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	if o.HubID == "" {
		if o.HubID, err = clusterUID(ctx, cfg, scheme); err != nil {
			return nil, nil, fmt.Errorf("find out the hub's id: %w", err)
		}
	}
	return cfg, scheme, nil
}

// serve has every replica answer the API and show its metrics.
func serve(ctx context.Context, mgr manager.Manager, o Options, log logr.Logger, api *restapi.Server, own *prometheus.Registry) error {
	serveAPI, err := listen(ctx, "API", o.APIAddress, log, api.Serve)
	if err != nil {
		return err
	}
	serveMetrics, err := listen(ctx, "metrics", o.MetricsAddress, log, metricsServer(own))
	if err != nil {
		return err
	}
	if err := errors.Join(mgr.Add(serveAPI), mgr.Add(serveMetrics)); err != nil {
		return fmt.Errorf("add to the manager: %w", err)
	}
	return nil
}

// announce tells in Events what concerns the hub as a whole.
func announce(recorder events.EventRecorder, namespace string) func(warning bool, reason, message string) {
	about := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: electionLease}}
	return func(warning bool, reason, message string) {
		kind := corev1.EventTypeNormal
		if warning {
			kind = corev1.EventTypeWarning
		}
		const most = 1024 // which the API server takes
		recorder.Eventf(about, nil, kind, reason, "Probe", "%s", strings.ToValidUTF8(message[:min(len(message), most)], ""))
	}
}

// clusters are the registry's spokes as the API shows them.
func clusters(spokes []registry.Summary) []restapi.Cluster {
	all := make([]restapi.Cluster, len(spokes))
	for i, s := range spokes {
		all[i] = restapi.Cluster(s)
	}
	return all
}

// hubConfig leads to the hub's own cluster.
func hubConfig(file string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the hub's own cluster (give --kubeconfig outside of it): %w", err)
	}
	// The API server's own fairness limits us; the library's 5 a second is for
	// command lines.
	cfg.QPS = -1
	return cfg, nil
}

// clusterUID is the identity of the hub's own cluster.
func clusterUID(ctx context.Context, cfg *rest.Config, scheme *runtime.Scheme) (string, error) {
	direct, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var system corev1.Namespace
	if err := direct.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, &system); err != nil {
		return "", err
	}
	return string(system.UID), nil
}

// newManager caches, of the hub's cluster, the kubeconfig Secrets and Spokes
// of one namespace and nothing else.
func newManager(cfg *rest.Config, scheme *runtime.Scheme, spokes *registry.Registry, elected *election, o Options, log logr.Logger) (mcmanager.Manager, error) {
	options := manager.Options{
		Scheme: scheme,
		Logger: log,
		Cache: cache.Options{
			DefaultNamespaces: map[string]cache.Config{o.Namespace: {}},
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Secret{}: {Label: labels.SelectorFromSet(registry.SecretSelector())},
			},
		},
		// The hub serves its own registry beside the library's; see metricsServer.
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: o.ProbeAddress,
	}
	elected.configure(&options)
	fenced := rest.CopyConfig(cfg)
	fenced.Wrap(elected.Fence)
	mgr, err := mcmanager.New(fenced, spokes, options)
	if err != nil {
		return nil, fmt.Errorf("build the manager: %w", err)
	}
	local := mgr.GetLocalManager()
	if elected.events != nil {
		elected.events.recorder = local.GetEventRecorder("proxy-operator")
	}
	if err := errors.Join(local.AddHealthzCheck("ping", healthz.Ping), local.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return nil, fmt.Errorf("add the hub's own health checks: %w", err)
	}
	return mgr, nil
}

// listen takes the address now, so that one that is in use is told at once,
// and returns what serves on it later.
func listen(ctx context.Context, what, address string, log logr.Logger, serve func(context.Context, net.Listener) error) (everywhere, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w", what, err)
	}
	log.Info("Listening", "for", what, "address", listener.Addr().String())
	return func(ctx context.Context) error { return serve(ctx, listener) }, nil
}

// inFlight keeps probes to a quarter of the files that the process may open. One takes
// several where a proxy's name has several addresses that do not answer; and there are
// clients, spokes and metrics.
func inFlight(wanted int, log logr.Logger) int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Cur/4 >= uint64(wanted) {
		return wanted
	}
	most := max(1, int(files.Cur/4))
	log.Info("WARNING: --health-max-in-flight is more than a quarter of the files that this process may open, and is lowered", "wanted", wanted, "used", most)
	return most
}

// metricsServer serves the hub's metrics and controller-runtime's.
func metricsServer(own *prometheus.Registry) func(context.Context, net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(prometheus.Gatherers{own, ctrlmetrics.Registry}, promhttp.HandlerOpts{}))
	return func(ctx context.Context, listener net.Listener) error {
		server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
		stop := context.AfterFunc(ctx, func() { _ = server.Close() })
		defer stop()
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
}
