package registry

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

const (
	// dialTimeout bounds a TCP connect, requestTimeout one preflight request or
	// contact, syncTimeout the first list of every informer.
	dialTimeout    = 5 * time.Second
	requestTimeout = 5 * time.Second
	syncTimeout    = 30 * time.Second
	// maxProxies is how many Proxies one spoke may have: several times what a
	// fleet has, and some 100 MB.
	maxProxies = 50_000
	// One limiter per spoke, whatever the number of clients made from the
	// config. The library's default of 5 a second is for command lines.
	spokeQPS, spokeBurst = 50, 100
)

// connection is one working way to a spoke: synced informers and clients,
// until close.
type connection struct {
	cred     *credential
	config   *rest.Config
	http     *http.Client
	direct   client.Client // asks the API server, never a cache
	cluster  *identified
	identity identity
	log      logr.Logger
	ctx      context.Context
	cancel   context.CancelFunc

	// broken is set when an informer has lost its watch; suspect then tells the
	// spoke, which looks at once.
	broken     atomic.Bool
	suspect    chan<- struct{}
	listing    atomic.Pointer[listing] // while the first list is under way
	maxProxies int

	// severed is set when no request may go out any more, stranger while another
	// cluster answers. permit is that of the spoke, once the connection is taken.
	severed, stranger atomic.Bool
	permit            atomic.Pointer[permit]

	mu      sync.Mutex
	trouble error // of the list or watch that failed last
}

// isSevered says that nothing may go out.
func (c *connection) isSevered() bool {
	permit := c.permit.Load()
	return c.severed.Load() || permit != nil && permit.revoked.Load()
}

// close ends the informers that live on the connection. Passes that use it may
// finish.
func (c *connection) close() {
	c.cancel()
	utilnet.CloseIdleConnectionsFor(c.http.Transport)
}

// sever closes the connection and lets nothing more out: the spoke is not the
// hub's to touch any more.
func (c *connection) sever() {
	c.severed.Store(true)
	c.close()
}

// connect preflights the cluster, asks admit whether it may be this one, and
// starts its informers, all bounded in time and by the context attempt. The
// connection lives in ctx.
func connect(ctx, attempt context.Context, cred *credential, o Options, log logr.Logger, suspect chan<- struct{}, admit func(clusterUID string) error) (*connection, error) {
	conn, err := dial(ctx, cred, o, log, suspect)
	if err != nil {
		return nil, err
	}
	if conn.identity, err = conn.preflight(attempt); err == nil {
		err = admit(conn.identity.clusterUID)
	}
	if err == nil {
		err = conn.start(attempt, o)
	}
	if err != nil {
		conn.sever()
		if errors.Is(attempt.Err(), context.DeadlineExceeded) {
			return nil, errAttempt
		}
		var unknown x509.UnknownAuthorityError
		if errors.As(err, &unknown) && len(conn.config.CAData) == 0 {
			err = &preflightError{v1alpha1.ReasonUnreachable,
				"the server's certificate is of an authority that the hub does not know, and the kubeconfig names none: give certificate-authority-data"}
		}
		return nil, err
	}
	return conn, nil
}

// dial builds the clients. Nothing has been sent when it returns.
func dial(ctx context.Context, cred *credential, o Options, log logr.Logger, suspect chan<- struct{}) (*connection, error) {
	conn := &connection{cred: cred, log: log, suspect: suspect, maxProxies: cmp.Or(o.maxProxies, maxProxies)}
	conn.ctx, conn.cancel = context.WithCancel(ctx)
	cfg := rest.CopyConfig(cred.config)
	cfg.UserAgent = "proxy-operator"
	cfg.QPS, cfg.Burst = spokeQPS, spokeBurst
	cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(spokeQPS, spokeBurst)
	cfg.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	cfg.WarningHandlerWithContext = rest.NoWarnings{} // or a server writes into the log
	if cfg.Proxy == nil {
		// The library's default, but named: it keeps no transport for the life of
		// the process whose configuration it cannot compare.
		cfg.Proxy = http.ProxyFromEnvironment
	}
	secret := cfg.BearerToken
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return guard{next, secret, conn} })
	var err error
	if conn.http, err = rest.HTTPClientFor(cfg); err == nil {
		conn.direct, err = client.New(cfg, client.Options{HTTPClient: conn.http, Scheme: o.Scheme, Mapper: mapper()})
	}
	if err != nil {
		conn.cancel()
		return nil, fmt.Errorf("build the connection: %w", err)
	}
	conn.config = cfg
	return conn, nil
}

