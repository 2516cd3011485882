package health

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
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

func TestOneProbePerProxyAtATime(t *testing.T) {
	var now, most atomic.Int32
	front := peer(t, func(conn net.Conn) {
		_, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		n := now.Add(1)
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		now.Add(-1) // before the answer, after which the next one may come
		fmt.Fprint(conn, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	})
	f := fleet.New(fleet.Options{AllowLocal: true})
	rec := newRecorder()
	start(t, f, Options{AllowLocal: true, URL: "http://site.test/", Recorder: rec})
	arrive(f, proxyAt(t, "a", front, func(p *fleet.Proxy) { p.Check.Interval = time.Microsecond }))
	for rec.count("a UnexpectedStatus") < 50 {
		<-rec.observed
	}
	if most.Load() != 1 {
		t.Errorf("%d probes of one proxy at once", most.Load())
	}
}
