package rest_test

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

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

func (g goal) String() string {
	if g.is == "" {
		return ""
	}
	return fmt.Sprintf("%s %g", g.is, g.bound)
}

// verdict says in a word whether a value is what it is to be.
func (g goal) verdict(value float64) string {
	switch {
	case g.is == "":
		return ""
	case g.is == "at least" && value >= g.bound, g.is == "at most" && value <= g.bound:
		return "met"
	default:
		return "missed"
	}
}

func (s *sheet) add(name string, value float64, unit string, wanted ...goal) {
	f := figure{name: name, value: value, unit: unit}
	if len(wanted) > 0 {
		f.goal = wanted[0]
	}
	s.figures = append(s.figures, f)
}

// ratios adds the median of as many ratios as there were rounds, and their range: the two
// of a ratio follow each other, since the machine may be another one a minute later.
func (s *sheet) ratios(name string, of, to []float64, wanted ...goal) {
	all := make([]float64, len(of))
	for i := range of {
		all[i] = of[i] / to[i]
	}
	s.add(name, median(all), "ratio", wanted...)
	s.add("  lowest and", slices.Min(all), "ratio")
	s.add("  highest of the rounds", slices.Max(all), "ratio")
}

// title begins a section.
func (s *sheet) title(format string, args ...any) {
	s.figures = append(s.figures, figure{name: fmt.Sprintf(format, args...)})
}

func (s *sheet) print(to io.Writer) {
	if len(s.figures) == 0 {
		return
	}
	const columns = "%-52s %8s  %-8s %-14s %s"
	line := func(text string) { fmt.Fprintln(to, strings.TrimRight(text, " ")) }
	line(fmt.Sprintf("\n"+columns, "figure", "value", "unit", "goal", ""))
	for _, f := range s.figures {
		if f.unit == "" {
			line("\n" + f.name)
			continue
		}
		line(fmt.Sprintf(columns, "  "+f.name, digits(f.value), f.unit, f.goal, f.goal.verdict(f.value)))
	}
	line("")
}

// digits writes a number with as many as say something.
func digits(value float64) string {
	switch {
	case value == float64(int64(value)) || value >= 100:
		return fmt.Sprintf("%.0f", value)
	case value >= 10:
		return fmt.Sprintf("%.1f", value)
	default:
		return fmt.Sprintf("%.2f", value)
	}
}

// progress tells whoever waits what is being measured.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stdout, "  "+format+"\n", args...)
}

// machineLoad is how many wanted to run on the machine lately, as the kernel counts it.
func machineLoad() string {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err.Error()
	}
	minute, _, _ := strings.Cut(string(content), " ")
	return minute
}

// median is the middle one.
func median[T cmp.Ordered](of []T) T {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

// nanosEach is how long one of so many took.
func nanosEach(took time.Duration, of int) float64 { return float64(took) / float64(of) }
