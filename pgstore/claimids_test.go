package pgstore

import (
	"errors"
	"testing"

	"github.com/primacy-go/primacy/driver"
)

// The server keeps a word against an ID while a call may still come that enters it: else a claim
// would stand after its release, and nobody would ever give it up.
func TestWhichIDsMayStillEnter(t *testing.T) {
	t.Parallel()
	ids := newClaimIDs()
	ids.calls["under way"]++
	ids.calls["unknown"]++
	ids.entered("unknown", true)
	ids.calls["settled"]++
	ids.entered("settled", false)
	for id, want := range map[string]bool{"under way": true, "unknown": true, "settled": false} {
		if got := ids.release(id, true); got != want {
			t.Errorf("release of a place whose Claim is %s: a word against its ID = %v, want %v", id, got, want)
		}
	}
	if !ids.release("never seen", false) {
		t.Error("release of a place that is not known leaves no word against its ID")
	}
	for _, c := range []struct {
		id     string
		err    error
		refuse bool
	}{
		{"given up", nil, false}, // who gave it up has spent it
		{"maybe given up", errors.New("no answer"), true},
		{"not given up", driver.ErrRefused, false},
	} {
		ids.releasing[c.id]++
		if !ids.refused(c.id) {
			t.Errorf("%s: it may enter during its release", c.id)
		}
		ids.released(c.id, false, c.err)
		if got := ids.refused(c.id); got != c.refuse {
			t.Errorf("%s: refused = %v, want %v", c.id, got, c.refuse)
		}
	}
}
