package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// granter is an API that grants what it is told to, and keeps books.
type granter struct {
	sync.Mutex
	delay     time.Duration
	refuse    func(n int) int // the status of the nth POST, zero to grant
	posts     int
	granted   int
	open      map[string]bool
	bodies    map[string]int
	strangers []string // ids that were released and not open, and what was wrong otherwise
}

func (g *granter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if g.delay > 0 {
		<-time.After(g.delay)
	}
	g.Lock()
	defer g.Unlock()
	if got := r.Header.Get("Authorization"); got != "Bearer secret" {
		g.strangers = append(g.strangers, "Authorization: "+got)
	}
	if r.Method == http.MethodDelete {
		id := strings.TrimPrefix(r.URL.Path, "/v1/leases/")
		if !g.open[id] {
			g.strangers = append(g.strangers, id)
		}
		delete(g.open, id)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	g.posts++
	g.bodies[string(body)]++
	if g.refuse != nil {
		if status := g.refuse(g.posts); status != 0 {
			http.Error(w, "no", status)
			return
		}
	}
	g.granted++
	id := fmt.Sprintf("%026d", g.granted)
	g.open[id] = true
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"leaseID":%q,"client":"default"}`, id)
}

// load runs the program against a server for a moment and returns what it printed.
func load(t *testing.T, g *granter, args ...string) result {
	t.Helper()
	g.open, g.bodies = map[string]bool{}, map[string]int{}
	server := httptest.NewServer(g)
	defer server.Close()
	file := filepath.Join(t.TempDir(), "bodies")
	if err := os.WriteFile(file, []byte("{\"target\":\"a.test\"}\n{\"target\":\"b.test\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"-address", server.Listener.Addr().String(), "-token", "secret", "-bodies", file, "-connections", "4", "-warm", "50ms", "-time", "500ms"}, args...)
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), args, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	var r result
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v in %s", err, stdout.String())
	}
	g.Lock()
	defer g.Unlock()
	if len(g.strangers) > 0 {
		t.Errorf("%d requests were wrong, the first: %s", len(g.strangers), g.strangers[0])
	}
	return r
}

func TestWhatIsCountedWasAnsweredWithinTheTime(t *testing.T) {
	for release, left := range map[string]func(g *granter) int{
		releaseNo:    func(g *granter) int { return g.granted },
		releaseAfter: func(*granter) int { return 0 },
		releaseEach:  func(*granter) int { return 0 },
	} {
		t.Run(release, func(t *testing.T) {
			g := &granter{delay: 10 * time.Millisecond}
			r := load(t, g, "-release", release, "-pid", fmt.Sprint(os.Getpid()))
			if want := left(g); len(g.open) != want {
				t.Errorf("%d leases are left, want %d", len(g.open), want)
			}
			if r.Errors != 0 || r.Seconds != 0.5 {
				t.Errorf("%d errors in %g s: %s", r.Errors, r.Seconds, r.FirstError)
			}
			// 4 connections, 10 ms for a request: 200 in half a second, or half of that
			// where each is followed by another. On a busy machine fewer.
			most := int64(200)
			if release == releaseEach {
				most = 100
			}
			if n := r.Acquire.Requests; n < 1 || n > most+4 || n >= int64(g.posts) {
				t.Errorf("%d of %d requests were counted, want most but those before the time", n, g.posts)
			}
			if got, want := r.Acquire.PerSecond, float64(r.Acquire.Requests)/0.5; got != want {
				t.Errorf("%g a second, want %g", got, want)
			}
			for name, us := range map[string]int64{"p50": r.Acquire.Latency.P50, "max": r.Acquire.Latency.Max} {
				if us < 10_000 {
					t.Errorf("%s is %d µs of answers that take 10 ms", name, us)
				}
			}
			if got := r.Release.Requests; (got == 0) != (release == releaseNo) {
				t.Errorf("%d releases", got)
			}
			if len(g.bodies) != 2 {
				t.Errorf("bodies sent: %v", g.bodies)
			}
		})
	}
}

func TestAnswersOtherThanALeaseAreErrorsAndNoRequests(t *testing.T) {
	g := &granter{delay: time.Millisecond, refuse: func(n int) int {
		if n%2 == 0 {
			return http.StatusConflict
		}
		return 0
	}}
	r := load(t, g)
	if r.Errors != int64(g.posts-g.granted) || r.FirstError != "answered with status 409" {
		t.Errorf("%d errors (%s) of %d refusals", r.Errors, r.FirstError, g.posts-g.granted)
	}
	if r.Acquire.Requests > int64(g.granted) || r.Release.Requests != int64(g.granted) {
		t.Errorf("%d granted: %d counted, %d released", g.granted, r.Acquire.Requests, r.Release.Requests)
	}
}

func TestABrokenConnectionIsAnErrorAndNotAskedAgain(t *testing.T) {
	g := &granter{refuse: func(int) int { panic(http.ErrAbortHandler) }}
	r := load(t, g)
	if r.Errors != 4 || r.FirstError == "" || r.Acquire.Requests != 0 {
		t.Errorf("%d errors (%s), %d requests; want one error for each connection", r.Errors, r.FirstError, r.Acquire.Requests)
	}
}

func TestTheSizeOfAnAnswerIsAllOfIt(t *testing.T) {
	const body = `{"leaseID":"01234567890123456789012345","a":1}`
	answer := fmt.Sprintf("HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	ids, size, err := answered(t, answer).acquire(nil, nil)
	if err != nil || string(ids) != "01234567890123456789012345" || size != len(answer) {
		t.Errorf("%q, %d bytes, %v; want %d", ids, size, err, len(answer))
	}
}

// answered is a connection on which this is what comes.
func answered(t *testing.T, answer string) *wire {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, answer)
	}))
	t.Cleanup(server.Close)
	w, err := dial(context.Background(), &settings{address: server.Listener.Addr().String(), time: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	if _, err := io.WriteString(w, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return w
}

func TestWhatIsNoAnswerIsAnError(t *testing.T) {
	for name, answer := range map[string]string{
		"nothing":          "",
		"another protocol": "SSH-2.0-OpenSSH_9.0\r\n\r\n",
		"no length":        "HTTP/1.1 201 Created\r\n\r\n{}",
		"cut off":          "HTTP/1.1 201 Created\r\nContent-Length: 50\r\n\r\n{",
		"no id":            "HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}",
		"a short id":       "HTTP/1.1 201 Created\r\nContent-Length: 15\r\n\r\n{\"leaseID\":\"a\"}",
	} {
		if ids, _, err := answered(t, answer).acquire(nil, nil); err == nil || len(ids) > 0 {
			t.Errorf("%s: %q, %v", name, ids, err)
		}
	}
}

func TestQuantilesAreThoseOfTheValues(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, spread := range []float64{1, 1e3, 1e6, 1e9} {
		var h, half histogram
		var values []int64
		for i := range 10_000 {
			us := int64(random.ExpFloat64() * spread)
			values = append(values, us)
			part := []*histogram{&h, &half}[i%2]
			part.add(time.Duration(us) * time.Microsecond)
		}
		h.merge(&half)
		slices.Sort(values)
		for _, share := range []float64{0, 0.5, 0.9, 0.99, 0.999, 1} {
			exact := values[min(len(values)-1, int(share*float64(len(values))))]
			if got := h.quantile(share); got < exact || float64(got) > float64(exact)*(1+1.0/64) {
				t.Errorf("spread %g: quantile %g is %d, of the values %d", spread, share, got, exact)
			}
		}
		total := int64(0)
		for _, b := range h.latency().Buckets {
			total += b.Count
		}
		if total != 10_000 || h.max != values[len(values)-1] {
			t.Errorf("%d counted, %d at most; want 10000, %d", total, h.max, values[len(values)-1])
		}
	}
}

func TestEveryBucketBeginsWhereTheOneBeforeEnds(t *testing.T) {
	for i := 1; i < 30*perPower; i++ {
		if from := uint64(upTo(i-1)) + 1; bucketOf(from) != i || bucketOf(uint64(upTo(i))) != i {
			t.Fatalf("bucket %d is from %d to %d, which are in %d and %d", i, from, upTo(i), bucketOf(from), bucketOf(uint64(upTo(i))))
		}
	}
}

func TestABadCommandLineIsRefused(t *testing.T) {
	for _, args := range [][]string{
		{}, {"-address", "x:1"}, {"-bodies", "f", "-address", "x:1", "-release", "never"},
		{"-bodies", "f", "-address", "x:1", "more"}, {"-bodies", "f", "-address", "x:1", "-connections", "0"},
	} {
		if code := run(t.Context(), args, io.Discard, io.Discard); code != 2 {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
}
