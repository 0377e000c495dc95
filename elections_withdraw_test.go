package primacy

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// rounds repeats a race on the real clock for a while.
func rounds(t *testing.T, f func(i int)) {
	for i, until := 0, time.Now().Add(300*time.Millisecond); time.Now().Before(until) && !t.Failed(); i++ {
		f(i)
	}
}

// outside is a session outside a bubble, where real races happen.
func outside(t *testing.T) *Session {
	s := must[*Session](t)(NewSession(memstore.New(memstore.Options{}), &Options{ID: "a", TTL: 30 * time.Second}))
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// Who withdraws a name takes out his own stand, not the one that is made in this moment: that one would never be won.
func TestANameStoodForWhileItIsWithdrawnKeepsItsTurn(t *testing.T) {
	s := outside(t)
	h := must[*Term](t)(s.Election("x").Campaign(t.Context(), nil)) // has the seat
	es := s.Elections(nil)
	rounds(t, func(i int) {
		_ = es.Stand("x")
		var wg sync.WaitGroup
		wg.Go(func() { es.Withdraw("x") })
		wg.Go(func() { _ = es.Stand("x") })
		wg.Wait()
		es.mu.Lock()
		_, stands := es.names["x"]
		es.mu.Unlock()
		s.mu.Lock()
		r := s.locals[seat{name: "x"}]
		waits := r != nil && len(r.next) > 0
		s.mu.Unlock()
		if stands != waits {
			t.Errorf("round %d: x is stood for: %v, waits for its seat: %v", i, stands, !stands)
		}
		es.Withdraw("x")
	})
	_ = h.Resign(t.Context())
}

// The same with the moment held still: the second stand waits already when the first leaves.
func TestAStandLeavesNoPlaceButItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		h := b.lead(s, "x")
		es := s.Elections(nil)
		_ = es.Stand("x")
		es.mu.Lock()
		first := es.names["x"].no
		es.mu.Unlock()
		es.Withdraw("x")
		_ = es.Stand("x")
		s.quitSeat(seat{name: "x"}, es.waiterOf(first)) // a Withdraw that was slow
		_ = h.Resign(t.Context())
		if won, _, _ := collect(t, es, 1); won[0].Check() != nil {
			t.Error(won[0].Check())
		}
	})
}

// A term that somebody else resigns before it was yielded is not, and its name is stood for again; Close counts it once.
func TestATermThatIsResignedUntoldIsCountedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		es := s.Elections(nil)
		_ = es.Stand("x")
		synctest.Wait()
		first := s.Terms()[0]
		if err := first.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		if won, _, _ := collect(t, es, 1); won[0].Check() != nil || won[0].Token() <= first.Token() {
			t.Errorf("yielded %v under token %v, after %v", won[0].Check(), won[0].Token(), first.Token())
		}
		limit, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := es.Close(limit); err != nil {
			t.Error(err)
		}
	})
}

// A seat that comes to a name which was withdrawn in this moment goes on to the next, also where the name is stood for anew.
func TestASeatThatComesAfterItsNameWasWithdrawnIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		es := s.Elections(nil)
		for _, again := range []bool{false, true} {
			_ = must[func()](t)(s.enterLocal(t.Context(), seat{name: "x"}, false))
			_ = es.Stand("x")
			es.mu.Lock()
			was := es.names["x"].no
			es.mu.Unlock()
			es.Withdraw("x")
			if again {
				_ = es.Stand("x")
			}
			es.turn("x", was) // the seat was on its way
			if again {
				won, _, _ := collect(t, es, 1)
				_ = won[0].Resign(t.Context())
			}
			nothingLeft(t, s)
		}
	})
}

// A claim that was withdrawn before it joined its lease does not stay with it: the lease would not be forgotten, and the name not be kept.
func TestANameWithdrawnAtOnceLeavesNothingInTheLease(t *testing.T) {
	s := outside(t)
	_ = s.Ready(t.Context())
	es := s.Elections(nil)
	standing := func() bool {
		es.mu.Lock()
		defer es.mu.Unlock()
		return es.names["x"].c != nil
	}
	rounds(t, func(i int) {
		_ = es.Stand("x")
		for from := time.Now(); time.Since(from) < 5*time.Millisecond && !standing(); {
		}
		es.Withdraw("x")
		time.Sleep(5 * time.Millisecond) // what is under way
		for _, c := range s.lease.standing() {
			c.mu.Lock()
			dead := c.freed // in one step with what takes it out
			c.mu.Unlock()
			if dead && slices.Contains(s.lease.standing(), c) {
				t.Errorf("round %d: a claim of which nothing stands is among those of the lease", i)
			}
		}
	})
}

