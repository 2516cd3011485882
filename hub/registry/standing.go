package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
)

// standing is a spoke as the controllers know it: engaged once, whatever
// connections come and go behind it. What they hear of is carried over to the
// next connection, so a rotation needs no second engagement, of which
// multicluster-runtime keeps a goroutine for the life of the process.
type standing struct {
	mu        sync.Mutex // held by nobody who waits for a listener
	conn      *connection
	listeners []*listener
}

var (
	_ cluster.Cluster                             = (*standing)(nil)
	_ cache.Informer                              = (*standingInformer)(nil)
	_ toolscache.ResourceEventHandlerRegistration = (*listener)(nil)
)

func (s *standing) current() *connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn
}

// swap lets every listener hear of next, starting with all that next has
// listed, and no more of the connection before it.
func (s *standing) swap(next *connection) error {
	s.mu.Lock()
	s.conn = next
	listeners := slices.Clone(s.listeners)
	s.mu.Unlock()
	var failed []error
	for _, l := range listeners {
		failed = append(failed, l.listen(s))
	}
	return errors.Join(failed...)
}

// GetCache implements cluster.Cluster.
func (s *standing) GetCache() cache.Cache {
	return &standingCache{Cache: s.current().cluster.GetCache(), standing: s}
}

// The rest of cluster.Cluster is that of the present connection.

func (s *standing) GetHTTPClient() *http.Client { return s.current().cluster.GetHTTPClient() }
func (s *standing) GetConfig() *rest.Config     { return s.current().cluster.GetConfig() }
func (s *standing) GetScheme() *runtime.Scheme  { return s.current().cluster.GetScheme() }
func (s *standing) GetClient() client.Client    { return s.current().cluster.GetClient() }
func (s *standing) GetFieldIndexer() client.FieldIndexer {
	return s.current().cluster.GetFieldIndexer()
}
func (s *standing) GetRESTMapper() meta.RESTMapper { return s.current().cluster.GetRESTMapper() }
func (s *standing) GetAPIReader() client.Reader    { return s.current().cluster.GetAPIReader() }

// GetEventRecorder implements cluster.Cluster. The recorder may be kept: each
// Event goes through the connection of its moment.
func (s *standing) GetEventRecorder(name string) events.EventRecorder {
	return &recorder{name, s.current}
}

// GetEventRecorderFor implements cluster.Cluster.
func (s *standing) GetEventRecorderFor(name string) record.EventRecorder {
	return formerRecorder{s.GetEventRecorder(name)}
}

// Start implements cluster.Cluster. A connection starts itself.
func (s *standing) Start(context.Context) error {
	return errors.New("a spoke is started by its registry")
}

// standingCache is the present connection's cache, with informers that stay.
type standingCache struct {
	cache.Cache
	standing *standing
}

func (c *standingCache) GetInformer(_ context.Context, object client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	informer := &standingInformer{standing: c.standing, object: object}
	_, err := informer.present()
	return informer, err
}

func (c *standingCache) GetInformerForKind(_ context.Context, kind schema.GroupVersionKind, _ ...cache.InformerGetOption) (cache.Informer, error) {
	return nil, fmt.Errorf("informers of a spoke are asked for by object, not by kind %s", kind)
}

// standingInformer stands for the informer of the present connection; it keeps
// none, whose cache would live as long.
type standingInformer struct {
	standing *standing
	object   client.Object
}

func (i *standingInformer) present() (cache.Informer, error) {
	return i.standing.current().informer(i.object)
}

func (i *standingInformer) AddIndexers(toolscache.Indexers) error {
	return errors.New("the registry keeps no indexes")
}

func (i *standingInformer) HasSynced() bool {
	informer, err := i.present()
	return err == nil && informer.HasSynced()
}

func (i *standingInformer) HasSyncedChecker() toolscache.DoneChecker {
	informer, err := i.present()
	if err != nil {
		return never{}
	}
	return informer.HasSyncedChecker()
}

// IsStopped says no: there is a next connection, or the engagement ends.
func (i *standingInformer) IsStopped() bool { return false }

// never is not done.
type never struct{}

func (never) Name() string          { return "a spoke's informer" }
func (never) Done() <-chan struct{} { return nil }

func (i *standingInformer) AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(handler, toolscache.HandlerOptions{})
}

func (i *standingInformer) AddEventHandlerWithResyncPeriod(handler toolscache.ResourceEventHandler, period time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(handler, toolscache.HandlerOptions{ResyncPeriod: &period})
}

func (i *standingInformer) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler, options toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	s := i.standing
	l := &listener{object: i.object, handler: handler, options: options, told: map[client.ObjectKey]any{}}
	s.mu.Lock()
	s.listeners = append(s.listeners, l) // first, or a swap could miss it
	s.mu.Unlock()
	if err := l.listen(s); err != nil {
		s.remove(l)
		return nil, err
	}
	return l, nil
}

func (i *standingInformer) RemoveEventHandler(handle toolscache.ResourceEventHandlerRegistration) error {
	l, ours := handle.(*listener)
	if !ours {
		return fmt.Errorf("the handle is not one of this informer")
	}
	i.standing.remove(l)
	return l.leave()
}

func (s *standing) remove(l *listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = slices.DeleteFunc(s.listeners, func(known *listener) bool { return known == l })
}
