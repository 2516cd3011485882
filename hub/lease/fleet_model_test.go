package lease

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// largeFleet is a store with as many Proxies as make several blocks, and something to
// compare its views with: all slots, looked at one by one.
type largeFleet struct {
	pool
	t *rapid.T
}

var largeQueries = []query{
	{}, mustQuery("c1", nil), mustQuery("", map[string]string{"region": "eu"}), mustQuery("c2", map[string]string{"region": "us"}), mustQuery("nowhere", nil),
}

func mustQuery(cluster string, selector map[string]string) query {
	q, err := newQuery(cluster, selector)
	if err != nil {
		panic(err)
	}
	return q
}

// some draws Proxies that are neighbours, or spread out.
func (l *largeFleet) some(do func(fleet.Key)) {
	from, step := rapid.IntRange(0, 1499).Draw(l.t, "from"), rapid.SampledFrom([]int{1, 1, 7}).Draw(l.t, "step")
	for i := range rapid.IntRange(1, 400).Draw(l.t, "many") {
		n := (from + i*step) % 1500
		do(fleet.Key{Cluster: clusters[n%2], Namespace: "n", Name: fmt.Sprintf("p%04d", n)})
	}
}

func (l *largeFleet) join() {
	region := rapid.SampledFrom([]string{"eu", "us"}).Draw(l.t, "region")
	most := rapid.IntRange(0, 2).Draw(l.t, "most")
	l.some(func(k fleet.Key) {
		p := proxy("", attr("region", region), limit(most), latency(time.Duration(len(k.Name)+int(k.Name[4])%3)*time.Millisecond))
		p.Key, p.UID = k, "u"
		l.fleet.Upsert(*p)
	})
}

func (l *largeFleet) quit()  { l.some(func(k fleet.Key) { l.fleet.Delete(k, "u") }) }
func (l *largeFleet) sick()  { l.judge(fleet.Unhealthy) }
func (l *largeFleet) well()  { l.judge(fleet.Healthy) }
func (l *largeFleet) sleep() { pass(seconds(l.t, 100)) }

func (l *largeFleet) judge(h fleet.Health) {
	l.some(func(k fleet.Key) {
		if p := l.fleet.Get(k); p != nil {
			l.fleet.SetVerdict(k, p.Subject(), fleet.Verdict{Health: h, Latency: 5 * time.Millisecond})
		}
	})
}

// ban has Proxies rest, without a lease that would be reported on.
func (l *largeFleet) ban() {
	name, length := targets.Draw(l.t, "target"), instant(seconds(l.t, 300))
	l.some(func(k fleet.Key) {
		now := l.enter()
		defer l.leave(now)
		if sl := l.views.all.find(k); sl != nil {
			l.rest(locationOf(sl.proxy), name, now+length)
		}
	})
}

func (l *largeFleet) take() {
	q := rapid.SampledFrom(largeQueries).Draw(l.t, "query")
	req := Request{Cluster: q.cluster, Selector: q.selector, Target: targets.Draw(l.t, "target"), TTL: seconds(l.t, 200)}
	for range rapid.IntRange(1, 300).Draw(l.t, "many") {
		if _, err := l.Acquire(l.t.Context(), client, req); err != nil {
			return
		}
	}
}

// move gives Proxies another address, where nothing rests, and back.
func (l *largeFleet) move() {
	host := rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2"}).Draw(l.t, "host")
	l.some(func(k fleet.Key) {
		if old := l.fleet.Get(k); old != nil {
			p := *old
			p.Host = host
			l.fleet.Upsert(p)
		}
	})
}

