package health

// reach is how the last probe of a Proxy fared at the dial.
type reach uint8

const (
	untried reach = iota
	accepted
	undialled // it has an address, and nobody there accepts
)

// paths knows of every spoke whether any of its proxies accepts a connection from the
// hub. Where a spoke has Managed ones they alone count: where an External proxy is has
// nothing to do with the spoke.
type paths struct {
	spokes map[string]*path
	news   map[string]bool // spokes whose path is another than was told, and what it is
}

func newPaths() *paths { return &paths{spokes: map[string]*path{}, news: map[string]bool{}} }

type path struct {
	external, managed crowd
	told              bool // anything
	broken            bool
}

// crowd counts Proxies by how they fared.
type crowd [undialled + 1]int

func (c crowd) members() int { return c[untried] + c[accepted] + c[undialled] }

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
	if s := p.spokes[spoke]; s.managed.members()+s.external.members() == 0 {
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
		p.news[spoke] = broken
	}
}

// judge says whether the path is broken, if that can be said: one proxy that does not
// accept may be down, and of one that has not been tried nobody knows. A broken path is
// so until a proxy accepts, or none is left.
func (p *path) judge() (broken, known bool) {
	c := p.managed
	if c.members() == 0 {
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

// take returns what is to be told.
func (p *paths) take() map[string]bool {
	if len(p.news) == 0 {
		return nil
	}
	news := p.news
	p.news = map[string]bool{}
	return news
}
