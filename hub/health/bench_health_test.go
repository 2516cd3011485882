package health

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// BenchmarkHealth measures the engine, in one run: against a bare loop that does the same
// on the wire, with a fleet of which a part swallows packets, and at rest. Each part adds
// to one table, which is printed at the end; docs/benchmarks.md says how to read it.
// Nothing fails for a goal that is missed: how fast it is, is for a person to judge who
// knows what else the machine did.
func BenchmarkHealth(b *testing.B) {
	progress("%s, GOMAXPROCS %d, load of the machine before: %s", runtime.Version(), runtime.GOMAXPROCS(0), load())
	var s sheet
	for _, part := range []struct {
		name    string
		measure func(*testing.B, *sheet)
	}{{"Floor", measureFloor}, {"Scale", measureScale}, {"Tick", measureTick}} {
		b.Run(part.name, func(b *testing.B) {
			if b.N > 1 {
				return // it has been measured, and takes as long as it takes
			}
			part.measure(b, &s)
			b.ReportMetric(0, "ns/op") // how long all of it took is no figure
		})
	}
	s.print(os.Stdout)
}

// sheet is the table. Its zero value is empty.
type sheet struct{ figures []figure }

// figure is one line of it.
type figure struct {
	name  string
	value float64
	unit  string
	goal  goal
}

// goal is what a figure is to be; the zero value: anything.
type goal struct {
	is    string // how it compares to bound
	bound float64
}

func atLeast(bound float64) goal { return goal{"at least", bound} }
func atMost(bound float64) goal  { return goal{"at most", bound} }
func under(bound float64) goal   { return goal{"under", bound} }

func (g goal) String() string {
	if g.is == "" {
		return ""
	}
	return fmt.Sprintf("%s %g", g.is, g.bound)
}

// verdict says in a word whether a value is what it is to be.
func (g goal) verdict(value float64) string {
	met := true
	switch g.is {
	case "":
		return ""
	case "at least":
		met = value >= g.bound
	case "at most":
		met = value <= g.bound
	case "under":
		met = value < g.bound
	}
	if met {
		return "met"
	}
	return "missed"
}

func (s *sheet) add(name string, value float64, unit string, wanted ...goal) {
	f := figure{name: name, value: value, unit: unit}
	if len(wanted) > 0 {
		f.goal = wanted[0]
	}
	s.figures = append(s.figures, f)
}

// title begins a section.
func (s *sheet) title(format string, args ...any) {
	s.figures = append(s.figures, figure{name: fmt.Sprintf(format, args...)})
}

func (s *sheet) print(to io.Writer) {
	if len(s.figures) == 0 {
		return
	}
	const columns = "%-46s %8s  %-12s %-14s %s"
	line := func(text string) { fmt.Fprintln(to, strings.TrimRight(text, " ")) }
	line(fmt.Sprintf("\n"+columns, "figure", "value", "unit", "goal", ""))
	for _, f := range s.figures {
		if f.unit == "" {
			line("\n" + f.name)
			continue
		}
		line(fmt.Sprintf(columns, "  "+f.name, plain(f.value), f.unit, f.goal, f.goal.verdict(f.value)))
	}
	line("")
}

// plain writes a number with as many digits as say something.
func plain(value float64) string {
	switch {
	case value == float64(int64(value)) || value >= 100:
		return fmt.Sprintf("%.0f", value)
	case value >= 10:
		return fmt.Sprintf("%.1f", value)
	case value >= 0.01:
		return fmt.Sprintf("%.2f", value)
	default:
		return fmt.Sprintf("%.4f", value)
	}
}

// progress tells whoever waits what is being measured.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stdout, "  "+format+"\n", args...)
}

// load is how many wanted to run on the machine lately, as the kernel counts it.
func load() string {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err.Error()
	}
	minute, _, _ := strings.Cut(string(content), " ")
	return minute
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

// quantile is the smallest value that a share of all does not exceed.
func quantile[T cmp.Ordered](of []T, share float64) T {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))]
}

func median[T cmp.Ordered](of []T) T { return quantile(of, 0.5) }

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
