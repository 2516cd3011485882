package rest_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/lease"
	"github.com/proxyfleet/proxy-operator/hub/rest"
)

// waiting is the request for a lease that waits so long, spoken by hand.
func waiting(seconds int) string {
	body := fmt.Sprintf(`{"waitSeconds":%d}`, seconds)
	return fmt.Sprintf("POST /v1/leases HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", token, len(body), body)
}

// pending is what waits for an answer.
func pending(all []<-chan answer) (n int) {
	synctest.Wait()
	for _, c := range all {
		if len(c) == 0 {
			n++
		}
	}
	return n
}

func TestWhoWaitsIsServedInTheOrderOfArrival(t *testing.T) {
	inBubble(t, lease.Options{}, nil, func(a *api) {
		id := a.lease("")
		var line []<-chan answer
		for range 4 {
			line = append(line, a.later("POST", "/v1/leases", `{"waitSeconds":50}`))
			synctest.Wait() // it waits before the next one comes
		}
		start := time.Now()
		for len(line) > 0 {
			if n := pending(line); n != len(line) {
				a.t.Fatalf("%d wait, want %d", n, len(line))
			}
			a.call("DELETE", "/v1/leases/"+id, "")
			if pending(line[:1]) != 0 || pending(line[1:]) != len(line)-1 {
				a.t.Fatal("it is not the first of those that wait who is served, and alone")
			}
			got := <-line[0]
			if id = got.text("leaseID"); got.status != http.StatusCreated || id == "" {
				a.t.Fatalf("%d %s", got.status, got.body)
			}
			line = line[1:]
		}
		if took := time.Since(start); took != 0 {
			a.t.Errorf("served %v after the release", took)
		}
		if got := a.metrics.String(); got != "granted granted granted granted granted" || len(a.metrics.waits) != 4 {
			a.t.Errorf("outcomes %s, waits %v: want one for each that waited", got, a.metrics.waits)
		}
	}, px("c/n/a", maxLeases(1)))
}

func TestWhateverFreesAProxyEndsAWait(t *testing.T) {
	for name, free := range map[string]func(a *api, id string){
		"its recovery": func(a *api, _ string) { a.fleet.Upsert(px("c/n/sick")) },
		"its arrival":  func(a *api, _ string) { a.fleet.Upsert(px("c/n/new")) },
		"a release":    func(a *api, id string) { a.call("DELETE", "/v1/leases/"+id, "") },
		"an expiry":    func(*api, string) { <-time.After(7 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, lease.Options{}, nil, func(a *api) {
				id := a.lease(`{"ttlSeconds":7}`)
				waits := a.later("POST", "/v1/leases", `{"waitSeconds":20}`)
				if pending([]<-chan answer{waits}) != 1 {
					a.t.Fatal("it does not wait")
				}
				start := time.Now()
				free(a, id)
				freed := time.Since(start)
				got := <-waits
				if late := time.Since(start) - freed; got.status != http.StatusCreated || late > 10*time.Millisecond {
					a.t.Errorf("%d %s, %v late", got.status, got.body, late)
				}
			}, px("c/n/a", maxLeases(1)), px("c/n/sick", sick))
		})
	}
}

func TestAWaitOutlastsTheServersTimeouts(t *testing.T) {
	inBubble(t, lease.Options{}, nil, func(a *api) {
		c := a.connect()
		for range 2 { // on one connection
			start := time.Now()
			c.send(waiting(50))
			got := c.read()
			if took := time.Since(start); took != 50*time.Second {
				a.t.Errorf("answered after %v", took)
			}
			a.wantError(got, http.StatusConflict, "no_match", "of 1, 1 are not healthy")
			if got.closes {
				a.t.Error("the connection is not kept")
			}
		}
		// What bounds slow clients is back.
		start := time.Now()
		c.send(slowLease + "{")
		a.wantError(c.read(), http.StatusRequestTimeout, "request_timeout")
		if took := time.Since(start); took != 15*time.Second || c.rest() != "" {
			a.t.Errorf("half a body was waited for for %v", took)
		}
		if got := fmt.Sprint(a.metrics.waits); got != "[50s 50s]" {
			a.t.Errorf("waits %s", got)
		}
	}, px("c/n/a", sick))
}

