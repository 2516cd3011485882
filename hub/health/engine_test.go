package health

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
)

// recorder counts what it is told.
type recorder struct {
	mu       sync.Mutex
	probes   map[string]int // by Proxy and failure
	forgot   int
	size     int
	lags     []time.Duration
	observed chan struct{}
}

func newRecorder() *recorder {
	return &recorder{probes: map[string]int{}, observed: make(chan struct{}, 1)}
}

func (r *recorder) Probe(key fleet.Key, _ time.Duration, failure string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.probes[key.Name+" "+failure]++
	select {
	case r.observed <- struct{}{}:
	default:
	}
}

func (r *recorder) Forget(fleet.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgot++
}

func (r *recorder) Started(lag time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lags = append(r.lags, lag)
}

func (r *recorder) Size(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.size = n
}

// latest is how late the latest probe began, all are the probes by Proxy and failure.
func (r *recorder) latest() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Max(r.lags)
}

func (r *recorder) all() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.probes)
}

func (r *recorder) count(what string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.probes[what]
}

func proxyAt(t *testing.T, name, endpoint string, edits ...func(*fleet.Proxy)) fleet.Proxy {
	t.Helper()
	addr, err := net.ResolveTCPAddr("tcp", endpoint)
	if err != nil {
		t.Fatal(err)
	}
	p := fleet.Proxy{
		Key: fleet.Key{Cluster: "eu", Namespace: "crawl", Name: name}, UID: "uid-" + name, Managed: true, Protocol: "http",
		Host: addr.IP.String(), Port: addr.Port, Instance: "one", Provisioned: true,
		// Shorter than the API allows: the engine has no floor of its own.
		Check: fleet.Check{Interval: 20 * time.Millisecond, Timeout: 5 * time.Second, SuccessThreshold: 1, FailureThreshold: 2},
	}
	for _, edit := range edits {
		edit(&p)
	}
	return p
}

// arrive shows the fleet a Proxy, at first as it is before it is provisioned: one that
// is seen for the first time with an instance has been there before, and is not
// probed at once.
func arrive(f *fleet.Fleet, p fleet.Proxy) {
	if f.Get(p.Key) == nil {
		coming := p
		coming.Provisioned = false
		f.Upsert(coming)
	}
	f.Upsert(p)
}

// start runs an engine until the test ends, and proves that it ends.
func start(t *testing.T, f *fleet.Fleet, o Options) *Engine {
	t.Helper()
	o.Fleet = f
	if o.Recorder == nil {
		o.Recorder = newRecorder()
	}
	e := New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	followed(t, e)
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Error("the engine does not stop")
		}
	})
	return e
}

// followed waits until an engine that runs has taken the fleet over: what comes after
// that comes anew.
func followed(t *testing.T, e *Engine) {
	t.Helper()
	canary := fleet.Proxy{Key: fleet.Key{Cluster: "canary"}, UID: "canary"}
	e.Fleet.Upsert(canary)
	defer e.Fleet.Delete(canary.Key, canary.UID)
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		e.mu.Lock()
		size := e.size
		e.mu.Unlock()
		if size > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the engine does not follow the fleet")
		}
	}
}

// await waits until the fleet shows name as wanted.
func await(t *testing.T, f *fleet.Fleet, name, what string, wanted func(*fleet.Proxy) bool) {
	t.Helper()
	key := fleet.Key{Cluster: "eu", Namespace: "crawl", Name: name}
	ok := make(chan struct{})
	var once sync.Once
	f.Follow(func(c fleet.Change) {
		if c.New != nil && c.New.Key == key && wanted(c.New) {
			once.Do(func() { close(ok) })
		}
	})
	select {
	case <-ok:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: not %s in time: %+v", name, what, f.Get(key))
	}
}

func is(h fleet.Health) func(*fleet.Proxy) bool {
	return func(p *fleet.Proxy) bool { return p.Verdict.Health == h }
}

