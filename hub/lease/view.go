package lease

import (
	"slices"
	"sort"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// blockSize is how many Proxies a block holds at most. To change a rank costs a look at
// one block, to choose costs a look at the best of each block; so it should be near the
// root of the fleet's size. A look at 256 ranks takes some 100 ns.
const blockSize = 256

// view is all Proxies that one selector and cluster match, in the order of their keys,
// with the rank of each. It is cut into blocks that know their best.
type view struct {
	query    query
	blocks   []*block
	best     []rank   // of each block
	changed  []uint64 // the clock when a rank or member of each block changed last
	clock    uint64   // counts changes
	size     int
	counts   [classes]int
	overlays map[*target]*overlay
	used     uint64 // by the store's count of searches
	// resized is told how many blocks there are more in all overlays.
	resized func(blocks int)
}

// block is a run of a view's Proxies.
type block struct {
	view   *view
	at     int // its place among the view's blocks
	shaped uint64
	ranks  []rank
	places []*place
}

// place is where a slot is in a view.
type place struct {
	slot  *slot
	block *block
	at    int16 // in the block
	in    int16 // among the slot's places
}

// link puts the place among its slot's.
func (p *place) link() {
	p.in = int16(len(p.slot.places))
	p.slot.places = append(p.slot.places, p)
}

// unlink takes it out.
func (p *place) unlink() {
	all := p.slot.places
	last := len(all) - 1
	all[p.in], all[last].in = all[last], p.in
	all[last] = nil
	p.slot.places = all[:last]
}

func newView(q query) *view {
	return &view{query: q, clock: 1, overlays: map[*target]*overlay{}}
}

// of is the slot's place in the view, or nil.
func (v *view) of(sl *slot) *place {
	for _, p := range sl.places {
		if p.block.view == v {
			return p
		}
	}
	return nil
}

// tick notes that something of the block has changed.
func (v *view) tick(b *block) {
	v.clock++
	v.changed[b.at] = v.clock
}

// set changes the rank of one Proxy.
func (v *view) set(p *place, to rank) {
	b := p.block
	from := b.ranks[p.at]
	if from == to {
		return
	}
	b.ranks[p.at] = to
	v.counts[from.class()]--
	v.counts[to.class()]++
	v.tick(b)
	switch best := v.best[b.at]; {
	case to < best:
		v.best[b.at] = to
	case from == best: // others may have as good a one
		v.best[b.at] = slices.Min(b.ranks)
	}
}

// choose returns the first of the Proxies with the least rank, or nil when none is
// free; best is that least rank, leaving when the view is empty.
func (v *view) choose() (p *place, best rank) {
	best = leaving
	in := 0
	for i, r := range v.best {
		if r < best {
			best, in = r, i
		}
	}
	if best.class() != isFree {
		return nil, best
	}
	b := v.blocks[in]
	return b.places[slices.Index(b.ranks, best)], best
}

// seek is where a Proxy with this key is or would be. It is not behind the end of a
// block unless that is the last.
func (v *view) seek(key fleet.Key) (in, at int) {
	in = sort.Search(len(v.blocks), func(i int) bool { return v.blocks[i].last().Compare(key) >= 0 })
	if in == len(v.blocks) {
		if in == 0 {
			return 0, 0
		}
		return in - 1, len(v.blocks[in-1].places)
	}
	at, _ = slices.BinarySearchFunc(v.blocks[in].places, key, func(p *place, k fleet.Key) int { return p.slot.proxy.Compare(k) })
	return in, at
}

func (b *block) last() fleet.Key { return b.places[len(b.places)-1].slot.proxy.Key }

// insert puts a slot into its place.
func (v *view) insert(sl *slot) {
	in, at := v.seek(sl.proxy.Key)
	switch {
	case len(v.blocks) == 0:
		v.addBlock(0, nil, nil)
	case len(v.blocks[in].places) < blockSize:
	case at == blockSize: // behind the last: what comes in order fills its blocks
		in, at = in+1, 0
		v.addBlock(in, nil, nil)
	default:
		v.split(in)
		if half := len(v.blocks[in].places); at > half {
			in, at = in+1, at-half
		}
	}
	b := v.blocks[in]
	p := &place{slot: sl, block: b}
	p.link()
	b.places = slices.Insert(b.places, at, p)
	b.ranks = slices.Insert(b.ranks, at, sl.rank)
	v.size++
	v.counts[sl.rank.class()]++
	v.best[in] = min(v.best[in], sl.rank)
	v.reshape(b, at)
}

// fill puts into an empty view what matches of these blocks, with room in each of its own
// for some that come later.
func (v *view) fill(from []*block) {
	const many = blockSize * 3 / 4
	var members []*slot
	flush := func() {
		if len(members) == 0 {
			return
		}
		places, ranks := make([]*place, len(members)), make([]rank, len(members))
		room := make([]place, len(members)) // of all of them: one by one takes twice as long
		for i, sl := range members {
			room[i].slot = sl
			places[i], ranks[i] = &room[i], sl.rank
			places[i].link()
			v.counts[sl.rank.class()]++
		}
		v.size += len(members)
		v.addBlock(len(v.blocks), places, ranks)
		members = members[:0]
	}
	for _, b := range from {
		for _, p := range b.places {
			if v.query.matches(p.slot) {
				if members = append(members, p.slot); len(members) == many {
					flush()
				}
			}
		}
	}
	flush()
}

// remove takes the slot's place out of the view, and out of the slot's list.
func (v *view) remove(p *place) {
	b, at := p.block, int(p.at)
	p.unlink()
	v.size--
	v.counts[b.ranks[at].class()]--
	b.places = slices.Delete(b.places, at, at+1)
	b.ranks = slices.Delete(b.ranks, at, at+1)
	if len(b.places) == 0 {
		v.dropBlock(b.at)
		return
	}
	v.best[b.at] = slices.Min(b.ranks)
	v.reshape(b, at)
	v.merge(b.at)
}

// reshape notes that the members of a block have changed from a place on.
func (v *view) reshape(b *block, from int) {
	for i, p := range b.places[from:] {
		p.at = int16(from + i)
	}
	v.tick(b)
	b.shaped = v.clock
}

// addBlock makes a block of these members at this place.
func (v *view) addBlock(at int, places []*place, ranks []rank) {
	b := &block{view: v, places: places, ranks: ranks}
	best := leaving
	if len(ranks) > 0 {
		best = slices.Min(ranks)
	}
	v.blocks = slices.Insert(v.blocks, at, b)
	v.best = slices.Insert(v.best, at, best)
	v.changed = slices.Insert(v.changed, at, 0)
	for _, o := range v.overlays {
		o.states = slices.Insert(o.states, at, blockState{})
	}
	v.moved(at, len(v.overlays))
	for _, p := range places {
		p.block = b
	}
	v.reshape(b, 0)
}

func (v *view) dropBlock(at int) {
	v.blocks = slices.Delete(v.blocks, at, at+1)
	v.best = slices.Delete(v.best, at, at+1)
	v.changed = slices.Delete(v.changed, at, at+1)
	for _, o := range v.overlays {
		o.states = slices.Delete(o.states, at, at+1)
	}
	v.moved(at, -len(v.overlays))
}

// moved notes that the blocks from here on have another place.
func (v *view) moved(from, states int) {
	for i, b := range v.blocks[from:] {
		b.at = from + i
	}
	if v.resized != nil && states != 0 {
		v.resized(states)
	}
	if len(v.blocks) == 1 {
		v.tick(v.blocks[0]) // of an only one overlays know more; see blockState.free
	}
}

func (v *view) split(in int) {
	b := v.blocks[in]
	half := len(b.places) / 2
	places, ranks := slices.Clone(b.places[half:]), slices.Clone(b.ranks[half:])
	clear(b.places[half:])
	b.places, b.ranks = b.places[:half], b.ranks[:half]
	v.best[in] = slices.Min(b.ranks)
	v.reshape(b, 0)
	v.addBlock(in+1, places, ranks)
}

// merge joins the block with the one behind it when both are all but empty, so that a
// fleet that has shrunk is not looked at in crumbs.
func (v *view) merge(at int) {
	if at == len(v.blocks)-1 {
		at--
	}
	if at < 0 || len(v.blocks[at].places)+len(v.blocks[at+1].places) > blockSize/2 {
		return
	}
	b, next := v.blocks[at], v.blocks[at+1]
	from := len(b.places)
	b.places, b.ranks = append(b.places, next.places...), append(b.ranks, next.ranks...)
	for _, p := range next.places {
		p.block = b
	}
	v.best[at] = min(v.best[at], v.best[at+1])
	v.dropBlock(at + 1)
	v.reshape(b, from)
}

// find is the slot with this key, or nil.
func (v *view) find(key fleet.Key) *slot {
	in, at := v.seek(key)
	if in >= len(v.blocks) || at >= len(v.blocks[in].places) {
		return nil
	}
	if sl := v.blocks[in].places[at].slot; sl.proxy.Key == key {
		return sl
	}
	return nil
}
