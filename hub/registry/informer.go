package registry

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

// newInformer is client-go's, with what a server says in an error event of a
// watch left out: client-go writes it into the log.
func newInformer(lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(quiet{toolscache.ToListerWatcherWithContext(lw)}, example, resync, indexers)
}

// quiet lists and watches as the one within, and rewrites error events.
type quiet struct {
	toolscache.ListerWatcherWithContext
}

func (q quiet) List(options metav1.ListOptions) (runtime.Object, error) {
	return q.ListWithContext(context.Background(), options)
}

func (q quiet) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return q.WatchWithContext(context.Background(), options)
}

func (q quiet) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := q.ListerWatcherWithContext.WatchWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	quieted := &quietWatch{within: w, events: make(chan watch.Event), stopped: make(chan struct{})}
	go quieted.run()
	return quieted, nil
}

// quietWatch is what watch.Filter would be, if that ended with its reader.
type quietWatch struct {
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
		select {
		case w.events <- e:
		case <-w.stopped:
			return
		}
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
