package doctor

import (
	"slices"
	"testing"
)

func TestTheSameSeedDealsTheSameFaults(t *testing.T) {
	deal := func(seed uint64) (kinds []string) {
		d, _ := newDeck(seed, true, true, true)
		for range 3 * len(faults) {
			f, parts := d.deal()
			if parts < f.min || parts > f.max {
				t.Errorf("%s lasts %v, want %v to %v", f.kind, parts, f.min, f.max)
			}
			kinds = append(kinds, f.kind)
		}
		return kinds
	}
	a := deal(1)
	if !slices.Equal(a, deal(1)) || slices.Equal(a, deal(2)) {
		t.Error("the order does not follow the seed")
	}
	for i := 0; i < len(a); i += len(faults) {
		if round := slices.Compact(slices.Sorted(slices.Values(a[i : i+len(faults)]))); len(round) != len(faults) {
			t.Errorf("in a round only %d of %d kinds are dealt", len(round), len(faults))
		}
	}
}

func TestFaultsThatCannotBeAreLeftOut(t *testing.T) {
	d, without := newDeck(1, false, false, false)
	if len(d.all)+len(without) != len(faults) || len(d.all) != 5 {
		t.Errorf("%d kinds, left out %q", len(d.all), without)
	}
	if _, without := newDeck(1, true, true, false); !slices.Equal(without, []string{"one server silent"}) {
		t.Errorf("with one server %q are left out", without)
	}
}
