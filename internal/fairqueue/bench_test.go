package fairqueue

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// fillAndDrain adds 100,000 items of one group and then one of another, has
// them worked off, and returns how long that took and in which place the one came.
func fillAndDrain(q workqueue.TypedInterface[string], items []string) (took time.Duration, place int) {
	start := time.Now()
	for _, item := range items {
		q.Add(item)
	}
	for i := range items {
		item, _ := q.Get()
		if item == items[len(items)-1] {
			place = i + 1
		}
		q.Done(item)
	}
	return time.Since(start), place
}

// BenchmarkAgainstPlain compares with client-go's plain queue, which knows no
// groups, in the same run and under the same load of the machine.
func BenchmarkAgainstPlain(b *testing.B) {
	var items []string
	for i := range 100_000 {
		items = append(items, fmt.Sprintf("crowd/%d", i))
	}
	items = append(items, "single/1")
	for _, name := range []string{"", "bench"} {
		b.Run(map[bool]string{true: "without metrics", false: "with metrics"}[name == ""], func(b *testing.B) {
			b.ReportAllocs()
			var plain, fair time.Duration
			var plainPlace, fairPlace int
			for b.Loop() {
				p := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Name: name})
				took, place := fillAndDrain(p, items)
				plain, plainPlace = plain+took, place
				p.ShutDown()
				f := New(Options[string]{Name: name, Group: groupOf, Most: 4})
				took, place = fillAndDrain(f, items)
				fair, fairPlace = fair+took, place
				f.ShutDown()
			}
			ops := float64(b.N * len(items))
			b.ReportMetric(float64(fair)/float64(plain), "x-plain")
			b.ReportMetric(float64(fair)/ops, "ns/item")
			b.ReportMetric(float64(fairPlace), "place")
			b.ReportMetric(float64(plainPlace), "plain-place")
		})
	}
}
