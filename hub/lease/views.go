package lease

import (
	"container/list"
	"math"
)

// A view costs a look at the whole fleet to make, and from then on a little at each
// change of one of its Proxies. So there are at most maxViews, and in all they have at
// most maxShare places for each Proxy and some for small fleets; the least recently used
// go first.
const (
	maxViews  = 128
	maxShare  = 16
	maxPlaces = 1 << 14
)

// views are the store's index: a view of all Proxies, and one of each query that was
// asked lately.
type views struct {
	all *view
	of  map[string]*view // by the query's canonical form
	// searches counts, for telling which view was used least recently.
	searches uint64
	places   int // of all in of

	overlays      *list.List // of *overlay, the most recently used first
	overlayBlocks int        // of all of them, at most maxOverlays
	maxOverlays   int
}

func newViews() *views {
	return &views{all: newView(query{}), of: map[string]*view{}, overlays: list.New(), maxOverlays: maxOverlayBlocks}
}

// get is the view of a query, made if need be.
func (vs *views) get(q query) *view {
	vs.searches++
	v := vs.of[q.text]
	switch {
	case q.matchesAll():
		return vs.all
	case v == nil:
		v = newView(q)
		v.fill(vs.all.blocks)
		vs.of[q.text] = v
		vs.places += v.size
		v.used = vs.searches
		vs.trim()
	}
	v.used = vs.searches
	return v
}

// trim drops what there is too much of, but for the most recently used.
func (vs *views) trim() {
	for len(vs.of) > maxViews || len(vs.of) > 1 && vs.places > maxPlaces+maxShare*vs.all.size {
		oldest, text := uint64(math.MaxUint64), ""
		for t, v := range vs.of {
			if v.used < oldest {
				oldest, text = v.used, t
			}
		}
		vs.drop(text)
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
}

// overlay is the view as it is for the target.
func (vs *views) overlay(v *view, t *target) *overlay {
	o := v.overlays[t]
	if o == nil {
		o = &overlay{view: v, target: t}
		v.overlays[t] = o
		o.recent = vs.overlays.PushFront(o)
	} else {
		vs.overlays.MoveToFront(o.recent)
	}
	if o.layout != v.layout {
		vs.overlayBlocks -= len(o.states)
		o.remake()
		vs.overlayBlocks += len(o.states)
		for vs.overlayBlocks > vs.maxOverlays && vs.overlays.Len() > 1 {
			vs.dropOverlay(vs.overlays.Back().Value.(*overlay))
		}
	}
	return o
}

func (vs *views) dropOverlay(o *overlay) {
	vs.overlays.Remove(o.recent)
	vs.overlayBlocks -= len(o.states)
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
