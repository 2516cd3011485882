package registry

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
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
	// One limiter per spoke, whatever the number of clients made from the
	// config. The library's default of 5 a second is for command lines.
	spokeQPS, spokeBurst = 200, 400
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
	broken  atomic.Bool
	listed  atomic.Bool // the fleet shows what it has
	suspect chan<- struct{}

	// severed is set when no request may go out any more, stranger while another
	// cluster answers. permit is that of the spoke, once the connection is taken.
	severed, stranger atomic.Bool
	permit            atomic.Pointer[permit]

	standing atomic.Pointer[standing] // what the controllers know it as; nil: nothing yet
	tallies  map[*kind]*tally
	// broadcaster takes the Events that are written through the connection, from
	// the first one on.
	broadcaster func() (events.EventBroadcaster, error)

	mu        sync.Mutex
	informers []*informer // one for each kind and namespace
	trouble   error       // of the list or watch that failed last
}

// isSevered says that nothing may go out.
func (c *connection) isSevered() bool {
	permit := c.permit.Load()
	return c.severed.Load() || permit != nil && permit.revoked.Load()
}

// close ends what lives on the connection: the informers, and Events that are
// not written yet. Passes that use it may finish.
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
	conn := &connection{cred: cred, log: log, suspect: suspect, tallies: map[*kind]*tally{}}
	for _, k := range kinds {
		conn.tallies[k] = newTally(k, o.mostOf(k))
	}
	conn.ctx, conn.cancel = context.WithCancel(ctx)
	conn.broadcaster = sync.OnceValues(conn.broadcast)
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
	if o.Fence != nil {
		cfg.Wrap(o.Fence) // outside of the guard, which has no words for what it says
	}
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
	c.cluster = &identified{Cluster: cl, conn: c}
	for _, k := range kinds {
		if _, err := cl.GetCache().GetInformer(attempt, k.object, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("build the connection: %w", err)
		}
	}
	go func() {
		if err := cl.Start(c.ctx); err != nil {
			c.log.Error(err, "Spoke's informers ended")
		}
		utilnet.CloseIdleConnectionsFor(c.http.Transport) // idle now that nothing is watched
	}()
	ctx, cancel := context.WithTimeout(attempt, syncTimeout)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)() // what is listed may be too much
	for _, i := range c.started() {
		select {
		case <-i.over:
		case <-ctx.Done():
		}
	}
	unlisted := c.unlisted()
	if unlisted == "" && c.ctx.Err() == nil {
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
		"the first list of %s did not end within %s: the server or a tunnel before it may hold back watches", unlisted, syncTimeout)}
}

// unlisted names the kinds whose first list is not complete.
func (c *connection) unlisted() string {
	var names []string
	for _, i := range c.started() {
		if !i.HasSynced() && !slices.Contains(names, i.kind.plural) {
			names = append(names, i.kind.plural)
		}
	}
	return strings.Join(names, " and ")
}

func (c *connection) started() []*informer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.informers)
}

// newCluster caches the kinds of which there are informers and nothing else.
func (c *connection) newCluster(o Options) (cluster.Cluster, error) {
	options := cache.Options{
		DefaultTransform:            cache.TransformStripManagedFields(),
		ByObject:                    o.held(),
		ReaderFailOnMissingInformer: true,
		NewInformer:                 c.newInformer,
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

// tooMany ends the connection, and says why.
func (c *connection) tooMany(t *tally) error {
	err := &preflightError{v1alpha1.ReasonUnreachable, fmt.Sprintf(
		"the cluster lists more than %d %s, which is more than this hub takes of one%s", t.most, t.kind.plural, t.kind.advice)}
	c.watchFailed(t.kind, err)
	c.cancel()
	return err
}

// watchFailed hears of every list and watch that failed, of whatever kind. That
// a watch ends, or is too old to be resumed, is ordinary.
func (c *connection) watchFailed(k *kind, err error) {
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || c.ctx.Err() != nil {
		return
	}
	reason, message := explain(err)
	c.log.V(1).Info("Watch failed", "resource", k.resource, "reason", reason, "message", message)
	c.mu.Lock()
	c.trouble = asked("list and watch "+k.resource, err)
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

// informer returns the informer for objects such as this one, which is synced.
func (c *connection) informer(object client.Object) (cache.Informer, error) {
	if kindOf(object) == nil {
		return nil, fmt.Errorf("a connection to a spoke has no informer for %T %s", object, object.GetObjectKind().GroupVersionKind())
	}
	informer, err := c.cluster.GetCache().GetInformer(c.ctx, object, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("find the informer of a spoke: %w", err)
	}
	return informer, nil
}