func TestAClientHasItsTimeToReadAfterAWait(t *testing.T) {
	for after, answered := range map[time.Duration]bool{29 * time.Second: true, 31 * time.Second: false} {
		t.Run(after.String(), func(t *testing.T) {
			inBubble(t, lease.Options{}, nil, func(a *api) {
				c := a.send(waiting(40))
				<-time.After(40*time.Second + after)
				if answered {
					a.wantError(c.read(), http.StatusConflict, "no_match")
				} else if got := c.rest(); got != "" {
					a.t.Errorf("an answer that nobody takes is held for ever: %s", got)
				}
			})
		})
	}
}

func TestAWaitSetsNoDeadlineThatTheServerDoesNotHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		server := &http.Server{Handler: rest.New(rest.Options{Token: token, Leases: lease.New(lease.Options{})})}
		go func() { _ = server.Serve(l) }()
		t.Cleanup(func() { _ = server.Close() })
		a := &api{t: t, dial: l.dial}
		c := a.send(waiting(1))
		<-time.After(time.Hour)
		a.wantError(c.read(), http.StatusConflict, "no_match")
	})
}

func TestARequestThatNeedNotWaitDoesNot(t *testing.T) {
	inBubble(t, lease.Options{}, nil, func(a *api) {
		start := time.Now()
		a.lease(`{"waitSeconds":50}`)
		a.lease(`{"waitSeconds":0}`)
		a.wantError(a.call("POST", "/v1/leases", `{"waitSeconds":0,"cluster":"nowhere"}`), http.StatusConflict, "no_match")
		a.wantError(a.call("POST", "/v1/leases", `{"waitSeconds":50,"target":"a b"}`), http.StatusBadRequest, "invalid_request", "target")
		if took := time.Since(start); took != 0 {
			a.t.Errorf("it took %v", took)
		}
		if got := fmt.Sprint(a.metrics.waits); got != "[0s 0s]" { // of those that had a waitSeconds
			a.t.Errorf("waits %s", got)
		}
	}, px("c/n/a"))
}

func TestAClientThatHangsUpLeavesNothingBehind(t *testing.T) {
	inBubble(t, lease.Options{}, nil, func(a *api) {
		id := a.lease("")
		gone := a.send(waiting(50))
		synctest.Wait()
		stays := a.send(waiting(50))
		synctest.Wait()
		start := time.Now()
		_ = gone.Close()
		synctest.Wait()
		if got := a.metrics.String(); got != "granted hung_up" || time.Since(start) != 0 {
			a.t.Errorf("outcomes %s after %v: it is noticed at once", got, time.Since(start))
		}
		if log := a.log.String(); !strings.Contains(log, `"path"="/v1/leases" "status"=499`) || strings.Contains(log, "panic") {
			a.t.Errorf("log %s", log)
		}
		a.call("DELETE", "/v1/leases/"+id, "")
		if got := stays.read(); got.status != http.StatusCreated {
			a.t.Errorf("the next in line: %d %s", got.status, got.body)
		}
		if n := a.leases.ActiveByCluster()["c"]; n != 1 {
			a.t.Errorf("%d leases", n)
		}
	}, px("c/n/a", maxLeases(1)))
}

func TestAClientThatIsGoneByThenGetsNoLease(t *testing.T) {
	var goOn chan struct{} // is the bubble's
	hold := func(o *rest.Options) {
		goOn = make(chan struct{})
		o.Ready = func() bool { <-goOn; return true }
	}
	inBubble(t, lease.Options{}, hold, func(a *api) {
		for _, request := range []string{waiting(0), waiting(50)} {
			c := a.send(request)
			synctest.Wait()
			_ = c.Close()
			synctest.Wait()
			goOn <- struct{}{}
			synctest.Wait()
		}
		if got, n := a.metrics.String(), a.leases.ActiveByCluster()["c"]; got != "hung_up hung_up" || n != 0 {
			a.t.Errorf("outcomes %s, %d leases for nobody", got, n)
		}
	}, px("c/n/a"))
}

