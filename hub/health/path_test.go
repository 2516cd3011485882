package health

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// walker is a Proxy as paths is told of it.
type walker struct {
	spoke   string
	managed bool
	reach   reach
}

// walk is what becomes of one: it comes, fares otherwise, or goes.
type walk struct {
	what string
	i    int    // whom, in the order in which they came
	to   walker // how it comes, or fares from then on
	told string // by that
}

func TestASpokesPathIsBrokenWhenNoneOfItsProxiesAcceptsAndNotBefore(t *testing.T) {
	comes := func(managed bool, r reach, told string) walk {
		return walk{"comes", 0, walker{"eu", managed, r}, told}
	}
	managed := func(r reach, told string) walk { return comes(true, r, told) }
	external := func(r reach, told string) walk { return comes(false, r, told) }
	fares := func(i int, to reach, told string) walk { return walk{"fares", i, walker{reach: to}, told} }
	goes := func(i int, told string) walk { return walk{"goes", i, walker{}, told} }
	for _, tc := range []struct {
		name  string
		walks []walk
	}{
		{"one that does not accept may be down", []walk{managed(undialled, "open")}},
		{"two that do not", []walk{managed(undialled, "open"), managed(undialled, "broken")}},
		{"of one that has not been tried nobody knows", []walk{managed(untried, ""), managed(undialled, ""), managed(undialled, "")}},
		{"until it has been", []walk{managed(untried, ""), managed(undialled, ""), managed(undialled, ""), fares(0, undialled, "broken")}},
		{"or has gone", []walk{managed(untried, ""), managed(undialled, ""), managed(undialled, ""), goes(0, "broken")}},
		{"one that accepts is enough", []walk{managed(untried, ""), managed(undialled, ""), managed(accepted, "open"), fares(0, undialled, "")}},
		{"and ends it", []walk{managed(undialled, "open"), managed(undialled, "broken"), managed(accepted, "open")}},
		{"one that has not been tried does not", []walk{managed(undialled, "open"), managed(undialled, "broken"), managed(untried, ""), fares(2, undialled, ""), fares(1, accepted, "open")}},
		{"one that goes, as one that is replaced does, does not mend it", []walk{managed(undialled, "open"), managed(undialled, "broken"), goes(0, ""), managed(untried, ""), fares(2, accepted, "open")}},
		{"where the one that accepts goes, the others tell", []walk{managed(accepted, "open"), managed(undialled, ""), managed(undialled, ""), goes(0, "broken")}},
		{"of nobody nothing is broken", []walk{managed(undialled, "open"), managed(undialled, "broken"), fares(1, untried, ""), goes(0, ""), goes(1, "open")}},
		{"External ones do not speak for a spoke", []walk{managed(undialled, "open"), managed(undialled, "broken"), external(accepted, "")}},
		{"nor against it", []walk{managed(accepted, "open"), external(undialled, ""), external(undialled, "")}},
		{"that has no others they do", []walk{external(undialled, "open"), external(undialled, "broken"), fares(0, accepted, "open")}},
		{"until there is one", []walk{external(undialled, "open"), external(undialled, "broken"), managed(untried, ""), fares(2, accepted, "open")}},
		{"and when that has gone", []walk{managed(accepted, "open"), external(undialled, ""), external(undialled, ""), goes(0, "broken")}},
		{"what came back is told of again", []walk{managed(accepted, "open"), goes(0, ""), managed(accepted, "open")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPaths()
			var all []walker
			for i, w := range tc.walks {
				all = p.walk(all, w)
				told := ""
				if broken, news := p.at(i)["eu"]; news {
					told = map[bool]string{true: "broken", false: "open"}[broken]
				}
				if told != w.told {
					t.Fatalf("%d, %s: told %q, want %q", i, w.what, told, w.told)
				}
			}
		})
	}
}

// walk tells paths of one walk, of one of all.
func (p *paths) walk(all []walker, w walk) []walker {
	if w.what == "comes" {
		p.add(w.to.spoke, w.to.managed, w.to.reach)
		return append(all, w.to)
	}
	old := all[w.i]
	if w.what == "goes" {
		p.remove(old.spoke, old.managed, old.reach)
		all[w.i] = walker{}
		return all
	}
	p.move(old.spoke, old.managed, old.reach, w.to.reach)
	all[w.i].reach = w.to.reach
	return all
}

// at is what is told after so many rests.
func (p *paths) at(rests int) map[string]bool {
	told, _ := p.take(dawn.Add(time.Duration(rests) * pathRest))
	return told
}

