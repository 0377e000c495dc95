//go:build unix

package faults

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestTheSameSeedDealsTheSameFaults(t *testing.T) {
	plan := func(seed uint64) (names []string) {
		rng := rand.New(rand.NewPCG(seed, 0))
		p := NewPlan(rng, All())
		for range 3 * len(All()) {
			f := p.Next()
			parts := float64(f.Lasts(rng, time.Second)) / float64(time.Second)
			if parts < f.Min || parts > f.Max {
				t.Errorf("%s lasts %v ttl, want %v to %v", f.Name, parts, f.Min, f.Max)
			}
			names = append(names, f.Name)
		}
		return names
	}
	a := plan(1)
	if !slices.Equal(a, plan(1)) || slices.Equal(a, plan(2)) {
		t.Error("the order does not follow the seed")
	}
	for i := 0; i < len(a); i += len(All()) {
		if round := slices.Compact(slices.Sorted(slices.Values(a[i : i+len(All())]))); len(round) != len(All()) {
			t.Errorf("a round has only %d of %d kinds", len(round), len(All()))
		}
	}
}
