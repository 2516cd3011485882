package main

import (
	"math/bits"
	"time"
)

// A value is kept to within 1/64 of it: microseconds up to 127 each have a bucket, and from
// there on every power of two has as many as 64.
const (
	perPower = 64
	powers   = 40 // up to two years
)

// histogram counts durations. Its zero value is empty.
type histogram struct {
	counts [perPower * powers]int64
	n, max int64
}

func (h *histogram) add(d time.Duration) {
	us := max(0, d.Microseconds())
	h.counts[min(bucketOf(uint64(us)), len(h.counts)-1)]++
	h.n++
	h.max = max(h.max, us)
}

func (h *histogram) merge(o *histogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.n += o.n
	h.max = max(h.max, o.max)
}

func bucketOf(us uint64) int {
	shift := max(0, bits.Len64(us)-bits.Len64(2*perPower-1))
	return shift*perPower + int(us>>shift)
}

// upTo is the greatest value of a bucket.
func upTo(bucket int) int64 {
	shift := max(0, bucket/perPower-1)
	return int64(bucket-shift*perPower+1)<<shift - 1
}

// quantile is, in microseconds, what a share of all does not exceed, or a little more.
func (h *histogram) quantile(share float64) int64 {
	if h.n == 0 {
		return 0
	}
	rank := min(int64(share*float64(h.n)), h.n-1) // from zero
	for i, n := range h.counts {
		if rank -= n; rank < 0 {
			return min(upTo(i), h.max)
		}
	}
	return h.max
}

// latency is a histogram as it is printed, in microseconds.
type latency struct {
	P50     int64    `json:"p50"`
	P90     int64    `json:"p90"`
	P99     int64    `json:"p99"`
	P999    int64    `json:"p999"`
	Max     int64    `json:"max"`
	Buckets []bucket `json:"buckets"`
}

// bucket is how many took as long as that and longer than the bucket before.
type bucket struct {
	UpTo  int64 `json:"upTo"`
	Count int64 `json:"count"`
}

func (h *histogram) latency() latency {
	l := latency{P50: h.quantile(0.5), P90: h.quantile(0.9), P99: h.quantile(0.99), P999: h.quantile(0.999), Max: h.max, Buckets: []bucket{}}
	for i, n := range h.counts {
		if n > 0 {
			l.Buckets = append(l.Buckets, bucket{upTo(i), n})
		}
	}
	return l
}
