package etcdstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
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

// TestSimulatedDisplacedIDNeverEntersAgain: a claim ID is displaced by another one. A Claim of it
// that comes late must not push the present claim out, whether or not its place was released
// meanwhile.
func TestSimulatedDisplacedIDNeverEntersAgain(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		for _, released := range []bool{false, true} {
			name := fmt.Sprint("x", released)
			enter := func(id string) (driver.Place, error) {
				p, err := l.Claim(ending(t, 10*time.Second), driver.Claim{Name: name, ID: id + name})
				return append(p, driver.Place{})[0], err
			}
			displaced, err := enter("1")
			if err != nil {
				t.Fatal(err)
			}
			present, err := enter("2")
			if err != nil {
				t.Fatal(err)
			}
			if released {
				if err := l.Release(ending(t, 10*time.Second), displaced); err != nil {
					t.Fatal(err)
				}
			}
			if p, err := enter("1"); !isGone(err) {
				t.Errorf("seed 1: Claim of a displaced ID (released %v) = %+v, %v, want ErrGone", released, p, err)
			}
			if kv := only(t, c, "primacy/"+name+"/"); uint64(kv.CreateRevision) != present.Token {
				t.Errorf("seed 1: token %d stands, want %d", kv.CreateRevision, present.Token)
			}
		}
	})
}

// TestSimulatedReleaseAfterItsIDWasForgotten: the store has forgotten that an ID was displaced, as
// it does after very many others. Its Release alone must keep it from entering.
func TestSimulatedReleaseAfterItsIDWasForgotten(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		first := claimed(t, l, "x")
		if _, err := l.Claim(ending(t, 10*time.Second), driver.Claim{Name: "x", ID: "2"}); err != nil {
			t.Fatal(err)
		}
		l.seats.spent = storeutil.SpentIDs{}
		if err := l.Release(ending(t, 10*time.Second), first); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Claim(ending(t, 10*time.Second), driver.Claim{Name: "x", ID: first.ID}); !isGone(err) {
			t.Errorf("seed 1: Claim of an ID that was released = %v, want ErrGone", err)
		}
	})
}