// compare asks everything and works it out once more.
func (l *largeFleet) compare() {
	now := l.enter()
	defer l.leave(now)
	for _, q := range largeQueries {
		if v := l.views.get(q); v != nil {
			l.checkView(v)
		}
		for _, name := range []string{"", "x.example", "y.example"} {
			a := ask{query: q, req: Request{Target: name}}
			got, none := l.search(a, now)
			want, wantNone, exact := l.scan(a, now)
			switch {
			case want != nil && got != want:
				l.t.Fatalf("%q for %q: chose %+v, want %+v", q.text, name, got, want.proxy.Key)
			case want == nil && got != nil:
				l.t.Fatalf("%q for %q: chose %+v, want %+v", q.text, name, got.proxy.Key, wantNone)
			case want == nil:
				early := none.RetryAfter > 0 && none.RetryAfter <= wantNone.RetryAfter
				if !exact && early {
					none.RetryAfter = wantNone.RetryAfter
				}
				if *none != wantNone {
					l.t.Fatalf("%q for %q: %+v, want %+v", q.text, name, *none, wantNone)
				}
			}
		}
	}
}

// scan is the choice as one would explain it. exact says that the hint when to come
// again must be.
func (l *largeFleet) scan(a ask, now instant) (best *slot, none NoMatchError, exact bool) {
	t := l.targets[a.req.Target]
	members := 0
	for _, sl := range l.slots {
		if (a.query.cluster != "" && a.query.cluster != sl.proxy.Cluster) || !Selects(a.query.selector, sl.proxy.Attributes) {
			continue
		}
		members++
		r := sl.rank
		if c := t.cooldown(sl); c != nil && r < sick {
			until, _ := r.until()
			as := r.class()
			if as == isFree {
				as = isCooling
			}
			r = blockedRank(max(until, c.ends), as)
		}
		none.Considered++
		switch r.class() {
		case isLeaving:
			none.Considered--
		case isSick:
			none.Unhealthy++
		case isFull:
			none.AtCapacity++
		case isCooling:
			none.InCooldown++
		case isFree:
			if best == nil || r < best.rank || r == best.rank && sl.proxy.Compare(best.proxy.Key) < 0 {
				best = sl
			}
		}
		if until, ok := r.until(); ok && (none.RetryAfter == 0 || time.Duration(until-now) < none.RetryAfter) {
			none.RetryAfter = time.Duration(until - now)
		}
	}
	return best, none, t == nil || l.views.of[a.query.text] == nil && !a.query.matchesAll() || members <= blockSize && len(l.views.get(a.query).blocks) <= 1
}

// checkView holds a view to what it promises.
func (l *largeFleet) checkView(v *view) {
	var counts [classes]int
	size := 0
	var last fleet.Key
	for i, b := range v.blocks {
		if b.at != i || len(b.places) == 0 || len(b.places) > blockSize || len(b.ranks) != len(b.places) || v.best[i] != slices.Min(b.ranks) {
			l.t.Fatalf("block %d of %d: at %d with %d of %d, best %x", i, len(v.blocks), b.at, len(b.ranks), len(b.places), v.best[i])
		}
		for j, p := range b.places {
			if p.block != b || int(p.at) != j || b.ranks[j] != p.slot.rank || last.Compare(p.slot.proxy.Key) >= 0 || v.of(p.slot) != p {
				l.t.Fatalf("place %d of block %d: %+v after %v", j, i, p, last)
			}
			last = p.slot.proxy.Key
			counts[p.slot.rank.class()]++
			size++
		}
	}
	if counts != v.counts || size != v.size || len(v.blocks) > 1+2*size/(blockSize/2) {
		l.t.Fatalf("%v of %d in %d blocks, want %v of %d", v.counts, v.size, len(v.blocks), counts, size)
	}
}

func TestALargeFleetIsChosenFromLikeASmallOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(struct{ rapid.TB }{t}, func(t *rapid.T) {
			l := &largeFleet{pool: newPool(Options{}), t: t}
			actions := map[string]func(){
				"join": l.join, "join2": l.join, "quit": l.quit, "sick": l.sick, "well": l.well, "sleep": l.sleep,
				"ban": l.ban, "ban2": l.ban, "take": l.take, "take2": l.take, "move": l.move,
			}
			names := rapid.SampledFrom(namesOf(actions))
			for range 4 {
				l.join()
			}
			for range 40 {
				l.compare()
				actions[names.Draw(t, "action")]()
			}
		})
	})
}
