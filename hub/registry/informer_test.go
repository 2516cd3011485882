package registry

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

// chatter is a watch that waits for its reader, as watch.Filter does, which
// controller-runtime puts before every watch of bare metadata.
type chatter struct {
	events         chan watch.Event
	stopped, ended chan struct{}
}

func (c chatter) Stop()                          { close(c.stopped) }
func (c chatter) ResultChan() <-chan watch.Event { return c.events }

func (c chatter) run() {
	for range 3 {
		c.events <- watch.Event{Type: watch.Added, Object: secretNamed("a", "")}
	}
	<-c.stopped
	close(c.events)
	close(c.ended)
}

func TestAWatchThatNobodyReadsAnyMoreEnds(t *testing.T) {
	for name, most := range map[string]int{"given up": 1, "too much": 0} {
		within := chatter{make(chan watch.Event), make(chan struct{}), make(chan struct{})}
		go within.run()
		lw := &toolscache.ListWatch{WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return within, nil }}
		refused := make(chan struct{})
		q := quiet{lw, newShare(newTally(secretKind, most)), func() error { close(refused); return errTooLong }}
		w, err := q.WatchWithContext(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if most > 0 {
			w.Stop()
		} else {
			<-refused
		}
		select {
		case <-within.ended:
		case <-time.After(30 * time.Second):
			t.Errorf("%s: what it reads from waits for it", name)
		}
	}
}
