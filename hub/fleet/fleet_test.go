package fleet

import (
	"slices"
	"testing"
	"time"
)

func key(name string) Key { return Key{Cluster: "eu", Namespace: "crawl", Name: name} }

// running builds a provisioned Managed Proxy, changed by edits.
func running(name string, edits ...func(*Proxy)) Proxy {
	p := Proxy{
		Key: key(name), UID: "uid-" + name, Managed: true, Protocol: "http",
		Host: "10.0.0.1", Port: 3128, Instance: "instance-1", Provisioned: true, StatusPhase: "Probing",
	}
	for _, edit := range edits {
		edit(&p)
	}
	return p
}

// first is what a verdict on a running Proxy is about.
var first = Subject{"uid-a", "instance-1", "10.0.0.1:3128", "http"}

func healthy(p *Proxy) { p.Verdict = Verdict{Health: Healthy, Reason: "ProbeSucceeded"} }

// judging is the fleet of a hub that judges.
func judging(o Options) *Fleet {
	f := New(o)
	f.Judge(nil)
	return f
}

func TestUntilThisHubJudgesVerdictsAreWhatTheStatusesSay(t *testing.T) {
	f := New(Options{})
	p := Proxy{Key: Key{"eu", "crawl", "a"}, UID: "1", Instance: "one", Host: "203.0.113.7", Port: 3128, Provisioned: true}
	for _, claims := range []Health{Unknown, Healthy, Unhealthy, Healthy} {
		p.Verdict = Verdict{Health: claims}
		f.Upsert(p)
		if got := f.Get(p.Key).Verdict.Health; got != claims {
			t.Errorf("health %v, the status claims %v", got, claims)
		}
	}
	f.Judge(nil)
	p.Verdict = Verdict{Health: Unhealthy}
	f.Upsert(p)
	if got := f.Get(p.Key).Verdict.Health; got != Healthy {
		t.Errorf("health %v: a status that lags behind counts for more than the engine", got)
	}
}

func TestAVerdictFollowsItsInstanceAndNoOther(t *testing.T) {
	for _, tc := range []struct {
		name   string
		second Proxy
		want   Health
	}{
		{"seen again unchanged", running("a"), Healthy},
		{"attributes edited", running("a", func(p *Proxy) { p.Attributes = map[string]string{"k": "v"} }), Healthy},
		{"status lags behind with another claim", running("a", func(p *Proxy) { p.Verdict = Verdict{Health: Unhealthy} }), Healthy},
		{"the instance has another address", running("a", func(p *Proxy) { p.Host = "10.0.0.9" }), Unknown},
		{"instance replaced", running("a", func(p *Proxy) { p.Instance = "instance-2" }), Unknown},
		{"instance replaced, old claim still in the status", running("a", healthy, func(p *Proxy) { p.Instance = "instance-2" }), Unknown},
		{"deleted and made again under the same name", running("a", func(p *Proxy) { p.UID = "uid-other" }), Unknown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := judging(Options{})
			f.Upsert(running("a"))
			if !f.SetVerdict(key("a"), first, Verdict{Health: Healthy}) {
				t.Fatal("the verdict of the present instance was refused")
			}
			f.Upsert(tc.second)
			if got := f.Get(key("a")).Verdict.Health; got != tc.want {
				t.Errorf("health %v, want %v", got, tc.want)
			}
		})
	}
}

func TestARestartedHubTakesOverWhatTheStatusClaims(t *testing.T) {
	f := judging(Options{})
	f.Upsert(running("a", healthy))
	if p := f.Get(key("a")); !p.Offerable() {
		t.Errorf("a Proxy that was healthy before the restart is not offered: %+v", p)
	}
}

func TestALateVerdictOfAReplacedInstanceIsDropped(t *testing.T) {
	f := judging(Options{})
	f.Upsert(running("a", func(p *Proxy) { p.Instance = "instance-2" }))
	if f.SetVerdict(key("a"), first, Verdict{Health: Healthy}) {
		t.Error("a verdict about an instance that is gone was taken")
	}
	if f.SetVerdict(key("b"), Subject{"uid-b", "instance-1", "10.0.0.1:3128", "http"}, Verdict{Health: Healthy}) {
		t.Error("a verdict about a Proxy that is not there was taken")
	}
	if f.Get(key("a")).Offerable() {
		t.Error("the replacement is offered on its predecessor's verdict")
	}
}

