package metrics

import (
	"slices"
	"testing"

	"github.com/primacy-go/primacy"
)

// A session sees terms end for every reason but those that only a guardian or a reader of the history tells.
func TestEachReasonIsCounted(t *testing.T) {
	for _, r := range primacy.Reasons() {
		if r == primacy.Died || r == primacy.Unknown || r == primacy.Leads {
			continue
		}
		if !slices.Contains(ends[:], r) {
			t.Errorf("%s is not counted", r)
		}
	}
}
