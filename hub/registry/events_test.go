package registry

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/testkit/apiserver"
)

const eventsPath = "/apis/events.k8s.io/v1/namespaces/crawl/events"

// notes are those of the Events that the cluster has, by reason.
func notes(c *apiserver.Cluster) map[string]*eventsv1.Event {
	all := map[string]*eventsv1.Event{}
	for _, e := range c.Events("crawl") {
		all[e.Reason] = e
	}
	return all
}

func arrives(t *testing.T, c *apiserver.Cluster, reason string) *eventsv1.Event {
	t.Helper()
	eventually(t, reason+" arrived", func() bool { return notes(c)[reason] != nil }, func() any { return c.Events("") })
	return notes(c)[reason]
}

func say(r events.EventRecorder, about *v1alpha1.Proxy, reason, note string) {
	r.Eventf(about, nil, corev1.EventTypeNormal, reason, "Test", "%s", note)
}

// goroutines counts those that are not about a request, of which there are some
// at times, and some idle connections.
func goroutines() int {
	stacks := make([]byte, 4<<20)
	all := strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n")
	return len(slices.DeleteFunc(all, func(stack string) bool { return strings.Contains(stack, "net/http") }))
}

// TestEventsGoThroughThePresentConnection keeps two recorders over all
// rotations: one of what the controllers are engaged with, one that a pass had.
func TestEventsGoThroughThePresentConnection(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	c.Put(proxyNamed("a"))
	about := c.Get("crawl", "a")
	r, e, s := connected(t, c)
	_, cl := e.last()
	passed, err := r.Get(t.Context(), "spoke")
	if err != nil {
		t.Fatal(err)
	}
	recorder, ofPass := cl.GetEventRecorder("me"), passed.GetEventRecorder("me")
	rotateAndSay := func(i int) {
		rotate(t, s, c.Kubeconfig(fmt.Sprintf("token-%d", i)))
		for which, recorder := range map[string]events.EventRecorder{"A": recorder, "B": ofPass} {
			reason := fmt.Sprint(which, i)
			say(recorder, about, reason, "once")
			got := arrives(t, c, reason)
			if got.Regarding.UID != about.UID || got.Regarding.Kind != "Proxy" || got.Note != "once" || got.ReportingController != "me" || got.Action != "Test" {
				t.Errorf("recorded %+v", got)
			}
			say(recorder, about, reason, "twice")
			eventually(t, reason+" counted", func() bool { e := notes(c)[reason]; return e.Series != nil && e.Series.Count == 2 }, func() any { return notes(c)[reason] })
		}
		eventually(t, "one connection is left", func() bool { return c.Watches() == len(kinds) }, func() any { return c.Watches() })
	}
	rotateAndSay(0)
	before := goroutines()
	for i := range 10 {
		rotateAndSay(i + 1)
	}
	eventually(t, "as before", func() bool { return goroutines() <= before+2 },
		func() any { return fmt.Sprintf("%d goroutines, %d before", goroutines(), before) })
	if tokens := c.Tokens(); len(tokens) != 12 {
		t.Errorf("shown %v", tokens)
	}
	former := cl.GetEventRecorderFor("former") //nolint:staticcheck // the interface has it
	former.Event(about, corev1.EventTypeWarning, "Former", "says")
	if got := arrives(t, c, "Former"); got.Note != "says" || got.Type != corev1.EventTypeWarning || got.Namespace != "crawl" {
		t.Errorf("recorded %+v", got)
	}
	r.deregister("spoke")
	say(recorder, about, "Late", "the spoke is not registered any more")
	say(ofPass, about, "Late", "the spoke is not registered any more")
	eventually(t, "nothing is left", func() bool { return c.Watches() == 0 }, func() any { return c.Watches() })
	if notes(c)["Late"] != nil {
		t.Error("an Event went to a spoke that is not registered")
	}
}

