package health

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// track is how an attempt at one address goes.
type track struct {
	after time.Duration
	err   error
	// deaf attempts succeed although nobody waits any more.
	deaf bool
}

// swallowed is an attempt that nobody answers.
var swallowed = track{after: 24 * time.Hour}

// course runs races; use it in a bubble of its own.
type course struct {
	tracks []track

	mu     sync.Mutex
	began  time.Time
	starts []time.Duration
	end    time.Duration // of the last attempt that listens to its context
	open   map[int]bool
}

// finish is how a race ended.
type finish struct {
	winner int // -1 for none
	took   time.Duration
	err    error
}

func (c *course) race(ctx context.Context) finish {
	c.began, c.open = time.Now(), map[int]bool{}
	addresses := make([]netip.Addr, len(c.tracks))
	for i := range addresses {
		addresses[i] = netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})
	}
	conn, err := race(ctx, addresses, c.dial)
	f := finish{-1, time.Since(c.began), err}
	if conn != nil {
		f.winner = conn.(*lane).i
	}
	return f
}

func (c *course) dial(ctx context.Context, a netip.Addr) (net.Conn, error) {
	i := int(a.As4()[3])
	c.mu.Lock()
	c.starts = append(c.starts, time.Since(c.began))
	c.mu.Unlock()
	done := ctx.Done()
	if c.tracks[i].deaf {
		done = nil
	} else {
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.end = max(c.end, time.Since(c.began))
		}()
	}
	select {
	case <-done:
		return nil, ctx.Err()
	case <-time.After(c.tracks[i].after):
	}
	if err := c.tracks[i].err; err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.open[i] = true
	c.mu.Unlock()
	return &lane{course: c, i: i}, nil
}

type lane struct {
	net.Conn
	course *course
	i      int
}

func (l *lane) Close() error {
	l.course.mu.Lock()
	defer l.course.mu.Unlock()
	delete(l.course.open, l.i)
	return nil
}

// left are the connections that are open when every attempt has ended. That they
// end is proven by the bubble, which fails while one of its goroutines is left.
func (c *course) left(t *testing.T) []int {
	ended, stop := context.WithTimeout(t.Context(), 48*time.Hour)
	defer stop()
	<-ended.Done()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.open))
}

