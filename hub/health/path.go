package health

import (
	"maps"
	"time"
)

const (
	// pathMisses is how many dials in a row must fail before a Proxy counts as one that
	// does not accept.
	pathMisses = 2
	// A spoke is told of its path once per pathRest in the long run, and pathBurst of it
	// at once.
	pathRest  = time.Minute
	pathBurst = 3 * pathRest
)

// reach is how the last probe of a Proxy fared at the dial.
type reach uint8

const (
	untried reach = iota
	accepted
	undialled // it has an address, and nobody there accepts
	unlocated // its name leads nowhere, which says nothing of the path
)

// paths knows of every spoke whether any of its proxies accepts a connection from the
// hub. Where a spoke has Managed ones they alone count: where an External proxy is has
// nothing to do with the spoke.
type paths struct {
	spokes map[string]*path
	fresh  bool                 // there is news since it was asked for last
	news   map[string]bool      // spokes whose path is another than was told, and what it is
	rests  map[string]time.Time // when what a spoke was told is worth none of its rest any more
}

func newPaths() *paths {
	return &paths{spokes: map[string]*path{}, news: map[string]bool{}, rests: map[string]time.Time{}}
}

type path struct {
	external, managed crowd
	told              bool // anything
	broken            bool
}

// crowd counts Proxies by how they fared.
type crowd [unlocated + 1]int

// members are those that count.
func (c crowd) members() int { return c[untried] + c[accepted] + c[undialled] }

func (c crowd) empty() bool { return c == crowd{} }

// add counts a Proxy in.
func (p *paths) add(spoke string, managed bool, as reach) {
	if p.spokes[spoke] == nil {
		p.spokes[spoke] = &path{}
	}
	p.count(spoke, managed, as, 1)
}

// move counts a Proxy that has fared otherwise than before.
func (p *paths) move(spoke string, managed bool, from, to reach) {
	if from != to {
		p.spokes[spoke].of(managed)[from]--
		p.count(spoke, managed, to, 1)
	}
}

// remove counts a Proxy out.
func (p *paths) remove(spoke string, managed bool, as reach) {
	p.count(spoke, managed, as, -1)
	if s := p.spokes[spoke]; s.managed.empty() && s.external.empty() {
		delete(p.spokes, spoke)
	}
}

func (p *path) of(managed bool) *crowd {
	if managed {
		return &p.managed
	}
	return &p.external
}

func (p *paths) count(spoke string, managed bool, as reach, n int) {
	s := p.spokes[spoke]
	s.of(managed)[as] += n
	broken, known := s.judge()
	if known && (!s.told || broken != s.broken) {
		s.told, s.broken = true, broken
		p.news[spoke], p.fresh = broken, true
	}
}

// judge says whether the path is broken, if that can be said: one proxy that does not
// accept may be down, and of one that has not been tried nobody knows. A broken path is
// so until a proxy accepts, or none is left.
func (p *path) judge() (broken, known bool) {
	c := p.managed
	if c.empty() {
		c = p.external
	}
	switch {
	case c[undialled] >= 2 && c[undialled] == c.members():
		return true, true
	case c[accepted] > 0, c.members() == 0 && p.broken, c.members() == 1 && c[undialled] == 1 && !p.broken:
		return false, true
	default:
		return false, false
	}
}

// take returns what is to be told now, and how long the next of it is away; never where
// there is none. A path that comes and goes is told of once in a while.
func (p *paths) take(now time.Time) (map[string]bool, time.Duration) {
	wait := never
	var told map[string]bool
	p.fresh = false
	if len(p.news) == 0 {
		return nil, never
	}
	maps.DeleteFunc(p.rests, func(_ string, until time.Time) bool { return !until.After(now) })
	for spoke, broken := range p.news {
		if rest := p.rests[spoke].Add(-pathBurst).Sub(now); rest > 0 {
			wait = min(wait, rest)
			continue
		}
		if told == nil {
			told = map[string]bool{}
		}
		told[spoke] = broken
		next := p.rests[spoke]
		if next.Before(now) {
			next = now
		}
		p.rests[spoke] = next.Add(pathRest)
		delete(p.news, spoke)
	}
	return told, wait
}
