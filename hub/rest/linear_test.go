package rest_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// checkTimeout is a hundred times what a check takes.
const checkTimeout = 60 * time.Second

func TestLinearCrawlersAtOnceAreAnsweredAsOneAfterTheOther(t *testing.T) {
	seed := rand.Uint64()
	seen := map[string]int{}
	for range 2 {
		var rounds [10]*round
		var all sync.WaitGroup
		for i := range rounds {
			r := newRound(t)
			rounds[i] = r
			// Where nobody waits there is more to choose from.
			all.Go(func() { r.play(cast{busy: 6, turns: 50, patient: i % 2 * 3}, seed+uint64(i)) })
		}
		all.Wait()
		for _, r := range rounds {
			r.events.mustHold(t)
			r.events.count(seen)
		}
		seed += uint64(len(rounds))
	}
	for _, what := range wanted {
		if seen[what] == 0 {
			t.Errorf("no round had this: %s", what)
		}
	}
	t.Log(seen)
}

// wanted is what the rounds must have had, or they have shown nothing about it.
var wanted = []string{
	"acquire 201", "acquire 201 again by its key", "acquire 201 after a wait", "acquire 409 after a wait",
	"acquire 409: unhealthy", "acquire 409: at capacity", "acquire 409: in cooldown",
	"get 200", "get 404", "get 410", "renew 200", "renew 404", "renew 410",
	"release 204", "report 204", "report 204 again", "report 404", "flip 0", "ring in the middle of calls",
}

// count adds what the history has.
func (h history) count(seen map[string]int) {
	granted := map[string]bool{}
	for _, e := range h {
		see := func(is bool, detail string) {
			if is {
				seen[fmt.Sprintf("%s %d%s", e.what, e.status, detail)]++
			}
		}
		see(true, "")
		if e.what != acquires {
			continue
		}
		see(granted[e.id], " again by its key")
		see(e.ask.Wait > 0 && (e.id == "" || e.to-e.from > 2*tick), " after a wait")
		see(e.told.Unhealthy > 0, ": unhealthy")
		see(e.told.AtCapacity > 0, ": at capacity")
		see(e.told.InCooldown > 0, ": in cooldown")
		granted[e.id] = e.id != ""
	}
	r := h.replay()
	for _, same := range r.notes {
		seen["report 204 again"] += same.len() - 1
	}
	for _, e := range r.events {
		if e.what == rings && slices.ContainsFunc(h, func(c event) bool { return c.from < e.to && e.from < c.to && c.ask.Wait == 0 }) {
			seen["ring in the middle of calls"]++
		}
	}
}

// mustHold fails the test unless the history is that of a server which did one thing
// after the other.
func (h history) mustHold(t *testing.T) {
	t.Helper()
	r := h.replay()
	ops := r.operations()
	switch porcupine.CheckOperationsTimeout(r.model(), ops, checkTimeout) {
	case porcupine.Ok:
	case porcupine.Unknown:
		t.Errorf("not decided in %v, with %d events: fewer turns, or fewer crawlers at once, are decided faster", checkTimeout, len(ops))
	default:
		t.Error(r.explain(ops))
	}
}

// explain shows how far the events can be put into an order that is legal, and what cannot
// come next.
func (r *replay) explain(ops []porcupine.Operation) string {
	model := r.model()
	_, info := porcupine.CheckOperationsVerbose(model, ops, checkTimeout)
	orders := info.PartialLinearizationsOperations()[0]
	longest := slices.MaxFunc(append(orders, nil), func(a, b []porcupine.Operation) int { return len(a) - len(b) })
	w := newWorld()
	played := map[any]bool{}
	for _, op := range longest {
		r.step(&w, op.Input.(*event))
		played[op.Input] = true
	}
	left := slices.DeleteFunc(slices.Clone(ops), func(op porcupine.Operation) bool { return played[op.Input] })
	first := slices.MinFunc(left, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	text := fmt.Sprintf("no order of the events explains the answers. After %d of %d the server is\n%sand none of these can be next:\n", len(longest), len(ops), r.describe(w))
	for _, op := range left {
		if op.Call <= first.Return {
			text += fmt.Sprintf("%v to %v: %v\n", time.Duration(op.Call), time.Duration(op.Return), op.Input)
		}
	}
	// The test's own directory would go with the test, and this cannot be had again.
	f, err := os.CreateTemp("", "linear-*.html")
	if err == nil {
		err = porcupine.Visualize(model, info, f)
		f.Close()
	}
	if err != nil {
		return text + err.Error()
	}
	return text + "drawn in " + f.Name()
}
