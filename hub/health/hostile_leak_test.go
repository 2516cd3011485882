package health_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

const (
	// rounds is how often each hostile proxy is probed.
	rounds = 20
	// mostTaken is what a flood may come to: what is read, and what buffers the kernel
	// has on both sides, of which each may grow to some megabytes.
	mostTaken = 16 << 20
)

// held counts what a process has: goroutines and open files.
func held(t *testing.T) (goroutines, files int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Logf("files are not counted: %v", err)
	}
	return runtime.NumGoroutine(), len(entries)
}

// A hub that keeps something of each probe of a proxy that hangs or floods ends when
// such proxies have been there for some days.
func TestNothingIsKeptOfHostileProxies(t *testing.T) {
	if listener, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		listener.Close() // after which the runtime has the files that it keeps
	}
	// Nothing is closed by the collector, in place of whoever forgot to.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	goroutines, files := held(t)
	t.Run("probe", probeAllAgainAndAgain)
	late := time.NewTimer(patience)
	defer late.Stop()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		g, n := held(t)
		if g <= goroutines && n <= files {
			return
		}
		select {
		case <-ticker.C:
		case <-late.C:
			var stacks bytes.Buffer
			_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
			t.Fatalf("goroutines %d, before %d; files %d, before %d\n%s", g, goroutines, n, files, &stacks)
		}
	}
}

// probeAllAgainAndAgain has each hostile proxy probed for some rounds, all at once.
func probeAllAgainAndAgain(t *testing.T) {
	all, roots, signers := rogues(t)
	enough := make(chan fleet.Key, len(all))
	f := run(t, roots, &counter{counted: func(key fleet.Key, n int) {
		if n == rounds {
			enough <- key
		}
	}})
	rows, peers, proxies := map[fleet.Key]hostile{}, map[fleet.Key]*peer{}, map[fleet.Key]fleet.Proxy{}
	for i, h := range all {
		at := h.listen(t)
		p := h.proxy(t, fmt.Sprint("hostile-", i), at, signers)
		p.Check.FailureThreshold = 2
		if h.reason == "Timeout" {
			p.Check.Timeout = 200 * time.Millisecond
		}
		rows[p.Key], peers[p.Key], proxies[p.Key] = h, at, p
	}
	for _, p := range proxies {
		f.Upsert(p)
	}
	late := time.After(4 * patience)
	for range all {
		select {
		case key := <-enough:
			h := rows[key]
			if v := f.Get(key).Verdict; v.Reason != h.reason {
				t.Errorf("%s: %s: %s, want %s", h.name, v.Reason, v.Message, h.reason)
			}
			f.Delete(key, proxies[key].UID)
			delete(rows, key)
		case <-late:
			var names []string
			for _, h := range rows {
				names = append(names, h.name)
			}
			t.Fatalf("not probed %d times in time: %s", rounds, strings.Join(names, "; "))
		}
	}
}

// What a proxy or a site sends without end costs the hub no more than it needs to know.
func TestAFloodIsNotTaken(t *testing.T) {
	all, roots, signers := rogues(t)
	floods := map[string]*peer{}
	t.Run("probe", func(t *testing.T) { // with which the peers end
		f := run(t, roots, &counter{})
		var probed []fleet.Key
		for i, h := range all {
			if strings.Contains(h.name, "without end") || strings.Contains(h.name, "floods") {
				floods[h.name] = h.listen(t)
				p := h.proxy(t, fmt.Sprint("flood-", i), floods[h.name], signers)
				probed = append(probed, p.Key)
				f.Upsert(p)
			}
		}
		for _, key := range probed {
			verdictOn(t, f, key)
		}
	})
	for name, at := range floods {
		if n := at.most.Load(); n == 0 || n > mostTaken {
			t.Errorf("%s: %d bytes were taken", name, n)
		}
	}
}
