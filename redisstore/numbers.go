package redisstore

// numbers gives each claim ID of a lease a number, in the order in which the IDs are first used.
// Each call tells the server up to which number all claims are settled: their Claim has found its
// place, or they were released. A Claim with such a number that does not stand comes late, and may
// not enter. So the server must remember single IDs only while an earlier one is unsettled, and a
// session may lock millions of times.
type numbers struct {
	last, low uint64
	open      map[uint64]bool
}

// next returns a new number, unsettled.
func (n *numbers) next() uint64 {
	if n.open == nil {
		n.open = map[uint64]bool{}
	}
	n.last++
	n.open[n.last] = true
	return n.last
}

func (n *numbers) settle(k uint64) { delete(n.open, k) }

// settled returns up to which number all are settled.
func (n *numbers) settled() uint64 {
	for n.low < n.last && !n.open[n.low+1] {
		n.low++
	}
	return n.low
}
