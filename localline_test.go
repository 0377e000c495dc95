package primacy

import (
	"context"
	"testing"
)

// A semaphore's seat is given to one who waits in the moment in which his ctx ends. The race
// detector has to find nothing, and the seats are free in the end.
func TestASeatIsGivenToOneWhoQuits(t *testing.T) {
	ls := seatTable{taken: map[seat]takenSeat{}}
	at := seat{"n", "s"}
	for range 3000 {
		_, leave, err := ls.take(context.Background(), at, 1, false, false)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		gone := make(chan struct{}, 2)
		for range 2 { // one who quits sees another who waits
			go func() {
				if _, leave, err := ls.take(ctx, at, 1, false, false); err == nil {
					leave()
				}
				gone <- struct{}{}
			}()
		}
		go cancel()
		leave()
		<-gone
		<-gone
		if len(ls.taken) > 0 {
			t.Fatalf("a seat is left taken: %+v", ls.taken)
		}
	}
}
