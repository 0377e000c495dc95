package doctor

import (
	"slices"
	"testing"

	"github.com/primacy-go/primacy/internal/faults"
)

func TestFaultsThatCannotBeAreLeftOut(t *testing.T) {
	possible, without := possibleFaults(false, false, false)
	if len(possible)+len(without) != len(faults.All()) || len(possible) != 5 {
		t.Errorf("%d kinds, left out %q", len(possible), without)
	}
	if _, without := possibleFaults(true, true, false); !slices.Equal(without, []string{"one server silent"}) {
		t.Errorf("with one server %q are left out", without)
	}
}