func TestAWithdrawnInstanceIsNotOfferedUntilItIsTakenBackAndProbedAgain(t *testing.T) {
	f := judging(Options{})
	f.Upsert(running("a", healthy))
	f.SetWithdrawn(key("a"), "instance-1", true)
	if p := f.Get(key("a")); p.Offerable() || p.Probeable() || p.Phase() != "Replacing" {
		t.Errorf("withdrawn: offerable %v, probeable %v, phase %s", p.Offerable(), p.Probeable(), p.Phase())
	}
	f.Upsert(running("a", healthy)) // the informer shows the old status once more
	if f.Get(key("a")).Offerable() {
		t.Error("a late event brought a withdrawn instance back")
	}
	if f.SetVerdict(key("a"), first, Verdict{Health: Healthy}) {
		t.Error("a late probe brought a withdrawn instance back")
	}
	f.SetWithdrawn(key("a"), "instance-1", false)
	if p := f.Get(key("a")); p.Offerable() || !p.Probeable() {
		t.Error("taken back: it must be probed before it is offered")
	}
}

func TestDeleteSparesANamesake(t *testing.T) {
	f := judging(Options{})
	f.Upsert(running("a", func(p *Proxy) { p.UID = "new" }))
	f.Delete(key("a"), "old")
	if f.Get(key("a")) == nil {
		t.Error("the late deletion of its predecessor removed a Proxy")
	}
	f.Delete(key("a"), "new")
	if f.Get(key("a")) != nil {
		t.Error("still there after its own deletion")
	}
}

func TestRetainRemovesWhatWasDeletedWhileNobodyWatchedInThatClusterAlone(t *testing.T) {
	f := judging(Options{})
	f.Upsert(running("a"))
	f.Upsert(running("b"))
	other := running("c", func(p *Proxy) { p.Cluster = "us" })
	f.Upsert(other)
	f.Retain("eu", map[Key]bool{key("a"): true})
	var left []string
	for _, p := range f.All() {
		left = append(left, p.Key.String())
	}
	if want := []string{"eu/crawl/a", "us/crawl/c"}; !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
	f.Retain("us", nil)
	if n, _ := f.Count("us"); n != 0 {
		t.Errorf("%d Proxies of a removed spoke are still there", n)
	}
}

func TestAFollowerSeesEveryChangeInOrderAndNoEmptyOne(t *testing.T) {
	f := judging(Options{})
	f.Upsert(running("a"))
	var seen []string
	f.Follow(func(c Change) {
		switch {
		case c.Old == nil:
			seen = append(seen, "joined "+c.New.Name)
		case c.New == nil:
			seen = append(seen, "left "+c.Old.Name)
		default:
			seen = append(seen, "changed "+c.New.Name)
		}
	})
	f.Upsert(running("a")) // nothing new
	f.Upsert(running("b", func(p *Proxy) { p.Managed = false }))
	f.SetVerdict(key("b"), Subject{"uid-b", "instance-1", "10.0.0.1:3128", "http"}, Verdict{Health: Unhealthy})
	f.Delete(key("a"), "uid-a")
	want := []string{"joined a", "joined b", "changed b", "left a"}
	if !slices.Equal(seen, want) {
		t.Errorf("saw %v, want %v", seen, want)
	}
}

func TestPhaseIsNeverBehindTheVerdict(t *testing.T) {
	for _, tc := range []struct {
		want string
		p    Proxy
	}{
		{"Ready", running("a", healthy)},
		{"Unhealthy", running("a", func(p *Proxy) { p.StatusPhase = "Ready"; p.Verdict.Health = Unhealthy })},
		{"Probing", running("a", func(p *Proxy) { p.StatusPhase = "Ready" })},
		{"Deleting", running("a", healthy, func(p *Proxy) { p.Deleting = true })},
		{"Pending", Proxy{}},
		{"Failed", Proxy{StatusPhase: "Failed"}},
	} {
		if got := tc.p.Phase(); got != tc.want {
			t.Errorf("phase %q, want %q for %+v", got, tc.want, tc.p)
		}
	}
}

func TestCountTellsInstancesFromProxies(t *testing.T) {
	f := judging(Options{})
	f.Upsert(running("a"))
	f.Upsert(running("b", func(p *Proxy) { p.Instance = "" }))
	f.Upsert(running("c", func(p *Proxy) { p.Managed = false; p.Verdict.Time = time.Now() }))
	if proxies, instances := f.Count("eu"); proxies != 3 || instances != 1 {
		t.Errorf("%d Proxies and %d instances, want 3 and 1", proxies, instances)
	}
}
