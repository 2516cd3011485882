package leadership

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// leader says who of them leads, and fails where two do.
func leader(t *testing.T, all ...*replica) *replica {
	t.Helper()
	var found *replica
	for _, r := range all {
		if !r.Leading() {
			continue
		}
		if found != nil {
			t.Fatalf("%s and %s lead at once", found.name, r.name)
		}
		found = r
	}
	return found
}

func cut(context.Context, string) error { return errCut }

func TestALeaderThatIsCutOffStopsBeforeAnotherLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shared{}
		a, b := newReplica(s, "a"), newReplica(s, "b")
		a.elect(t)
		if passes(time.Second); leader(t, a, b) != a {
			t.Fatal("the only one does not lead")
		}
		b.elect(t)
		if passes(time.Hour); leader(t, a, b) != a {
			t.Fatal("a leader that renews does not stay")
		}
		a.on(cut, nil)
		began := time.Now()
		for leader(t, a, b) == a {
			passes(time.Millisecond)
		}
		if took := time.Since(began); took > deadline {
			t.Errorf("it leads for %s without a renewal", took)
		}
		for leader(t, a, b) != b {
			if passes(time.Millisecond); time.Since(began) > time.Minute {
				t.Fatal("nobody takes over")
			}
		}
		if took := time.Since(began); took < duration-retry*2 {
			t.Errorf("the other leads after %s, which is before the Lease has run out", took)
		}
		if <-a.done; a.Leading() {
			t.Error("leads on when its elector has ended")
		}
	})
}

func TestALeaderThatStopsHandsOverAtOnceAndDoesNotLeadWhenItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shared{}
		a, b := newReplica(s, "a"), newReplica(s, "b")
		a.elect(t)
		passes(time.Second)
		b.elect(t)
		passes(time.Minute)
		a.on(func(_ context.Context, verb string) error {
			if verb == "update" && a.Leading() {
				t.Error("the Lease is given up by one who leads")
			}
			return nil
		}, nil)
		a.cancel()
		began := time.Now()
		for leader(t, a, b) != b {
			if passes(time.Millisecond); time.Since(began) > time.Minute {
				t.Fatal("nobody takes over")
			}
		}
		if took := time.Since(began); took > 2*retry {
			t.Errorf("the other leads after %s", took)
		}
	})
}

// roundTrip answers when it is told to.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func request(t *testing.T, method, path string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "https://spoke.example"+path, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestTheLeaseIsNotGivenUpWhileAWriteIsUnderWay(t *testing.T) {
	for _, ends := range []bool{true, false} {
		t.Run(fmt.Sprintf("it ends in time: %v", ends), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &shared{}
				a := newReplica(s, "a")
				a.elect(t)
				passes(time.Second)
				answer, answered := make(chan struct{}), make(chan error)
				way := a.Fence(roundTrip(func(*http.Request) (*http.Response, error) { <-answer; return &http.Response{}, nil }))
				go func() {
					_, err := way.RoundTrip(request(t, "PATCH", "/api/v1/pods"))
					answered <- err
				}()
				synctest.Wait()
				a.cancel()
				passes(3 * time.Second)
				if s.record.HolderIdentity != "a" || a.Leading() {
					t.Errorf("given up (%q), or led on, with a write under way", s.record.HolderIdentity)
				}
				if _, err := way.RoundTrip(request(t, "PATCH", "/api/v1/pods")); !errors.Is(err, ErrNotLeading) {
					t.Errorf("another write: %v", err)
				}
				if !ends {
					<-a.done
					if s.record.HolderIdentity != "a" {
						t.Error("given up with a write that does not end")
					}
				}
				close(answer)
				if err := <-answered; err != nil {
					t.Error(err)
				}
				if <-a.done; ends && s.record.HolderIdentity != "" {
					t.Error("not given up when the write has ended")
				}
			})
		})
	}
}

func TestWhoDoesNotLeadChangesNothingInACluster(t *testing.T) {
	const reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	for _, tc := range []struct {
		method, path string
		passes       bool
	}{
		{"GET", "/api/v1/pods", true},
		{"HEAD", "/api/v1/pods", true},
		{"POST", reviews, true},
		{"POST", "/k8s/clusters/c-1" + reviews, true},
		{"POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", true},
		{"POST", "/api/v1/namespaces/x/pods", false},
		{"POST", "/apis/events.k8s.io/v1/namespaces/x/events", false},
		{"PUT", "/apis/crawl.proxyfleet.dev/v1alpha1/namespaces/x/spokes/y/status", false},
		{"PATCH", "/apis/crawl.proxyfleet.dev/v1alpha1/namespaces/x/proxies/y/status", false},
		{"DELETE", "/api/v1/namespaces/x/pods/y", false},
	} {
		t.Run(tc.method+" "+tc.path, func(t *testing.T) {
			r := newReplica(&shared{}, "a")
			out := 0
			way := r.Fence(roundTrip(func(*http.Request) (*http.Response, error) { out++; return &http.Response{}, nil }))
			_, err := way.RoundTrip(request(t, tc.method, tc.path))
			if (err == nil) != tc.passes || (out == 1) != tc.passes || err != nil && !errors.Is(err, ErrNotLeading) {
				t.Errorf("%d went out (%v), passes: %v", out, err, tc.passes)
			}
			if err := r.Lock(r.candidate).Create(t.Context(), r.term(0)); err != nil {
				t.Fatal(err)
			}
			if _, err := way.RoundTrip(request(t, tc.method, tc.path)); err != nil {
				t.Errorf("who leads: %v", err)
			}
		})
	}
}

// Whatever becomes of requests, and of replicas, there are never two that lead.
func TestTwoNeverLeadAtOnceWhateverBecomesOfRequests(t *testing.T) {
	// The elector waits for random times of its own, so now and then one replica leads all
	// the while; not in all histories.
	handovers := 0
	for seed := range uint64(20) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 1))
				s := &shared{}
				var all []*replica
				join := func() {
					r := newReplica(s, fmt.Sprint(len(all)))
					all = append(all, r)
					r.elect(t)
				}
				for range 3 {
					join()
				}
				led := map[*replica]bool{}
				for range 60 {
					r := all[random.IntN(len(all))]
					delay := time.Duration(random.Int64N(int64(12 * time.Second)))
					late := func(ctx context.Context, _ string) error {
						select {
						case <-time.After(delay):
							return nil
						case <-ctx.Done():
							return ctx.Err()
						}
					}
					switch random.IntN(6) {
					case 0:
						r.on(cut, nil)
					case 1:
						r.on(nil, cut) // it is done, and not known to be
					case 2:
						r.on(late, nil)
					case 3:
						r.on(nil, late)
					case 4:
						r.on(nil, nil)
					case 5:
						if random.IntN(4) == 0 {
							r.cancel()
							join()
						}
					}
					for range 40 {
						passes(time.Duration(random.Int64N(int64(time.Second))))
						if r := leader(t, all...); r != nil {
							led[r] = true
						}
					}
				}
				handovers += max(0, len(led)-1)
			})
		})
	}
	if handovers < 10 {
		t.Errorf("%d handovers: nothing was shown", handovers)
	}
}
