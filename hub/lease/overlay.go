package lease

import "container/list"

// maxOverlayBlocks bounds what all overlays hold, at 56 bytes a block: some 15 MB, or
// 500 targets over the whole of a fleet of 100,000.
const maxOverlayBlocks = 1 << 18

// overlay is a view as it is for one target. Proxies that rest from the target gain no
// leases and so would be the view's best for ever; the overlay knows the best of each
// block without them. It is brought up to date when it is asked, block by block where
// something has changed, so that a change costs nothing for all the targets that nobody
// asks about.
type overlay struct {
	view   *view
	target *target
	states []blockState  // one for each block of the view
	recent *list.Element // in the store's list, the most recently used first
}

// overlayCost is how many blocks' worth of memory an overlay takes beside its states.
const overlayCost = 4

// blockState is what a target knows of one block.
type blockState struct {
	// seen is the view's clock when best was found, zero when it has to be found anew;
	// shaped is the block's when resting was.
	seen, shaped uint64
	best         rank
	// free is when the first of those that rest no longer does and is free. It is
	// known where the block is the view's only one, has nobody free, and has such.
	free    instant
	resting [blockSize / 64]uint64
}

func (s *blockState) rests(at int) bool { return s.resting[at/64]>>(at%64)&1 == 1 }

func (s *blockState) mark(at int, rests bool) {
	if rests {
		s.resting[at/64] |= 1 << (at % 64)
	} else {
		s.resting[at/64] &^= 1 << (at % 64)
	}
	s.seen = 0
}

// newOverlay starts from what rests from the target.
func newOverlay(v *view, t *target) *overlay {
	o := &overlay{view: v, target: t, states: make([]blockState, len(v.blocks))}
	for i, b := range v.blocks {
		o.states[i].shaped = b.shaped
	}
	for _, d := range t.ends.h {
		if sl := d.what.address.slot; sl != nil {
			if p := v.of(sl); p != nil {
				o.mark(p, true)
			}
		}
	}
	return o
}

// mark takes note that a Proxy begins or ends to rest.
func (o *overlay) mark(p *place, rests bool) {
	// Where the block's members have changed since, all are looked up anew.
	o.states[p.block.at].mark(int(p.at), rests)
}

// choose returns the first of the Proxies with the least rank that do not rest from the
// target, or nil when none of these is free; then retry is when the first Proxy may
// be, if ok.
func (o *overlay) choose() (p *place, retry instant, ok bool) {
	v := o.view
	best, in := leaving, 0
	for i := range o.states {
		st := &o.states[i]
		if st.seen < v.changed[i] {
			o.look(v.blocks[i], st)
		}
		if st.best < best {
			best, in = st.best, i
		}
	}
	if best.class() == isFree {
		st := &o.states[in]
		b := v.blocks[in]
		for i, r := range b.ranks {
			if r == best && !st.rests(i) {
				return b.places[i], 0, true
			}
		}
	}
	retry, ok = best.until()
	if at := o.firstRest(); at > 0 && (!ok || at < retry) {
		retry, ok = at, true
	}
	return nil, retry, ok
}

// firstRest is when the first of those that rest may be free, zero when none will be by
// itself: exactly in a small view, and else the first end of any rest from the target.
func (o *overlay) firstRest() instant {
	counts := &o.view.counts
	switch {
	case counts[isFree]+counts[isFull]+counts[isCooling] == 0:
		return 0
	case len(o.states) == 1:
		return o.states[0].free
	}
	at, _ := o.target.ends.first()
	return at
}

// look finds out what is best in a block.
func (o *overlay) look(b *block, st *blockState) {
	v := o.view
	if st.shaped != b.shaped {
		*st = blockState{shaped: b.shaped}
		for i, p := range b.places {
			if o.target.cooldown(p.slot) != nil {
				st.mark(i, true)
			}
		}
	}
	st.seen, st.free = v.clock, 0
	if st.resting == [blockSize / 64]uint64{} {
		st.best = v.best[b.at]
		return
	}
	st.best = leaving
	for i, r := range b.ranks {
		if r < st.best && !st.rests(i) {
			st.best = r
		}
	}
	if len(v.blocks) == 1 && st.best.class() != isFree {
		st.free = o.firstFree(b, st)
	}
}

// firstFree is when the first of those that rest is free, zero when none will be by
// itself.
func (o *overlay) firstFree(b *block, st *blockState) (first instant) {
	for i, r := range b.ranks {
		if !st.rests(i) || r >= sick {
			continue
		}
		at := o.target.cooldown(b.places[i].slot).ends
		if until, blocked := r.until(); blocked {
			at = max(at, until)
		}
		if first == 0 || at < first {
			first = at
		}
	}
	return first
}
