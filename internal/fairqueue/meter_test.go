package fairqueue

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// story is told to a queue by a controller: what a dashboard shows must not depend on
// which queue it was.
func story(q workqueue.TypedRateLimitingInterface[string]) {
	q.Add("a/1")
	q.Add("a/2")
	q.Add("a/2")
	q.Add("a/3")
	first, _ := q.Get()
	q.Add(first)
	second, _ := q.Get()
	q.AddAfter(second, time.Second)
	q.AddRateLimited("a/4")
	<-time.After(2 * time.Second)
	q.Done(first)
	<-time.After(time.Second)
	q.Done(second)
	q.Get()
	<-time.After(5 * time.Second)
	synctest.Wait()
}

// shown are the values of all workqueue metrics of that name, of a histogram
// its count and sum.
func shown(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["name"] != name || labels["controller"] != name {
				continue
			}
			values[f.GetName()] += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			if h := m.GetHistogram(); h != nil {
				values[f.GetName()+"_count"] += float64(h.GetSampleCount())
				values[f.GetName()+"_sum"] += h.GetSampleSum()
			}
		}
	}
	return values
}

func TestMetricsAreThoseOfAWorkqueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := func() workqueue.TypedRateLimiter[string] {
			return workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Minute)
		}
		plain := workqueue.NewTypedRateLimitingQueueWithConfig(limiter(), workqueue.TypedRateLimitingQueueConfig[string]{Name: "told plain"})
		story(plain)
		want := shown(t, "told plain")
		plain.ShutDown()
		fair := New(Options[string]{Name: "told fair", RateLimiter: limiter()})
		story(fair)
		got := shown(t, "told fair")
		fair.ShutDown()
		if !maps.Equal(got, want) {
			t.Errorf("metrics: %v\nwant:    %v", got, want)
		}
		for _, name := range []string{"depth", "adds_total", "retries_total", "queue_duration_seconds_count", "work_duration_seconds_sum", "unfinished_work_seconds", "longest_running_processor_seconds"} {
			if want["workqueue_"+name] == 0 {
				t.Errorf("workqueue_%s has no part in the story: %v", name, want)
			}
		}
	})
}
