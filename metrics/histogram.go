package metrics

import (
	"slices"
	"time"
)

// bounds of a histogram's buckets, in seconds: a value is counted in the first that is not smaller.
type bounds [8]float64

var (
	renewBounds = bounds{0.002, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 5}
	waitBounds  = bounds{0.05, 0.25, 1, 5, 10, 15, 30, 60}
	stopBounds  = bounds{0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30}
)

// histogram counts observations by bounds; the last count is of those above all of them.
type histogram struct {
	counts [len(bounds{}) + 1]uint64
	sum    time.Duration
}

func (h *histogram) observe(b *bounds, d time.Duration) {
	d = max(0, d)
	i, _ := slices.BinarySearch(b[:], d.Seconds())
	h.counts[i]++
	h.sum += d
}

// add adds o, or takes it away with the sign -1.
func (h *histogram) add(o *histogram, sign int) {
	for i := range h.counts {
		h.counts[i] += uint64(sign) * o.counts[i]
	}
	h.sum += time.Duration(sign) * o.sum
}

// snapshot returns what Prometheus wants: how many there were, and for each bound how many of them are not above it.
func (h *histogram) snapshot(b *bounds) (count uint64, cumulative map[float64]uint64) {
	cumulative = make(map[float64]uint64, len(b))
	for i, at := range b {
		count += h.counts[i]
		cumulative[at] = count
	}
	return count + h.counts[len(b)], cumulative
}
