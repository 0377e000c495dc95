package pgstore

import (
	"testing"

	"github.com/primacy-go/primacy/driver"
)

// A claim stands only by an answer that says so, of each claim: another code is no success.
func TestOnlyOKEnters(t *testing.T) {
	claims := []driver.Claim{{Name: "a", ID: "1"}, {Name: "b", ID: "2"}}
	for what, rows := range map[string][]taken{
		"an unknown code": {{code: "later", token: 7, held: true}, {code: "later", token: 8, held: true}},
		"no code":         {{token: 7, held: true}, {token: 8, held: true}},
		"a row missing":   {{code: "ok", token: 7, held: true}},
		"a row too many":  {{code: "ok", token: 7}, {code: "ok", token: 8}, {code: "ok", token: 9}},
	} {
		s := &Store{db: &db{}, own: newRegistry()}
		l := newLease(s, "l", "o", minTTL)
		l.mu.Lock()
		places, err := l.takenLocked(claims, rows, 0)
		l.mu.Unlock()
		if err == nil || isFinal(err) || len(places) != 0 || len(l.claims) != 0 {
			t.Errorf("%s: %v, %v, and %d claims stand; want an error that leaves it open, and none", what, places, err, len(l.claims))
		}
	}
}