// start starts the informers that the controllers will ask for and waits until
// they have listed.
func (c *connection) start(attempt context.Context, o Options) error {
	cl, err := c.newCluster(o)
	if err != nil {
		return fmt.Errorf("build the connection: %w", err)
	}
	c.cluster = &identified{Cluster: cl, uid: c.identity.clusterUID}
	go func() {
		if err := cl.Start(c.ctx); err != nil {
			c.log.Error(err, "Spoke's informers ended")
		}
		utilnet.CloseIdleConnectionsFor(c.http.Transport) // idle now that nothing is watched
	}()
	ctx, cancel := context.WithTimeout(attempt, syncTimeout)
	defer cancel()
	c.listing.Store(&listing{cancel: cancel, seen: map[client.ObjectKey]bool{}})
	defer c.listing.Store(nil)
	for _, kind := range informed() {
		if _, err = cl.GetCache().GetInformer(ctx, kind); err != nil {
			break
		}
	}
	if err == nil && cl.GetCache().WaitForCacheSync(ctx) {
		c.broken.Store(false) // whatever it took to get there
		return nil
	}
	if attempt.Err() != nil {
		return attempt.Err()
	}
	if trouble := c.lastTrouble(); trouble != nil {
		return trouble
	}
	return &preflightError{v1alpha1.ReasonUnreachable, fmt.Sprintf(
		"the first list of Proxies did not end within %s: the server or a tunnel before it may hold back watches", syncTimeout)}
}

// newCluster caches the informed kinds and nothing else.
func (c *connection) newCluster(o Options) (cluster.Cluster, error) {
	options := cache.Options{
		DefaultTransform:            c.take,
		DefaultWatchErrorHandler:    func(_ context.Context, _ *toolscache.Reflector, err error) { c.watchFailed(err) },
		ReaderFailOnMissingInformer: true,
		NewInformer:                 newInformer,
	}
	if len(c.cred.namespaces) > 0 {
		options.DefaultNamespaces = map[string]cache.Config{}
		for _, namespace := range c.cred.namespaces {
			options.DefaultNamespaces[namespace] = cache.Config{}
		}
	}
	return cluster.New(c.config, func(co *cluster.Options) {
		co.Scheme = o.Scheme
		co.HTTPClient = c.http
		co.Logger = o.Log
		co.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper(), nil }
		co.Cache = options
	})
}

// listing counts what the first list brings. The library may hand the same
// object over twice.
type listing struct {
	cancel context.CancelFunc
	mu     sync.Mutex
	seen   map[client.ObjectKey]bool
}

func (l *listing) count(o client.Object) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[client.ObjectKeyFromObject(o)] = true
	return len(l.seen)
}

// take sees every object before it is cached.
func (c *connection) take(object any) (any, error) {
	l := c.listing.Load()
	if o, ok := object.(client.Object); ok && l != nil && l.count(o) > c.maxProxies {
		c.tooMany()
		l.cancel()
	}
	return strip(object)
}

var strip = cache.TransformStripManagedFields()

// tooMany ends the connection: what one spoke holds must not be all that the hub
// can hold.
func (c *connection) tooMany() {
	c.watchFailed(&preflightError{v1alpha1.ReasonUnreachable, fmt.Sprintf("the cluster lists more than %d Proxies, which is more than this hub takes of one", c.maxProxies)})
	c.cancel()
}

// watchFailed hears of every list and watch that failed. That a watch ends, or
// is too old to be resumed, is ordinary.
func (c *connection) watchFailed(err error) {
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || c.ctx.Err() != nil {
		return
	}
	reason, message := explain(err)
	c.log.V(1).Info("Watch failed", "reason", reason, "message", message)
	c.mu.Lock()
	c.trouble = asked("list and watch "+proxiesResource, err)
	c.mu.Unlock()
	c.broken.Store(true)
	poke(c.suspect)
}

// lastTrouble is why a list or watch failed last; nil: none has.
func (c *connection) lastTrouble() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trouble
}

// informer returns the informer of one of the informed kinds, which is synced.
func (c *connection) informer(kind client.Object) (cache.Informer, error) {
	if !isInformed(kind) {
		return nil, fmt.Errorf("a connection to a spoke has no informer for %T", kind)
	}
	informer, err := c.cluster.GetCache().GetInformer(c.ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("find the informer of a spoke: %w", err)
	}
	return informer, nil
}

var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// mapper knows the few kinds that the hub uses in a spoke. Discovery would ask
// every spoke for all it has, at a moment when it may not answer.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(v1alpha1.GroupVersion.WithKind("Proxy"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	m.Add(crdKind, meta.RESTScopeRoot)
	return m
}