func TestHangingUpIsNoticedHoweverTheBodyCame(t *testing.T) {
	for name, request := range map[string]string{
		"with a length": waiting(50),
		"in chunks": "POST /v1/leases HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer " + token +
			"\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{\"waitSe\r\na\r\nconds\":50}\r\n0\r\n\r\n",
		"when told to go on": strings.Replace(waiting(50), "\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n", 1),
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, nil)
			waits := func(n int) { // until so many have been answered
				for len(strings.Fields(a.metrics.String())) < n {
					<-time.After(time.Millisecond)
				}
			}
			_ = a.send(request).Close()
			waits(1)
			// A client that closes its own side alone is taken for one that hangs up, and
			// must not be told that all is well.
			half := a.send(request)
			if err := half.Conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			waits(2)
			if data := half.rest(); strings.Contains(data, "200") || strings.Contains(data, "201") {
				t.Errorf("told %q", data)
			}
			if got := a.metrics.String(); got != "hung_up hung_up" {
				t.Errorf("outcomes %s", got)
			}
		})
	}
}

func TestTwoThatWaitWithOneKeyShareOneLease(t *testing.T) {
	inBubble(t, lease.Options{}, nil, func(a *api) {
		id := a.lease("")
		const body = `{"waitSeconds":50}`
		first := a.later("POST", "/v1/leases", body, key("k"))
		synctest.Wait()
		second := a.later("POST", "/v1/leases", body, key("k"))
		synctest.Wait()
		third := a.later("POST", "/v1/leases", body)
		synctest.Wait()
		a.call("DELETE", "/v1/leases/"+id, "")
		one, two := <-first, <-second
		if one.status != http.StatusCreated || one.text("leaseID") != two.text("leaseID") {
			a.t.Errorf("%d %s and %d %s", one.status, one.body, two.status, two.body)
		}
		if pending([]<-chan answer{third}) != 1 {
			a.t.Error("the third got one as well")
		}
		a.call("DELETE", "/v1/leases/"+one.text("leaseID"), "")
		if got := <-third; got.status != http.StatusCreated {
			a.t.Errorf("the third: %d %s", got.status, got.body)
		}
	}, px("c/n/a", maxLeases(1)))
}

func TestTooManyThatWaitAreToldToComeBack(t *testing.T) {
	inBubble(t, lease.Options{MaxWaiters: 2}, nil, func(a *api) {
		var line []<-chan answer
		for range 2 {
			line = append(line, a.later("POST", "/v1/leases", `{"waitSeconds":9}`))
		}
		if pending(line) != 2 {
			a.t.Fatal("they do not wait")
		}
		got := a.call("POST", "/v1/leases", `{"waitSeconds":9}`)
		a.wantError(got, http.StatusServiceUnavailable, "too_many_waiters", "too many requests are waiting")
		if got.header.Get("Retry-After") != "1" {
			a.t.Errorf("Retry-After %q", got.header.Get("Retry-After"))
		}
		a.wantError(a.call("POST", "/v1/leases", ""), http.StatusConflict, "no_match") // who does not wait is not too many
		for _, c := range line {
			a.wantError(<-c, http.StatusConflict, "no_match")
		}
		if got := a.metrics.String(); got != "too_many_waiters no_match no_match no_match" {
			a.t.Errorf("outcomes %s", got)
		}
	})
}

func TestWhoWaitsHearsThatTheHubNoLongerLeads(t *testing.T) {
	var leads atomic.Bool
	leads.Store(true)
	inBubble(t, lease.Options{Leading: leads.Load}, nil, func(a *api) {
		waits := a.later("POST", "/v1/leases", `{"waitSeconds":50}`)
		if pending([]<-chan answer{waits}) != 1 {
			a.t.Fatal("it does not wait")
		}
		leads.Store(false)
		a.wantError(<-waits, http.StatusServiceUnavailable, "not_leader", "does not lead")
		if got := a.metrics.String(); got != "not_leader" {
			a.t.Errorf("outcomes %s", got)
		}
	})
}

func TestAClientsOwnDeadlineEndsItsWait(t *testing.T) {
	inBubble(t, lease.Options{}, nil, func(a *api) {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		_, err := a.try("POST", "/v1/leases", `{"waitSeconds":50}`, func(r *http.Request) { *r = *r.WithContext(ctx) })
		synctest.Wait()
		if got := a.metrics.String(); err == nil || got != "hung_up" {
			a.t.Errorf("%v, outcomes %s", err, got)
		}
		a.fleet.Upsert(px("c/n/a"))
		if n := a.leases.ActiveByCluster()["c"]; n != 0 {
			a.t.Errorf("%d leases for nobody", n)
		}
	})
}
