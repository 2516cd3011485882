package fairqueue

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

const (
	workers = 16
	most    = 4
)

// In these tests a spoke is a namespace.
func proxy(spoke string, i int) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: spoke, Name: fmt.Sprint(i)}}
}

// run starts a real controller that has its queue from New, in the bubble of the
// test, and returns the queue.
func run(t *testing.T, pass reconcile.Func) *Queue[reconcile.Request] {
	t.Helper()
	var queue *Queue[reconcile.Request]
	started := make(chan struct{})
	c, err := controller.NewTypedUnmanaged("fair", controller.TypedOptions[reconcile.Request]{
		SkipNameValidation:      ptr.To(true),
		MaxConcurrentReconciles: workers,
		Reconciler:              pass,
		LogConstructor:          func(*reconcile.Request) logr.Logger { return logr.Discard() },
		NewQueue: func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
			queue = New(Options[reconcile.Request]{
				Name:        name,
				Group:       func(r reconcile.Request) string { return r.Namespace },
				Most:        most,
				RateLimiter: limiter,
			})
			return queue
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	src := source.Func(func(context.Context, workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		close(started)
		return nil
	})
	if err := c.Watch(src); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-started
	return queue
}

func TestOneSpokeWithAHundredThousandProxiesDoesNotDelayAnothersSingleOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pass = 10 * time.Millisecond
		var crowd atomic.Int32
		single := make(chan time.Time, 1)
		q := run(t, func(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
			<-time.After(pass)
			if crowd.Add(1); r.Namespace == "single" {
				single <- time.Now()
			}
			return reconcile.Result{}, nil
		})
		for i := range 100_000 {
			q.Add(proxy("crowd", i))
		}
		<-time.After(10 * pass)
		if crowd.Load() < most*5 {
			t.Fatalf("after ten times a pass, %d passes", crowd.Load())
		}
		added := time.Now()
		q.Add(proxy("single", 1))
		if took := (<-single).Sub(added); took > pass {
			t.Errorf("reconciled after %s, a pass takes %s", took, pass)
		}
	})
}

func TestASpokeWhosePassesAllHangLeavesWorkersToTheOthers(t *testing.T) {
	for hanging := 1; hanging < workers/most; hanging++ {
		synctest.Test(t, func(t *testing.T) {
			var hung, reconciled atomic.Int32
			q := run(t, func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
				if r.Namespace != "fine" {
					hung.Add(1)
					<-ctx.Done()
					return reconcile.Result{}, ctx.Err()
				}
				reconciled.Add(1)
				return reconcile.Result{}, nil
			})
			for i := range 1000 {
				for spoke := range hanging {
					q.Add(proxy(fmt.Sprint("hangs-", spoke), i))
				}
			}
			synctest.Wait()
			for i := range 1000 {
				q.Add(proxy("fine", i))
			}
			synctest.Wait()
			if hung.Load() != int32(most*hanging) || reconciled.Load() != 1000 {
				t.Errorf("%d spokes hang: %d workers with them, %d of 1000 Proxies of another reconciled", hanging, hung.Load(), reconciled.Load())
			}
		})
	}
}

func TestAFailedPassComesAgainAndARequeueKeepsItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		passes := map[string][]time.Duration{}
		start := time.Now()
		q := run(t, func(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
			mu.Lock()
			defer mu.Unlock()
			passes[r.Namespace] = append(passes[r.Namespace], time.Since(start))
			if r.Namespace == "fails" && len(passes["fails"]) < 4 {
				return reconcile.Result{}, fmt.Errorf("pass %d", len(passes["fails"]))
			}
			if r.Namespace == "drifts" {
				return reconcile.Result{RequeueAfter: time.Minute}, nil
			}
			return reconcile.Result{}, nil
		})
		q.Add(proxy("fails", 1))
		q.Add(proxy("drifts", 1))
		<-time.After(90 * time.Second)
		q.Add(proxy("drifts", 1)) // the pass asked for at 120 s moves to 150 s
		<-time.After(70 * time.Second)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		const ms = time.Millisecond
		if got, want := fmt.Sprint(passes["fails"]), fmt.Sprint([]time.Duration{0, 5 * ms, 15 * ms, 35 * ms}); got != want {
			t.Errorf("passes of one that fails: %s, want %s", got, want)
		}
		if got, want := fmt.Sprint(passes["drifts"]), fmt.Sprint([]time.Duration{0, 60 * s, 90 * s, 150 * s}); got != want {
			t.Errorf("passes of one that asks for a minute: %s, want %s", got, want)
		}
	})
}

// The queue is handed to controller-runtime's own handler, as its source does.
func TestAUsersChangeOvertakesTheInitialListOfItsSpoke(t *testing.T) {
	q := New(Options[reconcile.Request]{Group: func(r reconcile.Request) string { return r.Namespace }})
	object := func(name, version string) client.Object {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "spoke", Name: name, ResourceVersion: version}}
	}
	h := &handler.EnqueueRequestForObject{}
	for i := range 3 {
		h.Create(t.Context(), event.CreateEvent{Object: object(fmt.Sprint(i), "1"), IsInInitialList: true}, q)
	}
	h.Update(t.Context(), event.UpdateEvent{ObjectOld: object("resynced", "1"), ObjectNew: object("resynced", "1")}, q)
	h.Update(t.Context(), event.UpdateEvent{ObjectOld: object("2", "1"), ObjectNew: object("2", "2")}, q)
	h.Create(t.Context(), event.CreateEvent{Object: object("new", "3")}, q)
	var got string
	for q.Len() > 0 {
		r, priority, _ := q.GetWithPriority()
		got += fmt.Sprintf("%s(%d) ", r.Name, priority)
	}
	if want := "2(0) new(0) 0(-100) 1(-100) resynced(-100) "; got != want {
		t.Errorf("taken: %s\nwant:  %s", got, want)
	}
}
