package shown

import (
	"testing"

	"github.com/primacy-go/primacy"
)

func TestEachReasonHasWords(t *testing.T) {
	for _, r := range primacy.Reasons() {
		if told[r] == "" {
			t.Errorf("%s has no words", r)
		}
	}
	if got := Told("of a newer program"); got != "of a newer program" {
		t.Errorf("got %q", got)
	}
}