func TestARefusedEventIsToldOnceAndNotInTheServersWords(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	c.Put(proxyNamed("a"))
	about := c.Get("crawl", "a")
	var log lockedBuffer
	klog.LogToStderr(false)
	klog.SetOutput(&log) // where the libraries write
	t.Cleanup(func() { klog.SetOutput(os.Stderr); klog.LogToStderr(true) })
	r, e := startedWith(t, often)
	r.Log = funcr.New(func(prefix, args string) { log.add(prefix + args) }, funcr.Options{Verbosity: 4})
	s := put(r, "spoke", c.Kubeconfig(theToken))
	until(t, s, "connected", reason(v1alpha1.ReasonConnected))
	_, cl := e.last()
	recorder := cl.GetEventRecorder("me")
	c.Answer(eventsPath, apiserver.Status(403, "Forbidden", "user "+theToken+" may not, says the gateway"))
	for i := range 5 {
		say(recorder, about, fmt.Sprint("Refused", i), "secret of ours")
	}
	told := func() int { return strings.Count(log.String(), "Event not written") }
	eventually(t, "all are asked for", func() bool { return c.Writes()["POST events"] == 5 && told() > 0 }, func() any { return c.Writes() })
	if n := told(); n != 1 {
		t.Errorf("told %d times", n)
	}
	c.Answer(eventsPath, apiserver.Answer{})
	say(recorder, about, "Taken", strings.Repeat("ä", 1000))
	if note := arrives(t, c, "Taken").Note; len(note) > maxNote || !strings.HasPrefix(note, "ääää") || !strings.HasSuffix(note, "ä…") {
		t.Errorf("note of %d bytes: …%s", len(note), note[len(note)-10:])
	}
	recorder.Eventf(&unknown{}, nil, corev1.EventTypeNormal, "Stray", "Test", "of what nobody knows")
	klog.Flush()
	text := log.String()
	if !strings.Contains(text, "create events.events.k8s.io") {
		t.Errorf("it does not say what was refused:\n%s", text)
	}
	if !strings.Contains(text, "Event without an object") {
		t.Error("an Event of nothing is not told")
	}
	for _, word := range []string{theToken, "gateway", "secret of ours", "inline"} {
		if strings.Contains(text, word) {
			t.Errorf("the log says %q:\n%s", word, text)
		}
	}
}

// unknown is no kind of the scheme.
type unknown struct{ v1alpha1.Proxy }

func TestAnEventOutlivesAServerThatIsAway(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	c.Put(proxyNamed("a"))
	_, e, _ := connected(t, c)
	_, cl := e.last()
	c.Answer(eventsPath, apiserver.Status(503, "ServiceUnavailable", "starting"))
	say(cl.GetEventRecorder("me"), c.Get("crawl", "a"), "Kept", "x")
	eventually(t, "asked for", func() bool { return c.Writes()["POST events"] > 0 }, func() any { return c.Writes() })
	c.Answer(eventsPath, apiserver.Answer{})
	arrives(t, c, "Kept")
}

func TestEventsThatASpokeDoesNotTakeAreBounded(t *testing.T) {
	c := apiserver.Start(t).Cluster("c")
	c.Put(proxyNamed("a"))
	about := c.Get("crawl", "a")
	r, e, _ := connected(t, c)
	_, cl := e.last()
	recorder := cl.GetEventRecorder("me")
	c.Answer(eventsPath, apiserver.Answer{Hang: true})
	before, began := runtime.NumGoroutine(), time.Now()
	const batches, each = 10, 400 // of which the library itself drops none
	most := 0
	for i := range batches {
		for j := range each {
			say(recorder, about, fmt.Sprintf("Hangs-%d-%d", i, j), "x")
		}
		eventually(t, "taken or dropped", func() bool {
			now := runtime.NumGoroutine()
			most = max(most, now)
			return now <= before+eventsWaiting+50
		}, func() any { return runtime.NumGoroutine() })
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("said after %s", took)
	}
	if n := c.Writes()["POST events"]; n == 0 || n > eventsAtOnce*(2+int(time.Since(began)/requestTimeout)) {
		t.Errorf("%d requests", n)
	}
	t.Logf("%d goroutines at most", most-before)
	r.deregister("spoke")
	c.Answer(eventsPath, apiserver.Answer{})
	eventually(t, "all are gone", func() bool { return runtime.NumGoroutine() < before }, func() any { return runtime.NumGoroutine() })
}
