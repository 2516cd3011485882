package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// +kubebuilder:rbac:groups="",resources=namespaces,resourceNames=kube-system,verbs=get
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=proxies.crawl.proxyfleet.dev,verbs=get

const (
	// dialTimeout bounds a TCP connect, requestTimeout one preflight request or
	// contact, syncTimeout the first list of every informer.
	dialTimeout    = 5 * time.Second
	requestTimeout = 5 * time.Second
	syncTimeout    = 30 * time.Second
	// One limiter per spoke, whatever the number of clients made from the
	// config. The library's default of 5 a second is for command lines.
	spokeQPS, spokeBurst = 50, 100
)

// identity is what the preflight learns of a cluster.
type identity struct {
	clusterUID, version string
}

// connection is one working way to a spoke: synced informers and clients,
// until close.
type connection struct {
	hash     string
	cluster  *identified
	identity identity
	ctx      context.Context
	cancel   context.CancelFunc
	http     *http.Client
	rest     rest.Interface
}

// close ends everything that lives on the connection.
func (c *connection) close() {
	c.cancel()
	utilnet.CloseIdleConnectionsFor(c.http.Transport)
}

// ping asks the API server for its version.
func (c *connection) ping(ctx context.Context) (string, error) {
	ctx, cancel := short(ctx)
	defer cancel()
	answer := c.rest.Get().AbsPath("/version").Do(ctx)
	if err := answer.Error(); err != nil { // Raw's error lacks the server's words
		return "", err
	}
	body, err := answer.Raw()
	if err != nil {
		return "", err
	}
	var v version.Info
	if err := json.Unmarshal(body, &v); err != nil || v.GitVersion == "" {
		return "", &preflightError{v1alpha1.ReasonUnreachable, "the server does not answer as a Kubernetes API server"}
	}
	return v.GitVersion, nil
}

// preflightError is a fault that has a reason of its own.
type preflightError struct{ reason, message string }

func (e *preflightError) Error() string { return e.message }

// connect preflights the cluster and starts its informers, all bounded in
// time. The connection lives in ctx.
func connect(ctx context.Context, cred *credential, o Options, log logr.Logger) (*connection, error) {
	cfg := rest.CopyConfig(cred.config)
	cfg.UserAgent = "proxy-operator"
	cfg.QPS, cfg.Burst = spokeQPS, spokeBurst
	cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(spokeQPS, spokeBurst)
	cfg.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	secret := cfg.BearerToken
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return guard{next, secret} })
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("build the connection: %w", err)
	}
	// Of discovery only the raw client is used, for the version.
	disco, err := discovery.NewDiscoveryClientForConfigAndClient(cfg, httpClient)
	if err != nil {
		return nil, fmt.Errorf("build the connection: %w", err)
	}
	conn := &connection{hash: cred.hash, http: httpClient, rest: disco.RESTClient()}
	conn.ctx, conn.cancel = context.WithCancel(ctx)
	if conn.identity, err = preflight(ctx, cfg, conn, o); err != nil {
		conn.close()
		return nil, err
	}
	cl, err := newCluster(cfg, httpClient, o)
	if err != nil {
		conn.close()
		return nil, fmt.Errorf("build the connection: %w", err)
	}
	conn.cluster = &identified{Cluster: cl, uid: conn.identity.clusterUID}
	go func() {
		if err := conn.cluster.Start(conn.ctx); err != nil {
			log.Error(err, "Spoke's informers ended")
		}
	}()
	if err := waitForSync(conn.ctx, conn.cluster); err != nil {
		conn.close()
		return nil, err
	}
	return conn, nil
}

// preflight finds out, one bounded request after the other, whether this
// cluster can be worked with, and which it is.
func preflight(ctx context.Context, cfg *rest.Config, conn *connection, o Options) (identity, error) {
	var id identity
	var err error
	if id.version, err = conn.ping(ctx); err != nil {
		return id, err
	}
	direct, err := client.New(cfg, client.Options{HTTPClient: conn.http, Scheme: o.Scheme, Mapper: mapper()})
	if err != nil {
		return id, fmt.Errorf("build the client: %w", err)
	}
	system := &metav1.PartialObjectMetadata{}
	system.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := get(ctx, direct, metav1.NamespaceSystem, system); err != nil {
		return id, err
	}
	id.clusterUID = string(system.UID)
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(crdKind)
	if err := get(ctx, direct, v1alpha1.ProxyCRDName, crd); apierrors.IsNotFound(err) {
		return id, &preflightError{v1alpha1.ReasonCRDMissing,
			"the cluster has no CustomResourceDefinition " + v1alpha1.ProxyCRDName + ": apply config/crd to it"}
	} else if err != nil {
		return id, err
	}
	have, _ := strconv.Atoi(crd.Annotations[v1alpha1.AnnotationSchemaVersion])
	if have < v1alpha1.SchemaVersion {
		return id, &preflightError{v1alpha1.ReasonCRDOutdated, fmt.Sprintf(
			"the cluster's CustomResourceDefinition %s has schema version %d, this hub needs %d: apply config/crd to it",
			v1alpha1.ProxyCRDName, have, v1alpha1.SchemaVersion)}
	}
	// The informer would try for ever what this user may not do.
	ctx, cancel := short(ctx)
	defer cancel()
	return id, direct.List(ctx, &v1alpha1.ProxyList{}, client.Limit(1))
}

func get(ctx context.Context, c client.Reader, name string, into client.Object) error {
	ctx, cancel := short(ctx)
	defer cancel()
	return c.Get(ctx, client.ObjectKey{Name: name}, into)
}

// newCluster caches Proxies and nothing else.
func newCluster(cfg *rest.Config, httpClient *http.Client, o Options) (cluster.Cluster, error) {
	return cluster.New(cfg, func(c *cluster.Options) {
		c.Scheme = o.Scheme
		c.HTTPClient = httpClient
		c.Logger = o.Log
		c.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper(), nil }
		c.Cache = cache.Options{DefaultTransform: cache.TransformStripManagedFields()}
	})
}

// waitForSync starts the informers that the controllers will ask for and waits until
// they have listed.
func waitForSync(ctx context.Context, cl cluster.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	_, err := cl.GetCache().GetInformer(ctx, &v1alpha1.Proxy{})
	if err == nil && cl.GetCache().WaitForCacheSync(ctx) {
		return nil
	}
	return &preflightError{v1alpha1.ReasonUnreachable, fmt.Sprintf(
		"the first list of Proxies did not end within %s: the server or a tunnel before it may hold back watches", syncTimeout)}
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
