package proxy

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// rollout is a fleet whose Proxies refer to one Secret, and what passes do to it.
type rollout struct {
	t      *testing.T
	budget *budget
	fleet  *fleet.Fleet
	woken  map[fleet.Key]bool
	// version is what each instance is made of.
	version map[fleet.Key]int
	want    int
}

func newRollout(t *testing.T, limit Limit, proxies int) *rollout {
	r := &rollout{t: t, budget: newBudget(limit), fleet: fleet.New(fleet.Options{}), woken: map[fleet.Key]bool{}, version: map[fleet.Key]int{}}
	r.budget.wake = func(k fleet.Key) { r.woken[k] = true }
	r.fleet.Follow(r.budget.observe)
	for i := range proxies {
		k := key(i)
		r.show(k, 0)
		r.heal(k)
		r.pass(k)
	}
	return r
}

func key(i int) fleet.Key {
	return fleet.Key{Cluster: "eu", Namespace: "crawl", Name: fmt.Sprintf("p-%03d", i)}
}

// show puts the Proxy into the fleet with an instance of that version.
func (r *rollout) show(k fleet.Key, version int, edits ...func(*fleet.Proxy)) {
	p := fleet.Proxy{
		Key: k, UID: k.Name, Managed: true, Provisioned: true, Host: k.Name + ".example", Port: 3128,
		Instance: fmt.Sprintf("%s/%d", k.Name, version), Secrets: []string{"init"}, StatusPhase: "Ready",
	}
	for _, edit := range edits {
		edit(&p)
	}
	r.version[k] = version
	r.fleet.Upsert(p)
}

func (r *rollout) heal(k fleet.Key)   { r.judge(k, fleet.Healthy) }
func (r *rollout) sicken(k fleet.Key) { r.judge(k, fleet.Unhealthy) }
func (r *rollout) judge(k fleet.Key, h fleet.Health) {
	p := r.fleet.Get(k)
	r.fleet.SetVerdict(k, p.Subject(), fleet.Verdict{Health: h})
}

// pass is what the reconciler does with the budget; it says whether the
// instance was taken out of service.
func (r *rollout) pass(k fleet.Key) bool {
	current := r.version[k] == r.want
	r.budget.seen(k, fmt.Sprint(r.want), current, r.fleet.Get(k).Withdrawn)
	if current || r.budget.replace(k) != "" {
		return false
	}
	r.fleet.SetWithdrawn(k, r.fleet.Get(k).Instance, true)
	return true
}

// out counts the Proxies that are not in service.
func (r *rollout) out() (n int) {
	for _, p := range r.fleet.All() {
		if !p.Offerable() {
			n++
		}
	}
	return n
}

func TestAnEditedSecretTakesAFewOutOfServiceAtATime(t *testing.T) {
	r := newRollout(t, Limit{percent: 10}, 50)
	r.want = 1
	var out []fleet.Key
	for i := range 50 {
		if r.pass(key(i)) {
			out = append(out, key(i))
		}
	}
	if len(out) != 5 {
		t.Fatalf("%d of 50 went at once, 5 may", len(out))
	}
	// The first comes back, but is not healthy yet: nobody may follow.
	r.show(out[0], 1)
	r.pass(out[0])
	if len(r.woken) != 0 {
		t.Fatalf("%v woken before the new instance is healthy", r.woken)
	}
	r.heal(out[0])
	if len(r.woken) != 1 {
		t.Fatalf("%d woken for one place", len(r.woken))
	}
	for k := range r.woken {
		if !r.pass(k) {
			t.Error("woken, and refused")
		}
	}
}

func TestABadEditStopsAtTheLimit(t *testing.T) {
	r := newRollout(t, Limit{number: 2}, 20)
	r.want = 1
	for range 5 {
		for i := range 20 {
			if r.pass(key(i)) {
				r.show(key(i), 1) // comes back
				r.sicken(key(i))  // and does not work
			}
		}
	}
	if out := r.out(); out != 2 {
		t.Errorf("a Secret that breaks instances took %d of 20 out of service, 2 may", out)
	}
}

