package registerstore

import (
	"testing"

	"github.com/primacy-go/primacy/driver"
)

// What was asked for before a place was seen may be of a line that was removed before the place
// entered, whatever its number. It does not say that the place is gone: its owner would leave the
// claim, and nobody would release it.
func TestAnEarlierCallDoesNotTellThatAPlaceIsGone(t *testing.T) {
	s := &Store{}
	o := newOwnClaims(s, "lease")
	s.calls.Store(5)
	p := driver.Place{Name: "n", ID: "id", Token: 1}
	o.entered(&document{Name: "n", Seq: 1, call: 5}, p)
	old := &document{Name: "n", Seq: 8, call: 5}
	if !o.isAhead(old) {
		t.Error("nothing is read anew")
	}
	if o.learn(old); len(o.news) != 0 {
		t.Errorf("told %+v by what was asked for before", o.news)
	}
	if o.learn(&document{Name: "n", Seq: 9, call: 6}); len(o.news) != 1 || !o.news[0].Gone {
		t.Errorf("told %+v by what was asked for after, want that it is gone", o.news)
	}
}
