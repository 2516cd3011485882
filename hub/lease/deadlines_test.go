package lease

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// thing knows its place, as what is in a heap must.
type thing struct {
	at    instant
	place int
}

func (d *thing) moved(place int) { d.place = place }

func TestDeadlinesComeInTheirOrderAndKnowTheirPlaces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d deadlines[*thing]
		var all []*thing
		instants := rapid.Map(rapid.IntRange(0, 20), func(n int) instant { return instant(n) })
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			some := func() int { return rapid.IntRange(0, len(all)-1).Draw(t, "which") }
			switch what := rapid.IntRange(0, 3).Draw(t, "what"); {
			case what < 2 || len(all) == 0:
				x := &thing{at: instants.Draw(t, "at")}
				all = append(all, x)
				d.add(x.at, x)
			case what == 2:
				x := all[some()]
				x.at = instants.Draw(t, "to")
				d.move(x.place, x.at)
			default:
				i := some()
				d.drop(all[i].place)
				all = slices.Delete(all, i, i+1)
			}
			for _, x := range all {
				if d.len() != len(all) || d.h[x.place].what != x || d.h[x.place].at != x.at {
					t.Fatalf("%d of %d: %+v", d.len(), len(all), x)
				}
			}
		}
		for last := instant(-1); d.len() > 0; {
			next, ok := d.due(20)
			if !ok || next.at < last {
				t.Fatalf("%d after %d, %v", next.at, last, ok)
			}
			last = next.at
			d.drop(0)
		}
	})
}