// Terms that are won and withdrawn while nobody iterates leave no news behind.
func TestTermsThatAreNotYieldedDoNotPileUp(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		es := b.session("a", b.store, Options{}).Elections(nil)
		_ = es.Stand("stays")
		for range 1000 {
			_ = es.Stand("x")
			synctest.Wait()
			es.Withdraw("x")
			synctest.Wait()
		}
		for range 1000 { // the same for those that end by themselves
			_ = es.Stand("y")
			synctest.Wait()
			ln := must[driver.Line](t)(b.store.Line(context.Background(), "y"))
			b.store.Remove("y", ln.Holder.Token)
			synctest.Wait()
		}
		es.mu.Lock()
		n := len(es.told)
		es.mu.Unlock()
		if n > 5 {
			t.Errorf("%d terms that will not be yielded are kept", n)
		}
		if won, _, _ := collect(t, es, 2); won[0].Name() != "stays" || won[1].Name() != "y" {
			t.Errorf("%s and %s were yielded", won[0].Name(), won[1].Name())
		}
	})
}

// iterate counts in the channel those of n iterators that have ended.
func iterate(es *Elections, n int) chan struct{} {
	ended := make(chan struct{}, n)
	for range n {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			defer cancel()
			for range es.Terms(ctx) {
			}
			ended <- struct{}{}
		}()
	}
	synctest.Wait()
	return ended
}

// Once the session is closed all who iterate end when the last name has come to its end, also where that is withdrawn.
func TestAllIteratorsEndAfterTheSessionsClose(t *testing.T) {
	for _, how := range []string{"resigned", "withdrawn"} {
		bubble(t, func(t *testing.T, b *world) {
			s := b.session("a", b.store, Options{Overrun: OverrunWait})
			h := b.lead(s, "x") // has the seat
			es := s.Elections(nil)
			_ = es.Stand("x")
			ended := iterate(es, 2)
			closed := make(chan error, 1)
			go func() { closed <- s.Close(context.Background()) }() // waits for h
			synctest.Wait()
			if how == "withdrawn" {
				es.Withdraw("x")
			} else {
				_ = h.Resign(t.Context())
			}
			time.Sleep(time.Second)
			if len(ended) != 2 {
				t.Errorf("%s: %d of 2 iterators ended although nothing is left to tell", how, len(ended))
			}
			_ = h.Resign(t.Context())
			if err := <-closed; err != nil {
				t.Error(err)
			}
		})
	}
}

// Two things are told while two readers are about to wait, so that one is woken; who takes the first is busy with it: the other gets the
// second.
func TestEachOfTwoReadersIsWoken(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		es := b.session("a", b.store, Options{}).Elections(nil)
		_ = es.Stand("x", "y")
		synctest.Wait()
		es.mu.Lock()
		told := es.told
		es.told = nil
		es.mu.Unlock()
		got, release := make(chan *Term, 2), make(chan struct{})
		for range 2 {
			go func() {
				for term := range es.Terms(t.Context()) {
					got <- term
					<-release
					return
				}
			}()
		}
		synctest.Wait()
		es.mu.Lock()
		es.told = told
		es.wake()
		es.mu.Unlock()
		synctest.Wait()
		if len(got) != 2 {
			t.Errorf("%d of 2 readers were told", len(got))
		}
		close(release)
	})
}

// The end of a term is not told to the one who has resigned it meanwhile.
func TestAnEndThatItsOwnerKnowsIsNotTold(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		es := b.session("a", b.store, Options{}).Elections(nil)
		_ = es.Stand("x")
		won, _, _ := collect(t, es, 1)
		b.store.Remove("x", uint64(won[0].Token()))
		synctest.Wait()
		if !errors.Is(won[0].Check(), ErrDeposed) {
			t.Fatal(won[0].Check())
		}
		_ = won[0].Resign(t.Context())
		nothingTold(t, es)
	})
}

// early is a store whose news says too soon that a place is held.
type early struct{ driver.Store }

type earlyLease struct {
	driver.Lease
	said chan driver.News
}

func (s early) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return &earlyLease{l, make(chan driver.News, 100)}, err
}

func (l *earlyLease) Follow(places ...driver.Place) {
	for _, p := range places {
		if len(l.said) < 5 {
			l.said <- driver.News{Place: p, Held: true} // but the place says no
		}
	}
}

func (l *earlyLease) News(ctx context.Context) ([]driver.News, error) {
	select {
	case n := <-l.said:
		return []driver.News{n}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// News that a place is held makes no leader where the place does not say so: there would be two.
func TestNewsOfAPlaceThatIsNotHeldMakesNoLeader(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		first, s := b.session("a", b.store, Options{}), b.session("b", early{b.store}, Options{})
		h := b.lead(first, "x")
		es := s.Elections(nil)
		_ = es.Stand("x")
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for term := range es.Terms(ctx) {
			t.Errorf("%v is yielded while another leads: %v", term, h.Check())
			break
		}
	})
}
