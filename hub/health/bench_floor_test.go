package health

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/metrics"
	"github.com/proxyfleet/proxy-operator/internal/testkit/figures"
)

const (
	// abreast is how many probes are under way at once, of the floor's and of the
	// engine's: enough to leave no core without work, and too few to queue for long.
	abreast = 16
	// floorRounds are counted of each, after one that is not, each as long as floorRound:
	// short, so that what changes on the machine meanwhile meets both alike.
	floorRounds = 15
	floorRound  = 2 * time.Second
)

// pace is how fast probes went for a while.
type pace struct {
	perSecond float64
	cpu       float64 // microseconds of this process's, per probe
}

// measureFloor compares the engine to the least that a probe can cost. They take turns.
func measureFloor(b *testing.B, s *figures.Sheet) {
	on := newScene(b)
	kinds := []struct {
		name string
		run  func(*testing.B, *scene) pace
	}{{"floor", runBare}, {"engine", runProbes}}
	var speeds, costs [2][]float64
	for round := range floorRounds + 1 {
		for turn := range kinds {
			i := (turn + round) % len(kinds) // each begins as often as the other
			kind := kinds[i]
			p := kind.run(b, on)
			note := ""
			if round == 0 {
				note = ", to warm up"
			} else {
				speeds[i], costs[i] = append(speeds[i], p.perSecond), append(costs[i], p.cpu)
			}
			figures.Progress("round %d, %s: %.0f probes/s, %.0f µs of CPU each%s", round, kind.name, p.perSecond, p.cpu, note)
		}
	}
	s.Title("Against a bare loop: %d abreast, the medians of %d rounds of %s", abreast, floorRounds, floorRound)
	for i, kind := range kinds {
		s.Add(kind.name+", probes", figures.Median(speeds[i]), "1/s")
	}
	for i, kind := range kinds {
		s.Add(kind.name+", CPU per probe", figures.Median(costs[i]), "µs")
	}
	// Round by round, since the machine may be another one a minute later.
	var faster, cheaper []float64
	for round := range floorRounds {
		faster = append(faster, speeds[1][round]/speeds[0][round])
		cheaper = append(cheaper, costs[0][round]/costs[1][round])
	}
	speed, cost := figures.Median(faster), figures.Median(cheaper)
	s.Add("probes per second, engine/floor", speed, "ratio", figures.AtLeast(0.85))
	s.Add("  lowest and", slices.Min(faster), "ratio")
	s.Add("  highest of the rounds", slices.Max(faster), "ratio")
	s.Add("CPU per probe, floor/engine", cost, "ratio", figures.AtLeast(0.85))
	s.Add("  lowest and", slices.Min(cheaper), "ratio")
	s.Add("  highest of the rounds", slices.Max(cheaper), "ratio")
	b.ReportMetric(speed, "speed-ratio")
	b.ReportMetric(cost, "CPU-ratio")
}

// paceOf counts for one round what is done.
func paceOf(b *testing.B, done *atomic.Int64) pace {
	b.Helper()
	began, cpu, n := time.Now(), cpuTime(b), done.Load()
	<-time.After(floorRound)
	cpu, n = cpuTime(b)-cpu, done.Load()-n
	if n == 0 {
		b.Fatal("no probe ended in a whole round")
	}
	return pace{float64(n) / time.Since(began).Seconds(), micros(cpu) / float64(n)}
}

// runBare is the floor.
func runBare(b *testing.B, s *scene) pace {
	ctx, cancel := context.WithCancel(b.Context())
	config := &tls.Config{ServerName: s.site[:strings.LastIndexByte(s.site, ':')], RootCAs: s.roots, MinVersion: tls.VersionTLS12}
	var loops sync.WaitGroup
	var done atomic.Int64
	failed := make(chan error, abreast)
	for range abreast {
		loops.Go(func() {
			for ctx.Err() == nil {
				if err := s.fetch(config); err != nil {
					failed <- err
					return
				}
				done.Add(1)
			}
		})
	}
	until(b, 10*time.Second, "the first probes of the floor", func() bool { return done.Load() >= abreast || len(failed) > 0 })
	p := paceOf(b, &done)
	cancel()
	loops.Wait()
	select {
	case err := <-failed:
		b.Fatalf("the floor: %v", err)
	default:
	}
	return p
}

// fetch is a probe and nothing else: it knows no other proxy than this, no other protocol,
// and neither limits what it reads nor finds out what is wrong.
func (s *scene) fetch(config *tls.Config) error {
	conn, err := new(net.Dialer).DialContext(context.Background(), "tcp", s.proxy.Address())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\nUser-Agent: %[2]s\r\n\r\n", s.site, userAgent); err != nil {
		return err
	}
	if err := readGrant(conn); err != nil {
		return err
	}
	client := tls.Client(conn, config)
	if err := client.Handshake(); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(client, "GET /generate_204 HTTP/1.1\r\nHost: %s\r\nUser-Agent: %s\r\nConnection: close\r\n\r\n", s.site, userAgent); err != nil {
		return err
	}
	res, err := http.ReadResponse(bufio.NewReader(client), nil)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusNoContent {
		return fmt.Errorf("the site answered %s", res.Status)
	}
	return res.Body.Close()
}

// readGrant reads the answer to CONNECT up to the blank line, after which the site waits
// for us to speak first.
func readGrant(conn net.Conn) error {
	var buffer [1024]byte
	for n := 0; n < len(buffer); {
		more, err := conn.Read(buffer[n:])
		if err != nil {
			return err
		}
		n += more
		if answer := string(buffer[:n]); strings.HasSuffix(answer, "\r\n\r\n") {
			if !strings.HasPrefix(answer[min(len(answer), len("HTTP/1.x")):], " 200") {
				return fmt.Errorf("the proxy answered %q", answer)
			}
			return nil
		}
	}
	return fmt.Errorf("the proxy's answer does not end: %q", buffer)
}

// tally is the hub's metrics, and counts.
type tally struct {
	*metrics.Metrics
	passed, failed atomic.Int64
}

func (t *tally) Probe(key fleet.Key, took time.Duration, failure string) {
	t.Metrics.Probe(key, took, failure)
	if failure == "" {
		t.passed.Add(1)
	} else {
		t.failed.Add(1)
	}
}

// runProbes is the engine, of whose Proxies each is due again as soon as it has been probed.
func runProbes(b *testing.B, s *scene) pace {
	count := &tally{Metrics: hubMetrics()}
	o := s.options(count)
	for i := range abreast {
		p := externalAt("eu", fmt.Sprint("p", i), s.proxy)
		p.Check.Interval = time.Nanosecond
		o.Fleet.Upsert(p)
	}
	all := judged(o.Fleet, abreast)
	end := runEngine(b, New(o))
	defer end()
	select {
	case <-all:
	case <-time.After(30 * time.Second):
		b.Fatalf("%d probes passed and %d failed, and some Proxies have no verdict", count.passed.Load(), count.failed.Load())
	}
	p := paceOf(b, &count.passed)
	if n := count.failed.Load(); n > 0 {
		b.Fatalf("%d of the engine's probes failed", n)
	}
	return p
}
