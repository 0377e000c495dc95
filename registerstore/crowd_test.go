package registerstore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/registerstore"
)

// A hundred processes stand for one name, and the first of them hold it for a moment each, in their
// order. No hand-over costs more calls than each of those who wait needs to look once.
func TestAHundredWaiters(t *testing.T) {
	const turns = 25
	for n, polls := range map[int]bool{100: false, 30: true} {
		synctest.Test(t, func(t *testing.T) {
			reg := memstore.NewRegister()
			var mu sync.Mutex
			var order []uint64
			var all sync.WaitGroup
			begun, entered := time.Now(), time.Duration(0)
			var first memstore.Calls
			enough, stop := context.WithCancel(t.Context())
			defer stop()
			gate := make(chan struct{})
			var in sync.WaitGroup
			in.Add(n)
			for i := range n {
				f := newBad(t, reg, uint64(i))
				f.drop, f.lose, f.late, f.twice, f.delay = 0, 0, 0, 0, 4*time.Millisecond
				var r registerstore.Register = f
				if polls {
					r = plain{f}
				}
				l := granted(t, storeOver(t, r), fmt.Sprint(i), time.Hour)
				all.Go(func() {
					places, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: fmt.Sprint(i)})
					in.Done()
					<-gate
					var p driver.Place
					if err == nil {
						p, err = drivertest.Await(enough, l, places[0])
					}
					if enough.Err() != nil {
						return
					}
					if err == nil {
						mu.Lock()
						if order = append(order, p.Token); len(order) == turns {
							stop()
						}
						mu.Unlock()
						err = l.Release(t.Context(), p)
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			in.Wait()
			entered, first = time.Since(begun), reg.Calls()
			close(gate)
			all.Wait()
			took, calls := time.Since(begun)-entered, reg.Calls()
			for i, token := range order {
				if token != uint64(i+1) {
					t.Fatalf("order = %v, want that of the tokens", order)
				}
			}
			gets, puts, lost, watches := calls.Get-first.Get, calls.Put-first.Put, calls.Lost-first.Lost, calls.Watch-first.Watch
			t.Logf("polls %v: %d entered at once in %v with %d gets and %d puts, %d of them in vain; each hand-over took %v, %d gets, %d watches and %d puts, %d in vain",
				polls, n, entered, first.Get, first.Put, first.Lost, took/turns, gets/turns, watches/turns, puts/turns, lost)
			if len(order) != turns || lost > turns/4 || puts > turns*5/4 {
				t.Errorf("%d held, with %d puts, %d of them in vain: want each put to be a release", len(order), puts, lost)
			}
			if !polls && watches/turns > n*5/4 {
				t.Errorf("%d watches and %d gets for each hand-over among %d", watches/turns, gets/turns, n)
			}
			if most := 300 * time.Millisecond; took/turns > most {
				t.Errorf("a hand-over took %v, want less than %v", took/turns, most)
			}
		})
	}
}
