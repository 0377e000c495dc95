package memstore

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// crowd enters one claim for each number of slots, each under a lease of its own, and returns
// places and leases in order.
func crowd(t *testing.T, s *Store, slots ...int) (leases []driver.Lease, places []driver.Place) {
	t.Helper()
	for i, n := range slots {
		l, err := s.Grant(t.Context(), string(rune('a'+i)), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		p, err := l.Claim(t.Context(), driver.Claim{Name: "x", ID: "c" + l.ID(), Slots: n})
		if err != nil {
			t.Fatal(err)
		}
		leases, places = append(leases, l), append(places, p[0])
	}
	return leases, places
}

func heldNow(t *testing.T, s *Store) string {
	t.Helper()
	ln, err := s.Line(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	held := ""
	if ln.Holder != nil {
		for _, st := range append([]driver.Entry{*ln.Holder}, ln.Waiters...) {
			if st.Held {
				held += st.Owner
			}
		}
	}
	return held
}

func TestWhoHoldsASharedLine(t *testing.T) {
	const R = driver.Unlimited
	for _, tc := range []struct {
		name  string
		slots []int
		leave []int  // who leaves, one after another
		held  string // who holds after each, from the start, "/" between
	}{
		{"readers together, a writer alone, and nobody overtakes it", []int{R, R, 0, R, R}, []int{1, 0, 2, 3}, "ab/a/c/de/e"},
		{"a writer that gives up lets the readers behind it in", []int{R, 0, R}, []int{1}, "a/ac"},
		{"a semaphore of two, freed in any order", []int{2, 2, 2, 2, 2}, []int{1, 3, 0, 2}, "ab/ac/ac/ce/e"},
		{"an exclusive claim in a semaphore's line", []int{3, 3, 0, 3}, []int{0, 1, 2}, "ab/b/c/d"},
		{"plain locks", []int{0, 0, 0}, []int{1, 0}, "a/a/c"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := New(Options{})
			leases, places := crowd(t, s, tc.slots...)
			got := heldNow(t, s)
			for _, i := range tc.leave {
				if err := leases[i].Release(t.Context(), places[i]); err != nil {
					t.Fatal(err)
				}
				got += "/" + heldNow(t, s)
			}
			if got != tc.held {
				t.Errorf("%s: got %s, want %s", tc.name, got, tc.held)
			}
			for _, l := range leases {
				l.Close(t.Context())
			}
		})
	}
}

func TestTwoNumbersOfSlotsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		leases, _ := crowd(t, s, 2)
		for _, n := range []int{3, driver.Unlimited} {
			if _, err := leases[0].Claim(t.Context(), driver.Claim{Name: "x", Seat: "2", ID: "other", Slots: n}); !errors.Is(err, driver.ErrRefused) {
				t.Errorf("%d slots beside a claim with 2: got %v, want ErrRefused", n, err)
			}
		}
		leases[0].Close(t.Context())
	})
}

func TestTransferTakesAwayWhoStoodBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		leases, places := crowd(t, s, 0, 0, 0, 0)
		hand := leases[0].(driver.Transferer)
		if err := hand.Transfer(t.Context(), places[0], 4711); !errors.Is(err, driver.ErrNoSuccessor) || heldNow(t, s) != "a" {
			t.Fatalf("to nobody: got %v, held by %s", err, heldNow(t, s))
		}
		if err := hand.Transfer(t.Context(), places[0], places[2].Token); err != nil || heldNow(t, s) != "c" {
			t.Fatalf("got %v, held by %s, want c", err, heldNow(t, s))
		}
		if news, err := leases[1].News(t.Context()); err != nil || len(news) != 1 || !news[0].Gone || news[0].Place.Token != places[1].Token {
			t.Fatalf("the one between heard %+v, %v", news, err)
		}
		if err := hand.Transfer(t.Context(), places[0], places[3].Token); !errors.Is(err, driver.ErrGone) {
			t.Fatalf("again: got %v, want ErrGone", err)
		}
		for _, l := range leases {
			l.Close(t.Context())
		}
	})
}

func TestNobodyIsAskedOrHandsOverBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		leases, places := crowd(t, s, 2, 2)
		if err := s.Ask(t.Context(), "x", driver.Request{Token: places[0].Token}); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("a shared holder was asked: %v", err)
		}
		p, err := leases[0].Claim(t.Context(), driver.Claim{Name: "y", ID: "1"}, driver.Claim{Name: "y", Seat: "b", ID: "2"})
		if err != nil {
			t.Fatal(err)
		}
		if err := leases[0].(driver.Transferer).Transfer(t.Context(), p[0], p[1].Token); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("handed over to the same lease: %v", err)
		}
		for _, l := range leases {
			l.Close(t.Context())
		}
	})
}

func TestAClaimThatStandsIsRefusedWithOtherSlots(t *testing.T) {
	for _, slots := range []int{0, 2, driver.Unlimited} {
		s := New(Options{})
		leases, places := crowd(t, s, slots)
		for _, other := range []int{0, 2, 3, driver.Unlimited} {
			c := driver.Claim{Name: "x", ID: places[0].ID, Slots: other}
			switch again, err := leases[0].Claim(t.Context(), c); {
			case other != slots && !errors.Is(err, driver.ErrRefused):
				t.Errorf("a claim that stands with %d slots, entered again with %d: %+v, %v", slots, other, again, err)
			case other == slots && (err != nil || again[0] != places[0]):
				t.Errorf("a claim entered again: %+v, %v, want %+v", again, err, places[0])
			}
		}
	}
}

// The claim that is replaced is no other one: it is gone before the new one enters.
func TestANewIDMayHaveOtherSlotsThanTheClaimItReplaces(t *testing.T) {
	s := New(Options{})
	leases, _ := crowd(t, s, 2)
	for _, slots := range []int{3, driver.Unlimited, 0, 2} {
		p, err := leases[0].Claim(t.Context(),
			driver.Claim{Name: "x", ID: "with " + string(rune('a'+slots)), Slots: slots})
		if err != nil || !p[0].Held || p[0].Slots != slots {
			t.Errorf("a claim with %d slots in the place of its lease's own: %+v, %v", slots, p, err)
		}
	}
	crowd(t, s, 2)
	_, err := leases[0].Claim(t.Context(), driver.Claim{Name: "x", ID: "last", Slots: 3})
	if !errors.Is(err, driver.ErrRefused) {
		t.Errorf("a claim with other slots than those of another lease's: %v", err)
	}
	if held := heldNow(t, s); held != "aa" {
		t.Errorf("after a refusal %q hold, want both as before", held)
	}
}
