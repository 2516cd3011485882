package registry

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// listener is a controller's handler, and the informer where it is registered
// now. Whatever became of an object between two connections, it is told: what
// the next one has is added anew, and what is there no more is deleted.
type listener struct {
	object  client.Object
	handler toolscache.ResourceEventHandler
	options toolscache.HandlerOptions

	place    sync.Mutex // held while it goes from one informer to the next
	conn     *connection
	informer cache.Informer
	handle   toolscache.ResourceEventHandlerRegistration
	left     bool

	mu   sync.Mutex // held while the handler is told
	from *connection
	// told is what from has said to be there, before what connections before it
	// have, and from has not said yet.
	told, before map[client.ObjectKey]any
}

// listen registers with the present connection, and then takes the registration
// before it back.
func (l *listener) listen(s *standing) error {
	l.place.Lock()
	defer l.place.Unlock()
	conn := s.current()
	if l.left || l.conn == conn {
		return nil
	}
	informer, err := conn.informer(l.object)
	if err != nil {
		return err
	}
	l.turnTo(conn)
	handle, err := informer.AddEventHandlerWithOptions(relay{l, conn}, l.options)
	if err != nil {
		return fmt.Errorf("listen to the spoke: %w", err)
	}
	if l.informer != nil {
		_ = l.informer.RemoveEventHandler(l.handle) // it is about to be stopped anyway
		go l.settle(conn, handle.HasSyncedChecker().Done())
	}
	l.conn, l.informer, l.handle = conn, informer, handle
	return nil
}

// leave takes the registration back, for good.
func (l *listener) leave() error {
	l.place.Lock()
	defer l.place.Unlock()
	l.left = true
	if l.informer == nil {
		return nil
	}
	return l.informer.RemoveEventHandler(l.handle)
}

// turnTo hears no more of any other connection.
func (l *listener) turnTo(conn *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.before == nil {
		l.before = map[client.ObjectKey]any{}
	}
	maps.Copy(l.before, l.told)
	l.from, l.told = conn, map[client.ObjectKey]any{}
}

// settle tells the handler, once it has been told of all that the connection
// listed, what is gone since the connections before it. Objects of a namespace
// that is not looked at any more may well be there.
func (l *listener) settle(conn *connection, heard <-chan struct{}) {
	select {
	case <-heard:
	case <-conn.ctx.Done():
		return // the next one takes before over
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.from != conn {
		return
	}
	for key, object := range l.before {
		if conn.cred.sees(key.Namespace) {
			l.handler.OnDelete(toolscache.DeletedFinalStateUnknown{Key: key.String(), Obj: object})
		}
	}
	l.before = nil
}

// sees says that the namespace is looked at.
func (c *credential) sees(namespace string) bool {
	return len(c.namespaces) == 0 || slices.Contains(c.namespaces, namespace)
}

// relay tells a listener what one connection says, for as long as it listens to that.
type relay struct {
	*listener
	conn *connection
}

func (r relay) OnAdd(object any, initial bool) {
	r.tell(object, true, func() { r.handler.OnAdd(object, initial) })
}

func (r relay) OnUpdate(old, object any) {
	r.tell(object, true, func() { r.handler.OnUpdate(old, object) })
}

func (r relay) OnDelete(object any) {
	r.tell(object, false, func() { r.handler.OnDelete(object) })
}

func (r relay) tell(object any, there bool, handle func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.from != r.conn {
		return
	}
	last := object
	if tombstone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		last = tombstone.Obj
	}
	if o, err := meta.Accessor(last); err == nil {
		key := client.ObjectKey{Namespace: o.GetNamespace(), Name: o.GetName()}
		delete(r.before, key)
		if there {
			r.told[key] = object
		} else {
			delete(r.told, key)
		}
	}
	handle()
}

func (l *listener) present() toolscache.ResourceEventHandlerRegistration {
	l.place.Lock()
	defer l.place.Unlock()
	return l.handle
}

// HasSynced implements ResourceEventHandlerRegistration.
func (l *listener) HasSynced() bool { return l.present().HasSynced() }

// HasSyncedChecker implements ResourceEventHandlerRegistration.
func (l *listener) HasSyncedChecker() toolscache.DoneChecker { return l.present().HasSyncedChecker() }
