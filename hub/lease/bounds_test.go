package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// TestManyWhoWaitForManyAreServedWithoutViews has more selectors wait than there can be
// views of, over a fleet that recovers at once.
func TestManyWhoWaitForManyAreServedWithoutViews(t *testing.T) {
	p := newPool(Options{}, proxy("a", limit(1), health(fleet.Unhealthy)))
	attributes := map[string]string{}
	for i := range 3 * maxViews {
		attributes[fmt.Sprint("k", i)] = "v"
	}
	p.fleet.Upsert(*proxy("all", health(fleet.Unhealthy), func(p *fleet.Proxy) { p.Attributes = attributes }))
	var all []*waiter
	for i := range 3 * maxViews {
		all = append(all, p.late(t, Request{Selector: map[string]string{fmt.Sprint("k", i): "v"}}))
	}
	searches := p.views.searches
	p.fleet.SetVerdict(key("all"), p.fleet.Get(key("all")).Subject(), fleet.Verdict{Health: fleet.Healthy})
	for i, w := range all {
		if w.record == nil {
			t.Fatalf("%d of %d were served", i, len(all))
		}
	}
	if n := p.views.searches - searches; n != 0 {
		t.Errorf("%d searches under the fleet's lock", n)
	}
}

func TestAFewSelectorsTooManyAreNotAllMadeAnewEachTime(t *testing.T) {
	p := newPool(Options{})
	for i := range 3000 {
		attributes := map[string]string{}
		for k := range 40 {
			attributes[fmt.Sprint("k", k)] = "v"
		}
		p.fleet.Upsert(*proxy(fmt.Sprintf("p%04d", i), func(p *fleet.Proxy) { p.Attributes = attributes }))
	}
	ask := func(k int) *view {
		p.acquire(t, Request{Selector: map[string]string{fmt.Sprint("k", k): "v"}})
		q, _ := newQuery("", map[string]string{fmt.Sprint("k", k): "v"})
		return p.views.of[q.text]
	}
	const many = 30 // of which some twenty have room
	var before, kept int
	views := map[int]*view{}
	for k := range many {
		views[k] = ask(k)
	}
	for k := range many {
		if views[k] != nil {
			before++
		}
	}
	for range 3 {
		for k := range many {
			if v := ask(k); v != nil && v == views[k] {
				kept++
			}
		}
	}
	if before < 10 || before == many || kept != 3*before {
		t.Errorf("%d views, of which %d were found in three rounds", before, kept)
	}
	for range 3 { // one that is asked all the time gets its view in the end
		ask(many)
	}
	if ask(many) == nil {
		t.Error("a selector that is asked again and again has no view")
	}
}

func TestViewsOfProxiesThatGainAttributesTakeBoundedMemory(t *testing.T) {
	p := newPool(Options{})
	const n = 2000
	for i := range n {
		p.fleet.Upsert(*proxy(fmt.Sprint("p", i)))
	}
	attributes := map[string]string{}
	for k := range 100 {
		attributes[fmt.Sprint("k", k)] = "v"
		p.refused(t, Request{Selector: map[string]string{fmt.Sprint("k", k): "v"}})
	}
	for i := range n {
		p.fleet.Upsert(*proxy(fmt.Sprint("p", i), func(p *fleet.Proxy) { p.Attributes = attributes }))
	}
	if most := maxPlaces + maxShare*n; p.views.places > most {
		t.Errorf("%d places in %d views, at most %d", p.views.places, len(p.views.of), most)
	}
}

func TestOverlaysOfAFleetThatGrowsTakeBoundedMemory(t *testing.T) {
	p := newPool(Options{}, proxy("a"))
	p.views.maxOverlays = 100
	l := p.acquire(t, Request{})
	for i := range 20 {
		p.report(t, l.ID, Report{Result: Banned, Target: fmt.Sprint("t", i)})
		p.refused(t, Request{Target: fmt.Sprint("t", i)})
	}
	for i := range 2000 {
		p.fleet.Upsert(*proxy(fmt.Sprint("p", i)))
	}
	blocks := 0
	for _, o := range p.views.all.overlays {
		blocks += len(o.states) + overlayCost
	}
	if got := p.views.overlayBlocks; got > 100 || got != blocks {
		t.Errorf("%d blocks in overlays are counted, there are %d, at most 100", got, blocks)
	}
}

