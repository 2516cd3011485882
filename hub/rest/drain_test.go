package rest_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/lease"
	"github.com/proxyfleet/proxy-operator/hub/rest"
	"github.com/proxyfleet/proxy-operator/internal/testkit/openapi"
)

// wantShuttingDown checks how a request for a lease is refused during the drain.
func (a *api) wantShuttingDown(got answer) {
	a.t.Helper()
	a.wantError(got, http.StatusServiceUnavailable, "shutting_down", "this hub is stopping")
	if got.header.Get("Retry-After") != "5" || !got.closes {
		a.t.Errorf("Retry-After %q, closes %v", got.header.Get("Retry-After"), got.closes)
	}
	described(a.t, openapi.Request{Method: "POST", Path: "/v1/leases"}, got)
}

func TestWhoWaitsIsToldAtOnceThatTheHubStops(t *testing.T) {
	inBubble(t, lease.Options{}, nil, func(a *api) {
		var line []*conn
		for range 3 {
			line = append(line, a.send(waiting(50)))
		}
		synctest.Wait()
		start := time.Now()
		a.stop()
		for _, c := range line {
			a.wantShuttingDown(c.read())
			if rest := c.rest(); rest != "" {
				a.t.Errorf("and then %s", rest)
			}
		}
		if took := time.Since(start); took != 0 {
			a.t.Errorf("it took %v", took)
		}
		a.stopped()
		if got := a.metrics.String(); got != "shutting_down shutting_down shutting_down" {
			a.t.Errorf("outcomes %s", got)
		}
		if _, err := a.dial(); err == nil {
			a.t.Error("it still takes connections")
		}
	})
}

// The drain lasts as long as one request is in flight. What comes meanwhile by
// connections that are kept alive is answered, and then they are closed.
func TestDuringTheDrainNothingIsGrantedAndTheRestIsAnswered(t *testing.T) {
	inBubble(t, lease.Options{}, nil, func(a *api) {
		id := a.lease("")
		get := func(method, path string) string {
			return method + " " + path + " HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer " + token + "\r\n\r\n"
		}
		var kept []*conn
		for range 5 {
			c := a.send(get("GET", "/v1/clusters"))
			if got := c.read(); got.status != http.StatusOK || got.closes {
				a.t.Fatalf("%d", got.status)
			}
			kept = append(kept, c)
		}
		slow := a.send(slowLease + `{"ttlSeconds"`)
		synctest.Wait()
		a.stop()
		synctest.Wait()

		kept[0].send(waiting(50))
		a.wantShuttingDown(kept[0].read())
		kept[1].send(slowLease) // refused before its body is there
		a.wantShuttingDown(kept[1].read())
		for i, want := range []struct {
			request string
			status  int
		}{{get("GET", "/v1/leases/"+id), 200}, {get("DELETE", "/v1/leases/"+id), 204}} {
			c := kept[i+2]
			c.send(want.request)
			if got := c.read(); got.status != want.status || !got.closes {
				a.t.Errorf("%d %s, closes %v", got.status, got.body, got.closes)
			}
			if rest := c.rest(); rest != "" {
				a.t.Errorf("and then %s", rest)
			}
		}
		// What was on its way before is not refused.
		slow.send(":    1}")
		if got := slow.read(); got.status != http.StatusCreated || !got.closes {
			a.t.Errorf("%d %s, closes %v", got.status, got.body, got.closes)
		}
		a.stopped()
		if rest := kept[4].rest(); rest != "" {
			a.t.Errorf("the idle connection: %s", rest)
		}
	}, px("c/n/a"))
}

func TestAWaitThatWouldBeginDuringTheDrainDoesNot(t *testing.T) {
	inBubble(t, lease.Options{}, nil, func(a *api) {
		whole := waiting(50)
		c := a.send(whole[:len(whole)-1])
		synctest.Wait()
		a.stop()
		synctest.Wait()
		start := time.Now()
		c.send(whole[len(whole)-1:])
		a.wantShuttingDown(c.read())
		if took := time.Since(start); took != 0 {
			a.t.Errorf("it took %v", took)
		}
		a.stopped()
	})
}

func TestServingLeavesNoGoroutineBehind(t *testing.T) {
	// A bubble fails when one is left. Clients that are in every state at the end:
	inBubble(t, lease.Options{}, nil, func(a *api) {
		a.connect()
		a.send("POST /v1/lea")
		a.send(slowLease)
		a.send(waiting(50))
		a.send("GET /healthz HTTP/1.1\r\nHost: hub\r\n\r\n").read()
		synctest.Wait()
		start := time.Now()
		a.stop()
		a.stopped()
		if took := time.Since(start); took > 10*time.Second {
			a.t.Errorf("Serve returned after %v", took)
		}
	})
}

func TestRequestsInFlightFinishAtShutdown(t *testing.T) {
	a := newAPI(t, nil, px("c/n/a"))
	// A connection whose headers the server has not read yet is cut: in flight is
	// what it has told to go on.
	inFlight := a.send(strings.Replace(slowLease, "\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n", 1))
	const goOn = "HTTP/1.1 100 Continue\r\n\r\n"
	told := make([]byte, len(goOn))
	if _, err := io.ReadFull(inFlight, told); err != nil || string(told) != goOn {
		t.Fatalf("%q, %v", told, err)
	}
	if _, err := io.WriteString(inFlight, `{"ttlSeconds"`); err != nil {
		t.Fatal(err)
	}
	a.stop()
	for { // until nobody is let in any more
		c, err := net.Dial("tcp", a.addr)
		if err != nil {
			break
		}
		_ = c.Close()
	}
	select {
	case err := <-a.done:
		t.Fatalf("Serve returned with a request in flight: %v", err)
	default:
	}
	if _, err := io.WriteString(inFlight, `:    1}`); err != nil {
		t.Fatal(err)
	}
	if got := inFlight.read(); got.status != http.StatusCreated {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestShutdownDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l, done := newPipes(), make(chan error, 1)
		hang := make(chan struct{})
		server := rest.New(rest.Options{
			Leases: lease.New(lease.Options{}),
			Ready:  func() bool { <-hang; return true },
		})
		go func() { done <- server.Serve(ctx, l) }()
		c, err := l.dial()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "POST /v1/leases HTTP/1.1\r\nHost: hub\r\nContent-Length: 0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		start := time.Now()
		cancel()
		if err := <-done; err != nil || time.Since(start) > 11*time.Second {
			t.Errorf("Serve returned %v after %v", err, time.Since(start))
		}
		close(hang)
	})
}
