// Package figures is the table that a benchmark of several parts prints at its end, with
// the goals that its figures are to meet, and what is needed to fill it. Nothing fails for
// a goal that is missed: that is for a person to judge who knows what else the machine did.
package figures

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Sheet is the table. Its zero value is empty.
type Sheet struct{ lines []line }

// line is a figure or, without a unit, the title of a section.
type line struct {
	name  string
	value float64
	unit  string
	goal  Goal
}

// Goal is what a figure is to be; the zero value: anything.
type Goal struct {
	is    string // how it compares to bound
	bound float64
}

// AtLeast is met by the bound and what is above it.
func AtLeast(bound float64) Goal { return Goal{"at least", bound} }

// AtMost is met by the bound and what is below it.
func AtMost(bound float64) Goal { return Goal{"at most", bound} }

// Under is met by what is below the bound.
func Under(bound float64) Goal { return Goal{"under", bound} }

// String is the goal in words; empty for none.
func (g Goal) String() string {
	if g.is == "" {
		return ""
	}
	return fmt.Sprintf("%s %g", g.is, g.bound)
}

// verdict says in a word whether a value is what it is to be.
func (g Goal) verdict(value float64) string {
	switch {
	case g.is == "":
		return ""
	case g.is == "at least" && value >= g.bound, g.is == "at most" && value <= g.bound, g.is == "under" && value < g.bound:
		return "met"
	default:
		return "missed"
	}
}

// Title begins a section.
func (s *Sheet) Title(format string, args ...any) {
	s.lines = append(s.lines, line{name: fmt.Sprintf(format, args...)})
}

// Add adds a figure; wanted is its goal, if any.
func (s *Sheet) Add(name string, value float64, unit string, wanted ...Goal) {
	f := line{name: name, value: value, unit: unit}
	if len(wanted) > 0 {
		f.goal = wanted[0]
	}
	s.lines = append(s.lines, f)
}

// Ratios adds the median of as many ratios as there were rounds, and their range: the two
// of a ratio follow each other, since the machine may be another one a minute later.
func (s *Sheet) Ratios(name string, of, to []float64, wanted ...Goal) {
	all := make([]float64, len(of))
	for i := range of {
		all[i] = of[i] / to[i]
	}
	s.Add(name, Median(all), "ratio", wanted...)
	s.Add("  lowest and", slices.Min(all), "ratio")
	s.Add("  highest of the rounds", slices.Max(all), "ratio")
}

// Print writes the table, or nothing when it is empty.
func (s *Sheet) Print(to io.Writer) {
	if len(s.lines) == 0 {
		return
	}
	const columns = "%-54s %8s  %-12s %-14s %s"
	write := func(text string) { fmt.Fprintln(to, strings.TrimRight(text, " ")) }
	write(fmt.Sprintf("\n"+columns, "figure", "value", "unit", "goal", ""))
	for _, f := range s.lines {
		if f.unit == "" {
			write("\n" + f.name)
			continue
		}
		write(fmt.Sprintf(columns, "  "+f.name, digits(f.value), f.unit, f.goal, f.goal.verdict(f.value)))
	}
	write("")
}

// digits writes a number with as many as say something.
func digits(value float64) string {
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

// Progress tells whoever waits what is being measured.
func Progress(format string, args ...any) {
	fmt.Fprintf(os.Stdout, "  "+format+"\n", args...)
}

// Load is how many wanted to run on the machine lately, as the kernel counts it.
func Load() string {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err.Error()
	}
	minute, _, _ := strings.Cut(string(content), " ")
	return minute
}

// Quantile is the smallest value that a share of all does not exceed.
func Quantile[T cmp.Ordered](of []T, share float64) T {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))]
}

// Median is the middle one.
func Median[T cmp.Ordered](of []T) T { return Quantile(of, 0.5) }
