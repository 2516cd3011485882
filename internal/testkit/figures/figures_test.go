package figures

import (
	"strings"
	"testing"
)

func TestTheSheetSaysWhatIsMetAndWhatIsMissed(t *testing.T) {
	var s Sheet
	var b strings.Builder
	if s.Print(&b); b.Len() != 0 {
		t.Errorf("an empty sheet prints %q", b.String())
	}
	s.Title("Part %d", 1)
	s.Add("fast", 0.75, "ratio", AtLeast(0.75))
	s.Add("slow", 0.7499, "ratio", AtLeast(0.75))
	s.Add("small", 400, "bytes", AtMost(400))
	s.Add("large", 400.1, "bytes", AtMost(400))
	s.Add("below", 49.96, "ms", Under(50))
	s.Add("at it", 50, "ms", Under(50))
	s.Add("whatever", 0.0012, "s")
	s.Ratios("spread", []float64{1, 6, 3}, []float64{1, 2, 1})
	s.Print(&b)
	want := []string{
		"figure value unit goal", "", "Part 1",
		"fast 0.75 ratio at least 0.75 met", "slow 0.75 ratio at least 0.75 missed",
		"small 400 bytes at most 400 met", "large 400 bytes at most 400 missed",
		"below 50.0 ms under 50 met", "at it 50 ms under 50 missed", "whatever 0.0012 s",
		"spread 3 ratio", "lowest and 1 ratio", "highest of the rounds 3 ratio",
	}
	var got []string
	for line := range strings.Lines(strings.TrimSpace(b.String())) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestQuantiles(t *testing.T) {
	of := []int{5, 1, 4, 2, 3}
	if Median(of) != 3 || Quantile(of, 0.99) != 5 || Quantile(of, 0) != 1 || Quantile(of, 1) != 5 {
		t.Errorf("%d, %d, %d, %d", Median(of), Quantile(of, 0.99), Quantile(of, 0), Quantile(of, 1))
	}
}