func TestAProxyBecomesHealthyUnhealthyAndHealthyAgain(t *testing.T) {
	site := origin.Start(t)
	var broken atomic.Bool
	through := forwardProxy(t)
	front := peer(t, func(conn net.Conn) {
		if broken.Load() {
			return
		}
		relay(conn, through)
	})
	f := fleet.New(fleet.Options{AllowLocal: true})
	rec := newRecorder()
	start(t, f, Options{AllowLocal: true, URL: site.URL + "/generate_204", Roots: site.CertPool(), Recorder: rec})
	arrive(f, proxyAt(t, "a", front))
	await(t, f, "a", "healthy", is(fleet.Healthy))
	broken.Store(true)
	await(t, f, "a", "unhealthy", is(fleet.Unhealthy))
	broken.Store(false)
	await(t, f, "a", "healthy again", is(fleet.Healthy))
	if rec.count("a ConnectRefused") < 2 {
		t.Error("failed probes were not recorded")
	}
}

// relay copies between conn and a new connection to address until one ends.
func relay(conn net.Conn, address string) {
	onward, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer onward.Close()
	done := make(chan struct{}, 2)
	pipe := func(to, from net.Conn) {
		buffer := make([]byte, 16<<10)
		for {
			n, err := from.Read(buffer)
			if n > 0 {
				if _, err := to.Write(buffer[:n]); err != nil {
					break
				}
			}
			if err != nil {
				break
			}
		}
		done <- struct{}{}
	}
	go pipe(onward, conn)
	go pipe(conn, onward)
	<-done
}

func TestProxiesThatHangDoNotDelayTheVerdictOnALiveOne(t *testing.T) {
	site := origin.Start(t)
	hole := peer(t, silent)
	f := fleet.New(fleet.Options{AllowLocal: true})
	start(t, f, Options{AllowLocal: true, URL: site.PlainURL, Roots: site.CertPool()})
	for i := range 50 {
		arrive(f, proxyAt(t, "hangs-"+string(rune('a'+i%26))+string(rune('a'+i/26)), hole))
	}
	arrive(f, proxyAt(t, "live", forwardProxy(t)))
	await(t, f, "live", "healthy", is(fleet.Healthy))
}

func TestALateAnswerOfAReplacedInstanceCountsForNobody(t *testing.T) {
	asked, answer, read := make(chan struct{}), make(chan struct{}), make(chan struct{})
	slow := peer(t, func(conn net.Conn) {
		close(asked)
		<-answer
		answering("HTTP/1.1 204 No Content\r\n\r\n")(conn)
		_, _ = conn.Read(make([]byte, 1)) // until the probe has its answer and closes
		close(read)
	})
	f := fleet.New(fleet.Options{AllowLocal: true})
	rec := newRecorder()
	start(t, f, Options{AllowLocal: true, URL: "http://site.test/", Recorder: rec})
	arrive(f, proxyAt(t, "a", slow))
	<-asked
	arrive(f, proxyAt(t, "a", closedPort(t), func(p *fleet.Proxy) { p.Instance = "two" }))
	close(answer)
	<-read
	await(t, f, "a", "unhealthy", is(fleet.Unhealthy))
	for before := rec.count("a DialFailed"); rec.count("a DialFailed") < before+3; {
		<-rec.observed // the old probe has ended for sure when new ones have
	}
	if rec.count("a ") != 0 {
		t.Error("the old instance's answer was counted for the new one")
	}
}

