package primacy

import (
	"testing"

	"github.com/primacy-go/primacy/internal/core"
)

// Whoever adds a cause to core gives it an error and a word, and has it counted: no end of a term may be told as another one.
func TestEveryCauseHasItsErrorAndItsWord(t *testing.T) {
	rows, all := map[core.Cause]int{}, tallies{}
	for _, row := range causes {
		rows[row.cause]++
		if row.err == nil || string(row.reason) != row.cause.String() {
			t.Errorf("%v: error %v, reason %q", row.cause, row.err, row.reason)
		}
	}
	for cause := core.None + 1; cause < core.CauseCount; cause++ {
		if rows[cause] != 1 {
			t.Errorf("%v has %d rows", cause, rows[cause])
		}
		c := &claim{claimRest: &claimRest{}}
		all.ended("n", c.reason(cause)) // panics where the reason is not counted
	}
}