func TestViewsOfAFleetThatGrowsTakeBoundedMemory(t *testing.T) {
	p := newPool(Options{})
	for i := range maxViews {
		p.refused(t, Request{Selector: map[string]string{"k": "v"}, Cluster: "c", Target: "x.example"})
		p.refused(t, Request{Selector: map[string]string{fmt.Sprint("k", i%30): "v"}})
	}
	attributes := map[string]string{"k": "v"}
	for i := range 30 {
		attributes[fmt.Sprint("k", i)] = "v"
	}
	for i := range 2000 {
		p.fleet.Upsert(*proxy(fmt.Sprint("p", i), func(p *fleet.Proxy) { p.Attributes = attributes }))
		if most := maxPlaces + maxShare*(i+1); p.views.places > most {
			t.Fatalf("%d places in views, at most %d", p.views.places, most)
		}
	}
}

func TestTargetsOfNobodyTakeNoMemory(t *testing.T) {
	p := newPool(Options{}, proxy("a"))
	l := p.acquire(t, Request{})
	for i := range 100 {
		target := fmt.Sprintf("t%d.example", i)
		p.report(t, l.ID, Report{Result: Banned, Target: target})
		p.refused(t, Request{Target: target, Selector: map[string]string{"region": "none"}})
	}
	if n := p.views.overlays.Len(); n != 0 {
		t.Errorf("%d overlays on an empty view", n)
	}
}

func TestManySelectorsAndTargetsTakeBoundedMemory(t *testing.T) {
	p := newPool(Options{})
	for i := range 600 {
		px := proxy(fmt.Sprint("p", i), attr("n", fmt.Sprint(i%7)))
		px.Host = fmt.Sprintf("10.0.%d.%d", i/256, i%256)
		p.fleet.Upsert(*px)
	}
	for i := range 3 * maxViews {
		p.refused(t, Request{Selector: map[string]string{"n": fmt.Sprint("none", i)}})
	}
	for i := range 3 * maxViews {
		p.acquire(t, Request{Selector: map[string]string{"n": fmt.Sprint(i % 7)}, Cluster: "c", TTL: time.Duration(i + 1)})
	}
	if n := len(p.views.of); n > maxViews {
		t.Errorf("%d views", n)
	}
	for i := range 3 * maxViews { // targets that something rests from, on views that are dropped
		l := p.acquire(t, Request{TTL: time.Minute})
		p.report(t, l.ID, Report{Result: Banned, Target: fmt.Sprint("t", i)})
		p.acquire(t, Request{Selector: map[string]string{"n": "0"}, Target: fmt.Sprint("t", i)})
		p.refused(t, Request{Selector: map[string]string{"n": fmt.Sprint("nobody", i)}, Target: fmt.Sprint("t", i)})
	}
	overlays := len(p.views.all.overlays)
	for _, v := range p.views.of {
		overlays += len(v.overlays)
	}
	if got := p.views.overlays.Len(); got != overlays || got < 2 {
		t.Errorf("%d overlays in the list, %d on views", got, overlays)
	}
	p.views.maxOverlays = 10
	for i := range 20 {
		p.acquire(t, Request{Target: fmt.Sprint("t", i)})
	}
	if blocks := p.views.overlayBlocks; blocks > 10 || p.views.overlays.Len() > 10/overlayCost || p.views.overlays.Len() == 0 {
		t.Errorf("%d blocks in %d overlays", blocks, p.views.overlays.Len())
	}
	for i := range 100 { // each of all Proxies
		now := p.enter()
		p.views.get(query{cluster: "c", text: fmt.Sprint("all", i)})
		p.leave(now)
	}
	if most := maxPlaces + maxShare*600; p.views.places > most {
		t.Errorf("%d places in views, at most %d", p.views.places, most)
	}
	p.fleet.Retain("c", nil)
	if n := p.views.places; n != 0 {
		t.Errorf("%d places of nobody", n)
	}
}