func TestAPathThatComesAndGoesIsToldOfOnceAMinute(t *testing.T) {
	p := newPaths()
	p.add("eu", true, undialled)
	p.add("eu", true, undialled)
	if told, wait := p.take(dawn); !told["eu"] || wait != never {
		t.Errorf("told %v, and more after %s", told, wait)
	}
	times, last, now := 1, true, dawn
	for i := range 3600 {
		now = now.Add(time.Second)
		from, to := undialled, accepted
		if i%2 == 1 {
			from, to = accepted, undialled
		}
		p.move("eu", true, from, to)
		told, wait := p.take(now)
		times += len(told)
		if is, news := told["eu"]; news {
			last = is
		}
		if told == nil && (wait <= 0 || wait > pathRest) {
			t.Fatalf("not told, and only after %s", wait)
		}
	}
	if times < 60 || times > 60+int(pathBurst/pathRest)+1 {
		t.Errorf("told %d times in an hour", times)
	}
	if told, _ := p.take(now.Add(pathRest)); told["eu"] {
		last = true
	}
	if !last {
		t.Error("it is broken at last, and not told to be")
	}
}

func TestAProxyWhoseNameLeadsNowhereSaysNothingOfThePath(t *testing.T) {
	p := newPaths()
	for _, r := range []reach{undialled, undialled, unlocated} {
		p.add("eu", true, r)
	}
	if told := p.at(0); !told["eu"] {
		t.Errorf("told %v", told)
	}
}

// survey is every Proxy, and what was found out last of each spoke's path.
type survey struct {
	all    []walker
	broken map[string]bool
	news   map[string]bool
}

// of judges a spoke's path anew: those who count are its Managed Proxies, or all if it
// has none.
func (s *survey) of(spoke string) (n, closed, open int, anyone bool) {
	managed := slices.ContainsFunc(s.all, func(w walker) bool { return w.spoke == spoke && w.managed })
	for _, w := range s.all {
		if w.spoke != spoke {
			continue
		}
		anyone = true
		if w.managed != managed {
			continue
		}
		n++
		switch w.reach {
		case undialled:
			closed++
		case accepted:
			open++
		}
	}
	return n, closed, open, anyone
}

// look takes note of what can be said of a spoke now.
func (s *survey) look(spoke string) {
	n, closed, open, anyone := s.of(spoke)
	was, known := s.broken[spoke]
	is := n >= 2 && closed == n
	// Short of that it is open if one accepts, or nobody is left to call it broken; one
	// alone that does not accept says nothing new.
	if sure := is || open > 0 || n == 0 && was || n == 1 && closed == 1 && !was; sure && (!known || is != was) {
		s.broken[spoke], s.news[spoke] = is, is
	}
	if !anyone {
		delete(s.broken, spoke)
	}
}

// What changed back before it was asked for is told once more, as it was before: who
// is told has to bear that.
func TestASpokeIsToldOfItsPathOnceAndOnlyWhenItChanges(t *testing.T) {
	spokes := []string{"eu", "us"}
	reaches := rapid.SampledFrom([]reach{untried, accepted, undialled, undialled})
	rapid.Check(t, func(rt *rapid.T) {
		p := newPaths()
		step := 0
		s := &survey{broken: map[string]bool{}, news: map[string]bool{}}
		walked := func(w walk) {
			spoke := w.to.spoke
			if w.what != "comes" {
				spoke = s.all[w.i].spoke
			}
			s.all = p.walk(s.all, w)
			s.all = slices.DeleteFunc(s.all, func(w walker) bool { return w.spoke == "" })
			s.look(spoke)
		}
		someone := func(rt *rapid.T) int { return rapid.IntRange(0, len(s.all)-1).Draw(rt, "who") }
		rt.Repeat(map[string]func(*rapid.T){
			"comes": func(rt *rapid.T) {
				if len(s.all) < 12 {
					walked(walk{what: "comes", to: walker{rapid.SampledFrom(spokes).Draw(rt, "spoke"), rapid.Bool().Draw(rt, "managed"), reaches.Draw(rt, "reach")}})
				}
			},
			"fares": func(rt *rapid.T) {
				if len(s.all) > 0 {
					walked(walk{what: "fares", i: someone(rt), to: walker{reach: reaches.Draw(rt, "reach")}})
				}
			},
			"goes": func(rt *rapid.T) {
				if len(s.all) > 0 {
					walked(walk{what: "goes", i: someone(rt)})
				}
			},
			"told": func(rt *rapid.T) {
				step++
				if got := p.at(step); !maps.Equal(got, s.news) {
					rt.Fatalf("told %v, want %v, of %v", got, s.news, s.all)
				}
				clear(s.news)
			},
		})
		for len(s.all) > 0 {
			walked(walk{what: "goes"})
		}
		if got := p.at(step + 1); !maps.Equal(got, s.news) || len(p.at(step+2))+len(p.spokes) > 0 {
			rt.Fatalf("kept of nobody: %v, told %v, want %v", p.spokes, got, s.news)
		}
	})
}
