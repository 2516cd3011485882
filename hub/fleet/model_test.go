package fleet

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
)

// naive is what a fleet must come down to: who is there, and whose pod networks are
// declared.
type naive struct {
	there    map[Key]Proxy
	routable map[string]bool
}

// alone is why p is not dialled, whatever others there are.
func (n naive) alone(p Proxy) BarKind {
	switch {
	case p.Host == "":
		return NotBarred
	case p.PodNetwork && !n.routable[p.Cluster]:
		return NotRoutable
	case p.Host == "127.0.0.1":
		return EndpointForbidden
	default:
		return NotBarred
	}
}

// rivals are the others that claim the same endpoint.
func (n naive) rivals(p Proxy) map[Key]bool {
	spelled := map[string]string{"::ffff:10.0.0.1": "10.0.0.1", "LB.example.": "lb.example"}
	endpoint := func(p Proxy) string {
		if host := spelled[p.Host]; host != "" {
			p.Host = host
		}
		return p.Endpoint()
	}
	found := map[Key]bool{}
	for key, other := range n.there {
		if key != p.Key && p.Managed && other.Managed && p.Host != "" && endpoint(p) == endpoint(other) && n.alone(p) == NotBarred && n.alone(other) == NotBarred {
			found[key] = true
		}
	}
	return found
}

// Whatever happens in whatever order, the fleet bars whom it must and nobody else,
// and a follower that goes by changes alone knows the same.
func TestTheFleetBarsWhomItMust(t *testing.T) {
	for seed := range uint64(150) {
		f, n, r := judging(Options{}), naive{map[Key]Proxy{}, map[string]bool{}}, rand.New(rand.NewPCG(seed, 7))
		followed := map[Key]*Proxy{}
		f.Follow(func(c Change) {
			key := c.key()
			if followed[key] != c.Old {
				t.Fatalf("seed %d: %s: the change's old is not what was told before", seed, key)
			}
			if followed[key] = c.New; c.New == nil {
				delete(followed, key)
			}
		})
		for step := range 200 {
			n.act(f, r)
			for key, p := range n.there {
				have, want, rivals := f.Get(key), n.alone(p), n.rivals(p)
				if len(rivals) > 0 {
					want = EndpointConflict
				}
				if have != followed[key] || have.Barred.Kind != want || want == EndpointConflict && !rivals[have.Barred.Rival] || want != NotBarred && have.Verdict != (Verdict{}) {
					t.Fatalf("seed %d, step %d: %s: have %+v, want %v for one of %v", seed, step, key, have.Barred, want, rivals)
				}
			}
			if len(followed) != len(n.there) {
				t.Fatalf("seed %d: %d followed, %d there", seed, len(followed), len(n.there))
			}
		}
		for _, cluster := range []string{"a", "b"} {
			f.Retain(cluster, nil)
		}
		if len(f.rivals)+len(f.clusters) > 0 {
			t.Fatalf("seed %d: left behind: %v %v", seed, f.rivals, f.clusters)
		}
	}
}

func (c Change) key() Key {
	if c.New != nil {
		return c.New.Key
	}
	return c.Old.Key
}

// act does one thing to both.
func (n naive) act(f *Fleet, r *rand.Rand) {
	cluster := []string{"a", "b"}[r.IntN(2)]
	key := Key{cluster, "n", strconv.Itoa(r.IntN(4))}
	switch r.IntN(10) {
	case 0, 1:
		n.routable[cluster] = r.IntN(2) == 0
		f.SetRoutable(cluster, n.routable[cluster])
	case 2:
		f.Delete(key, n.there[key].UID)
		delete(n.there, key)
	case 3:
		keep := map[Key]bool{key: true}
		f.Retain(cluster, keep)
		for other := range n.there {
			if other.Cluster == cluster && !keep[other] {
				delete(n.there, other)
			}
		}
	case 4:
		if p := f.Get(key); p != nil {
			f.SetVerdict(key, p.Subject(), Verdict{Health: Healthy})
			f.SetWithdrawn(key, p.Instance, r.IntN(3) == 0)
		}
	default:
		hosts := []string{"10.0.0.1", "::ffff:10.0.0.1", "LB.example.", "lb.example", "127.0.0.1", ""}
		p := Proxy{
			Key: key, UID: fmt.Sprint(r.IntN(2)), Managed: r.IntN(4) > 0, Protocol: "http", Host: hosts[r.IntN(len(hosts))], Port: 3128 + r.IntN(2),
			Provisioned: true, Instance: fmt.Sprint(r.IntN(2)), Verdict: Verdict{Health: Healthy},
		}
		p.PodNetwork = p.Managed && r.IntN(2) == 0
		f.Upsert(p)
		n.there[key] = p
	}
}

// Rivals that all come, go or are ruled out at once: none may be dialled in between.
func TestNoneOfTwoRivalsIsFreeWhileBothAreMoved(t *testing.T) {
	for range 20 { // in whatever order the map has them
		f := judging(Options{})
		for i := range 10 {
			for _, half := range []string{"a", "b"} {
				f.Upsert(running(fmt.Sprint(half, i), inPodNetwork, at(fmt.Sprintf("10.0.1.%d", i))))
			}
		}
		f.Follow(func(c Change) {
			if c.New != nil && c.New.Probeable() {
				t.Errorf("%s is free", c.New.Key)
			}
		})
		f.SetRoutable("eu", true)
		f.SetRoutable("eu", false)
		f.SetRoutable("eu", true)
		f.Retain("eu", nil)
	}
}
