package lease

import "container/list"

// A view costs a look at the whole fleet to make, and from then on a little at each
// change of one of its Proxies. So there are at most maxViews, and in all they have at
// most maxShare places for each Proxy and some for small fleets; the least recently used
// go first.
const (
	maxViews  = 128
	maxShare  = 16
	maxPlaces = 1 << 14
)

// maxAsked is of how many queries is known when they were asked last.
const maxAsked = 8 * maxViews

// views are the store's index: a view of all Proxies, and one of each query that was
// asked lately.
type views struct {
	all *view
	of  map[string]*view // by the query's canonical form
	// searches counts, for telling which view was used least recently; asked is of queries
	// without a view.
	searches uint64
	asked    map[string]asked
	places   int // of all in of

	overlays      *list.List // of *overlay, the most recently used first
	overlayBlocks int        // of all of them, and for each overlayCost; at most maxOverlays
	maxOverlays   int
}

// asked is when a query was asked last, and how many Proxies matched it then.
type asked struct {
	at   uint64
	size int
}

func newViews() *views {
	vs := &views{of: map[string]*view{}, asked: map[string]asked{}, overlays: list.New(), maxOverlays: maxOverlayBlocks}
	vs.all = vs.newView(query{})
	return vs
}

func (vs *views) newView(q query) *view {
	v := newView(q)
	v.resized = func(blocks int) { vs.overlayBlocks += blocks }
	return v
}

// get is the view of a query, made if need be; nil when it is not worth while.
func (vs *views) get(q query) *view {
	vs.searches++
	if q.matchesAll() {
		return vs.all
	}
	v := vs.of[q.text]
	if v == nil {
		last, known := vs.asked[q.text]
		if !known {
			last.size = vs.all.size / 2 // who knows
		}
		if vs.crowded(last.size) && vs.oldest().used >= last.at {
			return nil
		}
		v = vs.newView(q)
		v.fill(vs.all.blocks)
		vs.of[q.text] = v
		vs.places += v.size
		v.used = vs.searches
		delete(vs.asked, q.text)
		vs.trim()
	}
	v.used = vs.searches
	return v
}

// crowded says that a view of so many would push one out. Those that were used since the new
// query was asked the last time are of more use: with a few queries too many, asked in
// turn, each would otherwise push out the one that is asked next.
func (vs *views) crowded(size int) bool {
	return len(vs.of) >= maxViews || len(vs.of) > 0 && vs.places+size > maxPlaces+maxShare*vs.all.size
}

// oldest is the view that was used least recently.
func (vs *views) oldest() (oldest *view) {
	for _, v := range vs.of {
		if oldest == nil || v.used < oldest.used {
			oldest = v
		}
	}
	return oldest
}

// scan is a search without a view.
func (vs *views) scan(q query, t *target, now instant) (best *slot, none *NoMatchError) {
	var counts [classes]int
	first := leaving
	for _, b := range vs.all.blocks {
		for i, p := range b.places {
			if !q.matches(p.slot) {
				continue
			}
			r := b.ranks[i]
			if c := t.cooldown(p.slot); c != nil {
				r = r.resting(c.ends)
			}
			counts[r.class()]++
			if r < first {
				first, best = r, p.slot
			}
		}
	}
	if len(vs.asked) >= maxAsked {
		clear(vs.asked)
	}
	size := 0
	for _, n := range counts {
		size += n
	}
	vs.asked[q.text] = asked{vs.searches, size}
	if first.class() == isFree {
		return best, nil
	}
	retry, ends := first.until()
	return nil, noMatch(&counts, retry, ends, now)
}

// trim drops what there is too much of, but for the most recently used.
func (vs *views) trim() {
	for vs.overlayBlocks > vs.maxOverlays && vs.overlays.Len() > 1 {
		vs.dropOverlay(vs.overlays.Back().Value.(*overlay))
	}
	for len(vs.of) > maxViews || len(vs.of) > 1 && vs.places > maxPlaces+maxShare*vs.all.size {
		vs.drop(vs.oldest().query.text)
	}
}

func (vs *views) drop(text string) {
	v := vs.of[text]
	delete(vs.of, text)
	vs.places -= v.size
	for _, o := range v.overlays {
		vs.dropOverlay(o)
	}
	for _, b := range v.blocks {
		for _, p := range b.places {
			p.unlink()
		}
	}
}

// add puts a slot that is in no view into those that it belongs to.
func (vs *views) add(sl *slot) {
	vs.all.insert(sl)
	vs.sort(sl)
}

// sort sees to it that the slot is in the views that match its Proxy, the one of all
// apart.
func (vs *views) sort(sl *slot) {
	for _, v := range vs.of {
		switch p := v.of(sl); {
		case p == nil && v.query.matches(sl):
			v.insert(sl)
			vs.places++
		case p != nil && !v.query.matches(sl):
			v.remove(p)
			vs.places--
		}
	}
	vs.trim()
}

// remove takes the slot out of all views.
func (vs *views) remove(sl *slot) {
	for len(sl.places) > 0 {
		p := sl.places[len(sl.places)-1]
		v := p.block.view
		v.remove(p)
		if v != vs.all {
			vs.places--
		}
	}
	vs.trim()
}

// overlay is the view as it is for the target.
func (vs *views) overlay(v *view, t *target) *overlay {
	o := v.overlays[t]
	if o == nil {
		o = newOverlay(v, t)
		v.overlays[t] = o
		o.recent = vs.overlays.PushFront(o)
		vs.overlayBlocks += len(o.states) + overlayCost
		vs.trim()
		return o
	}
	vs.overlays.MoveToFront(o.recent)
	return o
}

func (vs *views) dropOverlay(o *overlay) {
	vs.overlays.Remove(o.recent)
	vs.overlayBlocks -= len(o.states) + overlayCost
	delete(o.view.overlays, o.target)
}

// forget drops all that is kept for a target that nothing rests from any more.
func (vs *views) forget(t *target) {
	if o := vs.all.overlays[t]; o != nil {
		vs.dropOverlay(o)
	}
	for _, v := range vs.of {
		if o := v.overlays[t]; o != nil {
			vs.dropOverlay(o)
		}
	}
}
