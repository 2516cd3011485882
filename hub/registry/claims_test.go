package registry

import (
	"testing"
	"time"
)

func TestHolder(t *testing.T) {
	of := func(name string, age int, holds, wants string) claim {
		return claim{name, noon.Add(-time.Duration(age) * time.Second), holds, wants}
	}
	for _, tc := range []struct {
		name   string
		claims []claim
		want   string
	}{
		{"nobody", []claim{of("a", 1, "other", "")}, ""},
		{"the only one", []claim{of("a", 1, "x", ""), of("b", 9, "other", "")}, "a"},
		{"the older", []claim{of("a", 1, "x", ""), of("b", 2, "x", "")}, "b"},
		{"the older, that is not there yet", []claim{of("a", 1, "x", ""), of("b", 2, "", "x")}, "b"},
		{"who holds it, before a younger one that would have it", []claim{of("a", 1, "y", "x"), of("b", 2, "x", "")}, "b"},
		{"who still holds it while having another", []claim{of("a", 2, "x", "y"), of("b", 1, "", "x")}, "a"},
		{"of one age the first by name", []claim{of("b", 1, "x", ""), of("a", 1, "x", "")}, "a"},
		{"the local one, which has no age", []claim{of("a", 1000, "x", ""), {"z", time.Time{}, "x", ""}}, "z"},
	} {
		if got := holder(tc.claims, "x"); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
	if got := holder([]claim{of("a", 1, "", "")}, ""); got != "" {
		t.Errorf("%q holds no cluster at all", got)
	}
}
