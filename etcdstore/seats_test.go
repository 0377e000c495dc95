package etcdstore

import (
	"context"
	"testing"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// TestClearBesideWhoAwaitsTheTurn: a claim is forgotten while other verbs come for the same seat,
// which read what never changes without a lock. The race detector sees what is written then.
func TestClearBesideWhoAwaitsTheTurn(t *testing.T) {
	_, l := fakeHub()
	id := seatID{Name: "x"}
	seat := l.seats.open(id)
	done := make(chan error)
	for range 4 {
		go func() {
			var err error
			for i := 0; i < 200 && err == nil; i++ {
				other := l.seats.open(storeutil.SeatAt(driver.Place{Name: "x"}))
				if err = other.lock(context.Background()); err == nil {
					l.clear(other)
					other.unlock()
				}
				l.seats.drop(other)
			}
			done <- err
		}()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	l.seats.drop(seat)
}