func TestWhatIsOutOfServiceAnywayHoldsNobodyUp(t *testing.T) {
	r := newRollout(t, Limit{number: 1}, 3)
	r.sicken(key(0)) // dead for reasons of its own
	r.want = 1
	if !r.pass(key(0)) {
		t.Error("replacing a dead one was refused")
	}
	r.show(key(0), 1)
	r.sicken(key(0))
	r.pass(key(0))
	if !r.pass(key(1)) {
		t.Error("a Proxy that was dead before holds up the others")
	}
	if len(r.woken) > 0 {
		t.Errorf("woken for nothing: %v", r.woken)
	}
}

func TestAProxyThatGoesFreesItsPlace(t *testing.T) {
	r := newRollout(t, Limit{number: 1}, 3)
	r.want = 1
	r.pass(key(0))
	r.pass(key(1))
	r.pass(key(2))
	r.fleet.Delete(key(0), key(0).Name)
	if len(r.woken) != 1 {
		t.Errorf("%d woken", len(r.woken))
	}
	r.show(key(1), 0, func(p *fleet.Proxy) { p.Deleting = true })
	r.fleet.Delete(key(1), key(1).Name)
	r.fleet.Delete(key(2), key(2).Name)
	if len(r.budget.members)+len(r.budget.groups) > 0 {
		t.Errorf("kept %d Proxies and %d Secrets that are gone", len(r.budget.members), len(r.budget.groups))
	}
}

func TestAnEditThatIsTakenBackFreesItsPlace(t *testing.T) {
	r := newRollout(t, Limit{number: 1}, 2)
	r.want = 1
	r.pass(key(0))
	r.pass(key(1))
	r.want = 0 // as before; the instance was withdrawn and not deleted yet
	r.fleet.SetWithdrawn(key(0), r.fleet.Get(key(0)).Instance, false)
	r.pass(key(0))
	r.heal(key(0))
	if !r.woken[key(1)] {
		t.Error("the other one is never looked at again")
	}
}

// The probed site is away for a moment while a bad edit is held.
func TestWhoFallsIllWhileItWaitsGoesOnWaiting(t *testing.T) {
	r := newRollout(t, Limit{number: 2}, 20)
	r.want = 1
	for i := range 20 {
		if r.pass(key(i)) {
			r.show(key(i), 1)
			r.sicken(key(i))
		}
	}
	for i := range 20 {
		r.sicken(key(i))
	}
	for i := range 20 {
		if r.version[key(i)] == 0 && r.pass(key(i)) {
			t.Fatalf("%s was replaced: it would have been well again", key(i).Name)
		}
	}
}

func TestOfThoseOutOfServiceAsManyAreReplacedAtOnce(t *testing.T) {
	r := newRollout(t, Limit{number: 2}, 10)
	for i := range 10 {
		r.sicken(key(i))
	}
	r.want = 1
	gone := 0
	for i := range 10 {
		if r.pass(key(i)) {
			gone++
		}
	}
	if gone != 2 {
		t.Errorf("%d of 10 that may recover are deleted at once, 2 may", gone)
	}
}

func TestAProxyThatRefersToAnotherSecretMeanwhileKeepsItsPlace(t *testing.T) {
	r := newRollout(t, Limit{number: 1}, 10)
	r.want = 1
	gone := 0
	for i := range 10 {
		if r.pass(key(i)) {
			gone++
			r.show(key(i), 0, func(p *fleet.Proxy) { p.Secrets = []string{"auth", "init"} })
		}
	}
	if gone != 1 {
		t.Errorf("%d of 10 are out of service, 1 may", gone)
	}
}

func TestAPlaceThatItsOwnerCannotTakeIsAnothers(t *testing.T) {
	r := newRollout(t, Limit{number: 1}, 0)
	both := func(p *fleet.Proxy) { p.Secrets = []string{"auth", "init"} }
	auth := func(p *fleet.Proxy) { p.Secrets = []string{"auth"} }
	for i, edit := range []func(*fleet.Proxy){func(*fleet.Proxy) {}, auth, both, func(*fleet.Proxy) {}} {
		r.show(key(i), 0, edit)
		r.heal(key(i))
		r.pass(key(i))
	}
	r.want = 1
	for i := range 4 { // 0 takes init's place, 1 takes auth's, 2 and 3 wait
		r.pass(key(i))
	}
	r.show(key(0), 1)
	r.pass(key(0))
	r.heal(key(0)) // a place of init: for 2, which cannot take it, and so for 3
	if r.pass(key(2)) || !r.woken[key(3)] {
		t.Errorf("woken: %v", r.woken)
	}
}

