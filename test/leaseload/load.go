package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// When leases are given back.
const (
	releaseNo    = "no"
	releaseAfter = "after"
	releaseEach  = "each"
)

// settings are the command line's.
type settings struct {
	address, token string
	bodies         [][]byte
	connections    int
	warm, time     time.Duration
	release        string
	pid            int
}

// result is what is printed.
type result struct {
	// Seconds is how long was measured.
	Seconds float64 `json:"seconds"`
	Acquire count   `json:"acquire"`
	// Release is about the DELETEs, none with -release no. With after it has a time of
	// its own.
	Release count `json:"release"`
	// Errors are those of all the time, the first of them in words.
	Errors     int64  `json:"errors"`
	FirstError string `json:"firstError,omitempty"`
	// AnswerBytes is the size of an answer to a POST, its header included, on average.
	AnswerBytes float64 `json:"answerBytes"`
	// ServerCPU and OwnCPU are seconds of the time that was measured.
	ServerCPU float64 `json:"serverCPU"`
	OwnCPU    float64 `json:"ownCPU"`
}

// count is requests of a kind.
type count struct {
	Requests  int64   `json:"requests"`
	PerSecond float64 `json:"perSecond"`
	Latency   latency `json:"latency"`
}

// worker is one connection's. It alone touches it until it has ended.
type worker struct {
	*wire
	requests          [][]byte
	ids               []byte // of the leases that are held, one after the other
	acquired, release histogram
	bytes             int64
	errors            int64
	first             error
	broken            bool
}

// measure does it all. The error is one that leaves nothing to print.
func (s *settings) measure(ctx context.Context) (*result, error) {
	if len(s.bodies) == 0 {
		return nil, errors.New("there are no bodies")
	}
	workers := make([]*worker, s.connections)
	for i := range workers {
		w, err := dial(ctx, s)
		if err != nil {
			return nil, err
		}
		defer w.Close()
		workers[i] = &worker{wire: w}
		for j := range s.bodies { // each begins with another one
			workers[i].requests = append(workers[i].requests, w.post(s.bodies[(i+j)%len(s.bodies)]))
		}
	}
	from := time.Now().Add(s.warm)
	to := from.Add(s.time)
	var all sync.WaitGroup
	for _, w := range workers {
		all.Go(func() { w.ask(ctx, from, to, s.release == releaseEach) })
	}
	before, err := s.costAt(ctx, from)
	if err != nil {
		return nil, err
	}
	after, err := s.costAt(ctx, to)
	if err != nil {
		return nil, err
	}
	all.Wait()
	r := &result{Seconds: s.time.Seconds(), ServerCPU: (after.server - before.server).Seconds(), OwnCPU: (after.own - before.own).Seconds()}
	releasing := s.time
	if s.release == releaseAfter {
		began := time.Now()
		for _, w := range workers {
			all.Go(func() { w.giveAllBack(ctx) })
		}
		all.Wait()
		releasing = time.Since(began)
	}
	r.sum(workers, releasing)
	return r, ctx.Err()
}

// sum is the workers' in one.
func (r *result) sum(workers []*worker, releasing time.Duration) {
	var acquired, released histogram
	var bytes int64
	for _, w := range workers {
		acquired.merge(&w.acquired)
		released.merge(&w.release)
		bytes += w.bytes
		r.Errors += w.errors
		if w.first != nil && r.FirstError == "" {
			r.FirstError = w.first.Error()
		}
	}
	r.Acquire = count{acquired.n, float64(acquired.n) / r.Seconds, acquired.latency()}
	r.Release = count{released.n, float64(released.n) / releasing.Seconds(), released.latency()}
	if acquired.n > 0 {
		r.AnswerBytes = float64(bytes) / float64(acquired.n)
	}
}

// ask asks for leases until the time is over. What ends within it counts.
func (w *worker) ask(ctx context.Context, from, to time.Time, giveBack bool) {
	began := time.Now()
	for i := 0; began.Before(to) && !w.broken && ctx.Err() == nil; i++ {
		ids, size, err := w.acquire(w.requests[i%len(w.requests)], w.ids)
		now := time.Now()
		counts := !now.Before(from) && now.Before(to)
		w.ids = ids
		switch {
		case err != nil:
			w.failed(err)
		case counts:
			w.acquired.add(now.Sub(began))
			w.bytes += int64(size)
		}
		began = now
		if err != nil || !giveBack {
			continue
		}
		err = w.wire.giveBack(w.ids)
		w.ids = w.ids[:0]
		now = time.Now()
		switch {
		case err != nil:
			w.failed(err)
		case !now.Before(from) && now.Before(to):
			w.release.add(now.Sub(began))
		}
		began = now
	}
}

// giveAllBack releases what is held.
func (w *worker) giveAllBack(ctx context.Context) {
	for began := time.Now(); len(w.ids) > 0 && !w.broken && ctx.Err() == nil; w.ids = w.ids[idLength:] {
		err := w.wire.giveBack(w.ids[:idLength])
		now := time.Now()
		if err != nil {
			w.failed(err)
		} else {
			w.release.add(now.Sub(began))
		}
		began = now
	}
}

func (w *worker) failed(err error) {
	w.errors++
	if w.first == nil {
		w.first = err
	}
	var status statusError
	w.broken = !errors.As(err, &status)
}

// cost is what the two processes have used of the CPU so far.
type cost struct{ server, own time.Duration }

// costAt waits for an instant and returns the cost by then.
func (s *settings) costAt(ctx context.Context, at time.Time) (c cost, err error) {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return c, ctx.Err()
	}
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return c, os.NewSyscallError("getrusage", err)
	}
	c.own = time.Duration(own.Utime.Nano() + own.Stime.Nano())
	if s.pid > 0 {
		c.server, err = cpuOf(s.pid)
	}
	return c, err
}

// cpuOf is what a process has used of the CPU, to a hundredth of a second: the kernel counts
// in clock ticks, of which Linux shows a hundred a second on every machine that Go runs on.
func cpuOf(pid int) (time.Duration, error) {
	const tick = 10 * time.Millisecond
	name := "/proc/" + strconv.Itoa(pid) + "/stat"
	content, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	// PID (name) STATE …, where the name may hold blanks and parentheses. The state is the
	// third field, utime and stime are the 14th and 15th.
	fields := bytes.Fields(content[bytes.LastIndexByte(content, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("%s has no times: %q", name, content)
	}
	user, err := strconv.ParseInt(string(fields[11]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	system, err := strconv.ParseInt(string(fields[12]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return time.Duration(user+system) * tick, nil
}
