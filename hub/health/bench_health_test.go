package health

import (
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/internal/testkit/figures"
)

// BenchmarkHealth measures the engine, in one run: against a bare loop that does the same
// on the wire, with a fleet of which a part swallows packets, and at rest. Each part adds
// to one table, which is printed at the end; docs/benchmarks.md says how to read it.
// Nothing fails for a goal that is missed: how fast it is, is for a person to judge who
// knows what else the machine did.
func BenchmarkHealth(b *testing.B) {
	figures.Progress("%s, GOMAXPROCS %d, load of the machine before: %s", runtime.Version(), runtime.GOMAXPROCS(0), figures.Load())
	var s figures.Sheet
	for _, part := range []struct {
		name    string
		measure func(*testing.B, *figures.Sheet)
	}{{"Floor", measureFloor}, {"Scale", measureScale}, {"Tick", measureTick}} {
		b.Run(part.name, func(b *testing.B) {
			if b.N > 1 {
				return // it has been measured, and takes as long as it takes
			}
			part.measure(b, &s)
			b.ReportMetric(0, "ns/op") // how long all of it took is no figure
		})
	}
	s.Print(os.Stdout)
}

// cpuTime is what this process, and no other, has used of the CPU so far.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(os.NewSyscallError("getrusage", err))
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// until waits for a condition that has no channel to wait on.
func until(b *testing.B, limit time.Duration, what string, condition func() bool) {
	b.Helper()
	end := time.NewTimer(limit)
	defer end.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-end.C:
			b.Fatalf("waited %s in vain: %s", limit, what)
		}
	}
}
