package fairqueue

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

// crowd is workers and adders that run into each other, and what they saw.
type crowd struct {
	t        *testing.T
	queue    *Queue[string]
	most     int32
	underWay map[string]*atomic.Int32 // by item and by group
	wanted   map[string]*atomic.Int64 // versions of an item, counted before it is added
	seen     map[string]*atomic.Int64 // the version that the last pass found
}

func newCrowd(t *testing.T, groups, items int, most int32) *crowd {
	c := &crowd{t: t, most: most, underWay: map[string]*atomic.Int32{}, wanted: map[string]*atomic.Int64{}, seen: map[string]*atomic.Int64{}}
	for g := range groups {
		c.underWay[fmt.Sprint(g)] = new(atomic.Int32)
		for i := range items {
			item := fmt.Sprintf("%d/%d", g, i)
			c.underWay[item], c.wanted[item], c.seen[item] = new(atomic.Int32), new(atomic.Int64), new(atomic.Int64)
		}
	}
	c.queue = New(Options[string]{
		Name:        "crowd",
		Group:       groupOf,
		Most:        int(most),
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Microsecond, time.Millisecond),
	})
	return c
}

func (c *crowd) work() {
	for {
		item, shutdown := c.queue.Get()
		if shutdown {
			return
		}
		if n := c.underWay[item].Add(1); n > 1 {
			c.t.Errorf("%d workers are on %s", n, item)
		}
		if n := c.underWay[groupOf(item)].Add(1); n > c.most {
			c.t.Errorf("%d of group %s are under way", n, groupOf(item))
		}
		c.seen[item].Store(c.wanted[item].Load())
		if rand.IntN(4) == 0 {
			<-time.After(time.Microsecond)
		}
		c.underWay[groupOf(item)].Add(-1)
		c.underWay[item].Add(-1)
		c.queue.Done(item)
	}
}

func (c *crowd) add(items []string, r *rand.Rand) {
	for range 3000 {
		item := items[r.IntN(len(items))]
		c.wanted[item].Add(1)
		switch r.IntN(5) {
		case 0:
			c.queue.AddWithOpts(priorityqueue.AddOpts{Priority: ptr.To(-1)}, item)
		case 1:
			c.queue.AddAfter(item, time.Duration(r.IntN(50))*time.Microsecond)
		case 2:
			c.queue.AddRateLimited(item)
		default:
			c.queue.Add(item)
		}
		if r.IntN(20) == 0 {
			<-time.After(time.Duration(r.IntN(20)) * time.Microsecond)
		}
	}
}

// Were a wakeup lost, the bubble would come to rest with something not seen.
func TestNoChangeIsLostInACrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 5, 10, 2)
		var items []string
		for item := range c.wanted {
			items = append(items, item)
		}
		for range 8 {
			go c.work()
		}
		var adders sync.WaitGroup
		for range 4 {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			adders.Go(func() { c.add(items, rand.New(rand.NewPCG(seed, 0))) })
		}
		adders.Wait()
		<-time.After(time.Second) // longer than any delay
		synctest.Wait()
		for item, wanted := range c.wanted {
			if seen := c.seen[item].Load(); seen != wanted.Load() {
				t.Errorf("%s: the last pass saw version %d of %d", item, seen, wanted.Load())
			}
		}
		c.queue.ShutDown()
	})
}
