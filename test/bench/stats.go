package main

import (
	"math"
	"slices"
)

// quantile returns the value below which a part q of the values lies (nearest rank), 0 if there are
// none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	i := int(math.Ceil(q*float64(len(s)))) - 1
	return s[min(max(i, 0), len(s)-1)]
}

// median returns the middle value, the mean of the two middle ones of an even number.
func median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}

// Spread is a median over repetitions, with the smallest and the largest of them.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	return Spread{median(values), slices.Min(values), slices.Max(values)}
}

// ratios returns, for each repetition, how many times better ours was than the peer. More is
// better, whichever way the figure goes. A repetition in which either is 0 has no ratio.
func ratios(ours, peer []float64, higher bool) []float64 {
	var rs []float64
	for i := range min(len(ours), len(peer)) {
		if ours[i] <= 0 || peer[i] <= 0 {
			continue
		}
		if higher {
			rs = append(rs, ours[i]/peer[i])
		} else {
			rs = append(rs, peer[i]/ours[i])
		}
	}
	return rs
}
