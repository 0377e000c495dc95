package redisstore

import (
	"fmt"
	"testing"
	"time"
)

// What is known of a session's claims is gathered under the mutex that renewals need too, so it may
// not take the square of their number: a session may stand for ten thousand names and more.
func TestKnownOfManyClaims(t *testing.T) {
	l := &lease{claims: map[string]*ownClaim{}}
	for i := range 20_000 {
		id := fmt.Sprint(i)
		l.claims[id] = &ownClaim{l: l, id: id, name: "n" + id, entered: true}
	}
	begun := time.Now()
	l.knownLocked()
	if took := time.Since(begun); took > 3*time.Second { // a hundredth of it; the square of it takes ten seconds
		t.Errorf("it took %v", took)
	}
}

// The owner itself ends a claim that it gives up, or on whose seat it has another Claim under way:
// one of its own, under way once more, ends nothing.
func TestWhatTheOwnerEnds(t *testing.T) {
	l := &lease{claims: map[string]*ownClaim{}, releasing: map[string]int{}}
	add := func(id, name, seat string, entering, leaving int) {
		l.claims[id] = &ownClaim{l: l, id: id, name: name, seat: seat, entered: true, entering: entering}
		l.releasing[id] = leaving
	}
	add("rests", "a", "", 0, 0)
	add("given up", "a", "1", 0, 1)
	add("asked again", "b", "", 2, 0)
	add("displaced", "c", "1", 0, 0)
	add("displaces", "c", "1", 1, 0)
	add("beside", "c", "2", 0, 0)
	add("one of two", "d", "", 1, 0)
	add("other of two", "d", "", 1, 0)
	want := map[string]bool{"given up": true, "displaced": true, "one of two": true, "other of two": true}
	for id, k := range l.knownLocked() {
		if k.ending != want[id] || k.settled != (l.claims[id].entering == 0) || !k.entered {
			t.Errorf("%s: %+v, want ending %v", id, k, want[id])
		}
	}
}
