package registry

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// newInformer is client-go's, with what a server says in an error event of a
// watch left out, which client-go writes into the log, and with what comes in
// counted.
func (c *connection) newInformer(lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	t := c.tallies[kindOf(example)]
	if t == nil {
		t = newTally(&kind{resource: "objects", plural: "objects of a kind that is not the hub's"}, maxMetadata) // nobody asks for it
	}
	q := quiet{toolscache.ToListerWatcherWithContext(lw), newShare(t), func() error { return c.tooMany(t) }}
	inner := toolscache.NewSharedIndexInformer(q, example, resync, indexers)
	// It fails for one that runs.
	_ = inner.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *toolscache.Reflector, err error) { c.watchFailed(t.kind, err) })
	i := &informer{inner, t.kind, make(chan struct{})}
	go i.settle(c.ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.informers = append(c.informers, i)
	return i
}

// informer is one whose first list is over for those who wait for it when it is
// complete or the connection has ended. The library's is over when it is
// complete, and what waits for it there would do so for ever.
type informer struct {
	toolscache.SharedIndexInformer
	kind *kind
	over chan struct{}
}

func (i *informer) settle(ctx context.Context) {
	defer close(i.over)
	select {
	case <-i.SharedIndexInformer.HasSyncedChecker().Done():
	case <-ctx.Done():
	}
}

func (i *informer) HasSyncedChecker() toolscache.DoneChecker { return i }
func (i *informer) Name() string                             { return "a spoke's " + i.kind.plural }
func (i *informer) Done() <-chan struct{}                    { return i.over }

// quiet lists and watches as the one within, counts what comes in, and rewrites
// error events.
type quiet struct {
	toolscache.ListerWatcherWithContext
	share   *share
	tooMany func() error
}

func (q quiet) List(options metav1.ListOptions) (runtime.Object, error) {
	return q.ListWithContext(context.Background(), options)
}

func (q quiet) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list, err := q.ListerWatcherWithContext.ListWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	of, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	if !q.share.listed(list, options.Continue == "", of.GetContinue() == "") {
		return nil, q.tooMany()
	}
	return list, nil
}

func (q quiet) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return q.WatchWithContext(context.Background(), options)
}

func (q quiet) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := q.ListerWatcherWithContext.WatchWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	q.share.watching(ptr.Deref(options.SendInitialEvents, false))
	quieted := &quietWatch{of: q, within: w, events: make(chan watch.Event), stopped: make(chan struct{})}
	go quieted.run()
	return quieted, nil
}

// quietWatch is what watch.Filter would be, if that ended with its reader.
type quietWatch struct {
	of      quiet
	within  watch.Interface
	events  chan watch.Event
	stop    sync.Once
	stopped chan struct{}
}

func (w *quietWatch) ResultChan() <-chan watch.Event { return w.events }

func (w *quietWatch) Stop() {
	w.stop.Do(func() { close(w.stopped) })
	w.within.Stop()
}

func (w *quietWatch) run() {
	defer close(w.events)
	for e := range w.within.ResultChan() {
		if e.Type == watch.Error {
			e.Object = unquoted(e.Object)
		}
		if !w.of.share.heard(e) {
			_ = w.of.tooMany() // which ends it
			w.within.Stop()
			break
		}
		select {
		case w.events <- e:
		case <-w.stopped:
		}
	}
	for range w.within.ResultChan() {
		// That of bare metadata is a watch.Filter: it waits for its reader.
	}
}

// unquoted is the status with its code and reason, which client-go acts on, and
// no words of the server's.
func unquoted(object runtime.Object) runtime.Object {
	said := &metav1.Status{}
	if status, ok := apierrors.FromObject(object).(apierrors.APIStatus); ok {
		*said = status.Status()
	}
	plain := &metav1.Status{Status: metav1.StatusFailure, Code: said.Code, Message: "the watch ended with an error event"}
	for _, known := range []metav1.StatusReason{metav1.StatusReasonExpired, metav1.StatusReasonGone, metav1.StatusReasonTimeout, metav1.StatusReasonTooManyRequests, metav1.StatusReasonInternalError} {
		if said.Reason == known {
			plain.Reason = known
		}
	}
	return plain
}