func TestADeletedWithdrawnOrAddresslessProxyIsNotProbed(t *testing.T) {
	var dialled atomic.Int32
	front := peer(t, func(net.Conn) { dialled.Add(1) })
	f := fleet.New(fleet.Options{AllowLocal: true})
	e := start(t, f, Options{AllowLocal: true, URL: "http://site.test/"})
	arrive(f, proxyAt(t, "deleting", front, func(p *fleet.Proxy) { p.Deleting = true }))
	arrive(f, proxyAt(t, "withdrawn", front, func(p *fleet.Proxy) { p.Withdrawn = true }))
	arrive(f, proxyAt(t, "provisioning", front, func(p *fleet.Proxy) { p.Provisioned = false }))
	arrive(f, proxyAt(t, "addressless", front, func(p *fleet.Proxy) { p.Host = "" }))
	arrive(f, proxyAt(t, "canary", closedPort(t)))
	await(t, f, "canary", "unhealthy", is(fleet.Unhealthy))
	if n := dialled.Load(); n != 0 {
		t.Errorf("%d connections to proxies that are not to be probed", n)
	}
	f.Retain("eu", nil)
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.states) != 0 || len(e.due) != 0 {
		t.Errorf("state of proxies that are gone is kept: %d states, %d due", len(e.states), len(e.due))
	}
}

// editor edits a Proxy in all the ways there are.
type editor struct {
	*bench
	p        fleet.Proxy
	replaced int
	amidst   int // edits while it was probed
}

func (e *editor) edit() {
	e.wire.set(func() {
		if e.wire.busy[e.p.Host] > 0 {
			e.amidst++
		}
	})
	secret := &fleet.Credentials{Username: "crawler", Password: rand.Text()}
	switch mathrand.IntN(9) {
	case 0:
		e.p.Check.Interval = time.Duration(5+mathrand.IntN(60)) * time.Second
	case 1:
		e.p.Check.FailureThreshold = 1 + mathrand.IntN(3)
	case 2:
		e.p.Check.URL = []string{"", "https://own.test/", "https://another.test/"}[mathrand.IntN(3)]
	case 3:
		e.p.Attributes = map[string]string{"edited": rand.Text()}
	case 4:
		e.Fleet.SetCredentials(e.p.Key, e.p.Instance, secret)
		return
	case 5, 6: // and made again under another address, now and then with another protocol
		e.replaced++
		e.p.Protocol = []string{"http", "socks5"}[mathrand.IntN(2)]
		e.p.Instance, e.p.Host = fmt.Sprint("instance-", e.replaced), fmt.Sprint(e.p.Name, "-", e.replaced)
		defer e.Fleet.SetCredentials(e.p.Key, e.p.Instance, secret)
	case 7: // and taken back
		verdict := e.Fleet.Get(e.p.Key).Verdict
		e.Fleet.SetWithdrawn(e.p.Key, e.p.Instance, true)
		synctest.Wait() // for the probe that was called off
		e.Fleet.Restore(e.p.Key, e.p.Instance, verdict)
		return
	case 8: // they are lost for a moment
		e.Fleet.SetCredentials(e.p.Key, e.p.Instance, nil)
		synctest.Wait()
		e.Fleet.SetCredentials(e.p.Key, e.p.Instance, secret)
		return
	}
	arrive(e.Fleet, e.p)
}

// The bench fails if anybody is.
func TestAProxyIsNeverProbedTwiceAtOnceHoweverItIsEdited(t *testing.T) {
	within(t, func(t *testing.T) {
		b := newBench(t, func(string, int) (result, time.Duration) {
			r := []result{works, works, broken, refuses, {void: true}}[mathrand.IntN(5)]
			return r, mathrand.N(90 * time.Second) // some take their whole timeout
		})
		synctest.Wait()
		var editors []*editor
		for i := range 3 {
			e := &editor{bench: b, p: proxyOf("eu", fmt.Sprint("p", i), func(p *fleet.Proxy) {
				p.Check.Timeout, p.NeedsCredentials = time.Minute, true
			})}
			arrive(b.Fleet, e.p)
			b.Fleet.SetCredentials(e.p.Key, e.p.Instance, right)
			editors = append(editors, e)
		}
		for range 3000 {
			elapse(mathrand.N(20 * time.Second))
			editors[mathrand.IntN(len(editors))].edit()
		}
		for _, e := range editors {
			if e.amidst < 100 || e.replaced < 20 {
				t.Errorf("%s was edited %d times while it was probed, and replaced %d times: that shows little", e.p.Name, e.amidst, e.replaced)
			}
		}
	})
}
