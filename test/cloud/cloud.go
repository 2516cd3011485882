// Package cloud is a stand-in for the part of a cloud that gives Services of type LoadBalancer
// their load balancers, for one cluster whose pods are reached on loopback addresses (test/node
// runs such). It exists so that the operator can be tested, and shown, against Services that get
// an address some time after they were made, carry traffic, change and go.
//
// Services and pods are watched. A Service gets the finalizer that real clouds put there, then
// an address of its own in 127.12.0.0-127.15.255.255, derived from its UID so that it is the
// same after a restart, then a relay for each TCP port, and then the address appears in its
// status. Which pod a connection goes to is decided when it comes, by the Service and the pods
// as they are then: running, not being deleted, selected; the ready ones if there are any. When
// the Service is deleted, or is of another type, all that is taken back in the reverse order.
//
// A test may choose: Options name addresses and hostnames, and the annotation AddressAnnotation
// moves a single Service. An address that was chosen may be that of several Services, as long
// as their ports differ.
//
// Traded away: everything that is between a load balancer and its pods. No node ports, no
// EndpointSlices (the API server refuses loopback addresses in them), no health checks, source
// ranges or session affinity; ports of other protocols than TCP are told in the log and not
// served. A Service with a loadBalancerClass is somebody else's.
package cloud

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/proxyfleet/proxy-operator/test/node/address"
)

const (
	// AddressAnnotation of a Service, if its value is an IP address, is where that Service's
	// load balancer is. It may change at any time and comes before Options.Address.
	AddressAnnotation = "test.proxyfleet.dev/address"

	apiTimeout = 10 * time.Second
	lockRetry  = 500 * time.Millisecond
)

// Options configure Run; the zero value is of use.
type Options struct {
	// Address, if not nil, chooses the address of a Service that has no annotation. For the
	// zero Addr the Service gets the one that it would have got without.
	Address func(*corev1.Service) netip.Addr
	// Hostname, if not nil, gives the name that a Service's status has in place of its address.
	// With "" it has the address. The name is for the test to make resolvable.
	Hostname func(*corev1.Service, netip.Addr) string
	// Logger defaults to discarding.
	Logger *slog.Logger
}

// cloud is all that Run has. The balancers belong to the goroutine that takes from the queue.
type cloud struct {
	options   Options
	log       *slog.Logger
	core      corev1client.CoreV1Interface
	services  cache.SharedIndexInformer
	pods      cache.SharedIndexInformer
	queue     workqueue.TypedRateLimitingInterface[cache.ObjectName]
	addresses *address.Pool
	balancers map[cache.ObjectName]*balancer
}

// Run is the cloud of one cluster until ctx ends; then nothing listens any more, and Services
// keep their addresses and finalizers for the next Run. Its user is to be a cluster admin. An
// API server that cannot be reached is waited for, and so is another Run on this host with the
// same address of the API server: there may be one beside each node.
func Run(ctx context.Context, config *rest.Config, options Options) error {
	c, err := newCloud(config, options)
	if err != nil {
		return err
	}
	lock, err := c.lock(ctx, config.Host)
	if err != nil || lock == nil {
		return err
	}
	defer lock.Close()
	defer c.closeAll()
	enqueue := cache.ResourceEventHandlerFuncs{
		AddFunc:    c.enqueue,
		UpdateFunc: func(_, object any) { c.enqueue(object) },
		DeleteFunc: c.enqueue,
	}
	if _, err := c.services.AddEventHandler(enqueue); err != nil {
		return err
	}
	var running sync.WaitGroup
	running.Go(func() { c.services.RunWithContext(ctx) })
	running.Go(func() { c.pods.RunWithContext(ctx) })
	running.Go(func() {
		<-ctx.Done()
		c.queue.ShutDown()
	})
	// Who is told of an address is to reach a pod there.
	if cache.WaitForCacheSync(ctx.Done(), c.services.HasSynced, c.pods.HasSynced) {
		for c.next(ctx) {
		}
	}
	running.Wait()
	return nil
}

func newCloud(config *rest.Config, options Options) (*cloud, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // many Services at once write more than the default 5 requests a second
	config.UserAgent = "proxy-operator-test-cloud"
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	log := options.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &cloud{
		options: options, log: log, core: core,
		services: informer(core, "services", &corev1.Service{}),
		pods:     informer(core, "pods", &corev1.Pod{}),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](100*time.Millisecond, 5*time.Second)),
		addresses: address.NewPool(address.LoadBalancers),
		balancers: map[cache.ObjectName]*balancer{},
	}, nil
}

func informer(core corev1client.CoreV1Interface, resource string, object runtime.Object) cache.SharedIndexInformer {
	source := cache.NewListWatchFromClient(core.RESTClient(), resource, corev1.NamespaceAll, fields.Everything())
	informer := cache.NewSharedIndexInformer(source, object, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	// Fails only on an informer that has started.
	_ = informer.SetTransform(func(object any) (any, error) {
		if m, err := meta.Accessor(object); err == nil {
			m.SetManagedFields(nil) // half of an object's memory, and nobody here reads them
		}
		return object, nil
	})
	return informer
}

// lock waits until no other Run on this host serves the cluster: two would give each Service two
// addresses by turns. It returns nil if ctx ends before.
func (c *cloud) lock(ctx context.Context, host string) (net.Listener, error) {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(host))
	name := fmt.Sprintf("@proxy-operator-test-cloud/%x", hash.Sum64())
	told := false
	for ctx.Err() == nil {
		var config net.ListenConfig
		lock, err := config.Listen(ctx, "unix", name)
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) && ctx.Err() == nil {
			return nil, err
		}
		if !told {
			told = true
			c.log.Info("waiting for the end of another that serves the cluster", "host", host)
		}
		select {
		case <-ctx.Done():
		case <-time.After(lockRetry):
		}
	}
	return nil, nil
}

func (c *cloud) enqueue(object any) {
	if name, err := cache.DeletionHandlingObjectToName(object); err == nil {
		c.queue.Add(name)
	}
}

// next handles one Service; false means that the queue was shut down.
func (c *cloud) next(ctx context.Context) bool {
	name, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(name)
	err := c.reconcile(ctx, name)
	switch {
	case err == nil, apierrors.IsNotFound(err):
		c.queue.Forget(name)
	case ctx.Err() != nil:
	default:
		// A conflict means that the watch lags behind, which needs no telling.
		if !apierrors.IsConflict(err) {
			c.log.Warn("cannot serve a Service, trying again", "service", name.String(), "error", err)
		}
		c.queue.AddRateLimited(name)
	}
	return true
}

// service is a Service as the watch has told of it last; nil if there is none.
func (c *cloud) service(name cache.ObjectName) *corev1.Service {
	object, found, err := c.services.GetStore().GetByKey(name.String())
	if err != nil || !found {
		return nil
	}
	return object.(*corev1.Service)
}