func TestTheFirstAddressThatAnswersIsTaken(t *testing.T) {
	refused, lost := errors.New("refused"), errors.New("lost")
	const ms = time.Millisecond
	for _, tc := range []struct {
		name   string
		tracks []track
		limit  time.Duration
		want   finish
		starts []time.Duration
	}{
		{"one", []track{{after: ms}}, 0, finish{0, ms, nil}, []time.Duration{0}},
		{"one that fails", []track{{after: ms, err: refused}}, 0, finish{-1, ms, refused}, []time.Duration{0}},
		{"the first in time", []track{{after: headStart - ms}, {}}, 0, finish{0, headStart - ms, nil}, []time.Duration{0}},
		{"the first swallows packets", []track{swallowed, {after: ms}}, 0, finish{1, headStart + ms, nil}, []time.Duration{0, headStart}},
		{"two swallow packets", []track{swallowed, swallowed, {}}, 0, finish{2, 2 * headStart, nil}, []time.Duration{0, headStart, 2 * headStart}},
		{"the first refuses", []track{{after: ms, err: refused}, {after: ms}}, 0, finish{1, 2 * ms, nil}, []time.Duration{0, ms}},
		{"the second refuses beside the first", []track{{after: 2 * headStart}, {after: ms, err: refused}}, 0, finish{0, 2 * headStart, nil}, []time.Duration{0, headStart}},
		{"the second wins after it started later", []track{{after: 2 * headStart}, {after: ms}}, 0, finish{1, headStart + ms, nil}, []time.Duration{0, headStart}},
		{"the third has its head start from the second's failure", []track{swallowed, {after: ms, err: refused}, {}}, 0, finish{2, headStart + ms, nil}, []time.Duration{0, headStart, headStart + ms}},
		{"the loser connects all the same", []track{{after: time.Hour, deaf: true}, {after: ms}}, 0, finish{1, headStart + ms, nil}, []time.Duration{0, headStart}},
		{"all fail, the first first", []track{{err: refused}, {after: ms, err: lost}}, 0, finish{-1, ms, refused}, []time.Duration{0, 0}},
		{"all fail, the first last", []track{{after: time.Hour, err: refused}, {err: lost}}, 0, finish{-1, time.Hour, refused}, []time.Duration{0, headStart}},
		{"all fail, the first for want of the hub's own", []track{{err: syscall.EMFILE}, {after: ms, err: syscall.ENFILE}, {after: ms, err: lost}, {err: refused}}, 0, finish{-1, 2 * ms, lost}, []time.Duration{0, 0, ms, 2 * ms}},
		{"all fail for want of the hub's own", []track{{err: syscall.EMFILE}, {err: syscall.ENFILE}}, 0, finish{-1, 0, syscall.EMFILE}, []time.Duration{0, 0}},
		{"no time is left", []track{swallowed, swallowed}, time.Second, finish{-1, time.Second, context.DeadlineExceeded}, []time.Duration{0, headStart}},
		{"no time is left for a second", []track{swallowed, {deaf: true}}, ms, finish{-1, ms, context.DeadlineExceeded}, []time.Duration{0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if tc.limit > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tc.limit)
					defer cancel()
				}
				c := &course{tracks: tc.tracks}
				got := c.race(ctx)
				if got.winner != tc.want.winner || got.took != tc.want.took || !errors.Is(got.err, tc.want.err) {
					t.Errorf("%+v, want %+v", got, tc.want)
				}
				if !slices.Equal(c.starts, tc.starts) {
					t.Errorf("tried at %v, want %v", c.starts, tc.starts)
				}
				left := c.left(t)
				if c.end > got.took {
					t.Errorf("an attempt goes on until %s", c.end)
				}
				if got.err == nil && !slices.Equal(left, []int{got.winner}) || got.err != nil && len(left) > 0 {
					t.Errorf("connections %v are left open", left)
				}
			})
		})
	}
}

// Whatever the addresses do: a connection is had exactly when one of them answers,
// every other one is closed, each is tried once and in order, and the error is the first
// of which anything can be told of the proxy, or else the first.
func TestARaceLeavesOneConnectionOrNone(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tracks := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) track {
			tr := track{
				after: time.Duration(rapid.IntRange(0, 8).Draw(rt, "quarters")) * headStart / 4,
				deaf:  rapid.Bool().Draw(rt, "deaf"),
			}
			if rapid.Bool().Draw(rt, "fails") {
				tr.err = fmt.Errorf("after %s: %w", tr.after, rapid.SampledFrom([]error{syscall.ECONNREFUSED, syscall.EMFILE}).Draw(rt, "why"))
			}
			return tr
		}), 1, maxAddresses).Draw(rt, "tracks")
		some := slices.ContainsFunc(tracks, func(tr track) bool { return tr.err == nil })
		want := tracks[max(0, slices.IndexFunc(tracks, func(tr track) bool { return !errors.Is(tr.err, syscall.EMFILE) }))].err
		synctest.Test(t, func(t *testing.T) {
			c := &course{tracks: tracks}
			got := c.race(t.Context())
			left := c.left(t)
			switch {
			case some && (got.err != nil || !slices.Equal(left, []int{got.winner})):
				rt.Errorf("%+v, open: %v", got, left)
			case !some && (!errors.Is(got.err, want) || len(left) > 0):
				rt.Errorf("%+v, open: %v", got, left)
			case c.end > got.took:
				rt.Errorf("%+v, an attempt goes on until %s", got, c.end)
			case !some && len(c.starts) != len(tracks), !slices.IsSorted(c.starts):
				rt.Errorf("tried at %v", c.starts)
			}
			for i := range c.starts[1:] {
				if c.starts[i+1]-c.starts[i] > headStart {
					rt.Errorf("tried at %v", c.starts)
				}
			}
		})
	})
}
