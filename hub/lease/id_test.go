package lease

import (
	"errors"
	"strings"
	"testing"
)

func TestALeaseHasOneSpelling(t *testing.T) {
	p := newPool(Options{}, proxy("a"))
	seen := map[string]bool{}
	for range 200 {
		l := p.acquire(t, Request{})
		if seen[l.ID] || len(l.ID) != 26 {
			t.Fatalf("id %q", l.ID)
		}
		seen[l.ID] = true
		last := strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", l.ID[25])
		for _, other := range []string{
			"", l.ID[:25], l.ID + "A", l.ID + "======", strings.ToLower(l.ID), l.ID[:25] + "\n",
			l.ID[:25] + string("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[last^1]), // means the same bytes
		} {
			if _, err := p.Get(client, other); !errors.Is(err, ErrUnknownLease) {
				t.Errorf("%q for %q: %v", other, l.ID, err)
			}
		}
	}
}