func TestOneThatFlipsStandsInLineOnce(t *testing.T) {
	r := newRollout(t, Limit{number: 1}, 2)
	r.want = 1
	r.pass(key(0))
	for range 100 {
		r.pass(key(1))
		r.want = 0
		r.pass(key(1))
		r.want = 1
	}
	for _, g := range r.budget.groups {
		if len(g.line) > 1 {
			t.Errorf("%d stand in line", len(g.line))
		}
	}
}

// Under random moves no more than the limit are ever out of service for the
// edit, and in the end all are replaced.
func TestRolloutsHoldTheirLimitAndEnd(t *testing.T) {
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		n, limit := 1+rnd.IntN(30), Limit{percent: 1 + rnd.IntN(40)}
		r := newRollout(t, limit, n)
		r.want = 1
		for moves := 0; r.left() > 0; moves++ {
			if moves > 100_000 {
				t.Fatalf("seed %d: %d of %d are never replaced", seed, r.left(), n)
			}
			k := key(rnd.IntN(n))
			switch p := r.fleet.Get(k); {
			case p.Withdrawn: // the old one is gone, the new one is made
				r.show(k, 1)
				r.budget.seen(k, "1", true, false)
			case rnd.IntN(3) == 0 && p.Verdict.Health != fleet.Healthy:
				r.heal(k)
			default:
				r.pass(k)
			}
			if out := r.out(); out > limit.of(n) {
				t.Fatalf("seed %d: %d of %d are out of service, %d may", seed, out, n, limit.of(n))
			}
		}
	}
}

func (r *rollout) left() (n int) {
	for _, p := range r.fleet.All() {
		if r.version[p.Key] != r.want || !p.Offerable() {
			n++
		}
	}
	return n
}

func TestLimits(t *testing.T) {
	for _, tc := range []struct {
		text string
		of   int
		want int // 0: refused
	}{
		{"10%", 100, 10}, {"10%", 9, 1}, {"100%", 7, 7}, {"3", 100, 3}, {"1%", 1, 1},
		{"0", 1, 0}, {"0%", 1, 0}, {"101%", 1, 0}, {"-1", 1, 0}, {"", 1, 0}, {"%", 1, 0}, {"ten", 1, 0}, {"1.5", 1, 0},
	} {
		limit, err := ParseLimit(tc.text)
		if (err != nil) != (tc.want == 0) {
			t.Errorf("%q: %v", tc.text, err)
		}
		if err == nil && limit.of(tc.of) != tc.want {
			t.Errorf("%q of %d is %d, want %d", tc.text, tc.of, limit.of(tc.of), tc.want)
		}
	}
	if (Limit{}).of(100) != 10 {
		t.Error("the default is a tenth")
	}
}

// Nobody dials them, so none will ever be healthy: that is no doing of the edit.
func TestProxiesThatNobodyDialsAreReplacedAllTheSame(t *testing.T) {
	r := newRollout(t, Limit{number: 1}, 0)
	pods := func(p *fleet.Proxy) { p.PodNetwork = true }
	for i := range 3 {
		r.show(key(i), 0, pods)
		r.pass(key(i))
	}
	r.want = 1
	for i := range 3 {
		if !r.pass(key(i)) {
			t.Fatalf("%s waits for ever", key(i))
		}
		r.show(key(i), 1, pods)
		r.pass(key(i))
	}
}

// That nobody dials them is the edit's doing here: they served before.
func TestAnEditThatMakesProxiesUnreachableStopsAtTheLimit(t *testing.T) {
	r := newRollout(t, Limit{number: 2}, 20)
	r.want = 1
	for range 3 {
		for i := range 20 {
			if r.pass(key(i)) {
				r.show(key(i), 1, func(p *fleet.Proxy) { p.PodNetwork = true })
				r.pass(key(i))
			}
		}
	}
	if n := r.out(); n != 2 {
		t.Errorf("%d are out of service, 2 may", n)
	}
}
