package primacy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
)

// manyNames returns n names.
func manyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("shard/%05d", i)
	}
	return names
}

// collect iterates until n things were told, or nothing comes for a minute.
func collect(t *testing.T, es *Elections, n int) (won []*Term, ended map[*Term]error, refused []error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ended = map[*Term]error{}
	for range n {
		for term, err := range es.Terms(ctx) {
			switch {
			case term == nil:
				refused = append(refused, err)
			case err != nil:
				ended[term] = err
			default:
				won = append(won, term)
			}
			break
		}
	}
	if got := len(won) + len(ended) + len(refused); got != n {
		t.Fatalf("told %d things, want %d: %d won, %d ended, refused %v", got, n, len(won), len(ended), refused)
	}
	return won, ended, refused
}

// nothingTold fails if something is told within a minute.
func nothingTold(t *testing.T, es *Elections) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for term, err := range es.Terms(ctx) {
		t.Errorf("told of %v, %v; want nothing", term, err)
	}
}

func TestManyElectionsAreWonAndTakenOver(t *testing.T) {
	for _, kind := range []string{"follower", "waiting alone"} {
		bubble(t, func(t *testing.T, b *world) {
			var on driver.Store = b.store
			if kind != "follower" {
				on = plainStore{b.store}
			}
			first, second := b.session("a", on, Options{}), b.session("b", on, Options{})
			names := manyNames(1000)
			es1, es2 := first.Elections(nil), second.Elections(&ElectionsOptions{Value: []byte("v")})
			if err := es1.Stand(names...); err != nil {
				t.Fatal(err)
			}
			terms, _, _ := collect(t, es1, len(names))
			seen := map[string]Token{}
			for _, term := range terms {
				if err := term.Check(); err != nil || seen[term.Name()] != 0 {
					t.Fatalf("%s: %v, token before %d", term.Name(), err, seen[term.Name()])
				}
				seen[term.Name()] = term.Token()
			}
			if err := es2.Stand(names...); err != nil {
				t.Fatal(err)
			}
			nothingTold(t, es2)
			if err := es1.Resign(context.Background(), terms...); err != nil {
				t.Fatal(err)
			}
			later, _, _ := collect(t, es2, len(names))
			for _, term := range later {
				if term.Check() != nil || term.Token() <= seen[term.Name()] {
					t.Fatalf("%s: %v, token %d after %d", term.Name(), term.Check(), term.Token(), seen[term.Name()])
				}
			}
			if st, err := first.Election(names[7]).Leader(context.Background()); err != nil ||
				string(st.Value) != "v" || st.ID != "b" {
				t.Errorf("led by %+v, %v; want b with its value", st, err)
			}
			nothingTold(t, es1)
			if err := es2.Resign(context.Background(), later...); err != nil {
				t.Fatal(err)
			}
			b.emptyLines(names...)
			if n := first.Stats().Leases + second.Stats().Leases; n != 2 {
				t.Errorf("%d leases, want one for each process", n)
			}
		})
	}
}

// plainStore has no optional ports.
type plainStore struct{ driver.Store }

func (s plainStore) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return struct{ driver.Lease }{l}, err
}

func TestALostLeaseEndsManyTermsAndThoseThatWaitStandAgain(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		first, second := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		names := manyNames(600)
		held, waited := names[:300], names[300:]
		other := first.Elections(nil)
		_ = other.Stand(waited...)
		theirs, _, _ := collect(t, other, len(waited))
		es := second.Elections(nil)
		_ = es.Stand(names...)
		terms, _, _ := collect(t, es, len(held))
		before := map[string]Token{}
		for _, term := range terms {
			before[term.Name()] = term.Token()
		}
		b.store.Expire(held[0])
		won, ended, _ := collect(t, es, len(held))
		if len(won) > 0 {
			t.Fatalf("%d terms were won before the lost ones were resigned", len(won))
		}
		for _, term := range terms {
			if err := ended[term]; !errors.Is(err, ErrDeposed) || !errors.Is(term.Check(), ErrDeposed) ||
				!errors.Is(context.Cause(term.Context()), ErrDeposed) {
				t.Fatalf("%s: told %v, Check %v", term.Name(), err, term.Check())
			}
			_ = term.Resign(context.Background())
			if err := es.Stand(term.Name()); err != nil {
				t.Fatal(err)
			}
		}
		again, _, _ := collect(t, es, len(held))
		for _, term := range again {
			if term.Check() != nil || term.Token() <= before[term.Name()] {
				t.Fatalf("%s: %v, token %d after %d", term.Name(), term.Check(), term.Token(), before[term.Name()])
			}
		}
		_ = other.Resign(context.Background(), theirs...) // the places in these lines are under the next lease now
		if won, _, _ := collect(t, es, len(waited)); len(won) != len(waited) {
			t.Fatalf("%d of %d names that waited were won", len(won), len(waited))
		}
	})
}

func TestAPlaceOfManyThatIsRemovedIsTakenAgain(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		first, second := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		holder := b.lead(first, "n")
		es := second.Elections(nil)
		_ = es.Stand("n")
		synctest.Wait()
		line, _ := b.store.Line(context.Background(), "n")
		was := line.Waiters[0].Token
		b.store.Remove("n", was)
		synctest.Wait()
		line, _ = b.store.Line(context.Background(), "n")
		if len(line.Waiters) != 1 || line.Waiters[0].Token <= was {
			t.Fatalf("the waiting claim was not entered again: %+v", line.Waiters)
		}
		_ = holder.Resign(context.Background())
		terms, _, _ := collect(t, es, 1)
		b.store.Remove("n", uint64(terms[0].Token()))
		if _, ended, _ := collect(t, es, 1); !errors.Is(ended[terms[0]], ErrDeposed) {
			t.Fatalf("told %v, want deposed", ended)
		}
	})
}

func TestWithdrawnNamesLeaveNothingBehind(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		first, second := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		names := manyNames(200)
		es1, es2 := first.Elections(nil), second.Elections(nil)
		_ = es1.Stand(names...)
		terms, _, _ := collect(t, es1, len(names))
		_ = es2.Stand(names...)
		synctest.Wait()
		es2.Withdraw(names[:100]...)
		es1.Withdraw(names...) // terms that were yielded stay
		es2.Withdraw("never stood for")
		synctest.Wait()
		for i, name := range names {
			line, _ := b.store.Line(context.Background(), name)
			if waits := len(line.Waiters) == 1; waits != (i >= 100) || line.Holder.Owner != "a" {
				t.Fatalf("%s: %+v", name, line)
			}
		}
		_ = es1.Resign(context.Background(), terms...)
		synctest.Wait()
		es2.Withdraw(names[100:]...) // they are won, but nobody was told
		nothingTold(t, es2)
		b.emptyLines(names...)
		es2.Stand("x")
		es2.Withdraw("x") // at once
		es2.Stand("x")
		if won, _, _ := collect(t, es2, 1); won[0].Check() != nil {
			t.Fatal(won[0].Check())
		}
	})
}

func TestCloseOfElections(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		far := drivertest.Faulty(b.store, drivertest.Faults{Delay: 50 * time.Millisecond})
		first, second := b.session("a", b.store, Options{}), b.session("b", far, Options{})
		holder := b.lead(first, "held by a")
		es := second.Elections(nil)
		_ = es.Stand("yielded")
		won, _, _ := collect(t, es, 1)
		_ = es.Stand("yielded too", "held by a")
		time.Sleep(time.Second)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for range es.Terms(context.Background()) {
				// takes "yielded too"; Close has to end the loop
			}
		}()
		synctest.Wait()
		_ = es.Stand("under way")
		if err := es.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		<-ended
		b.emptyLines("under way")
		if line, _ := b.store.Line(context.Background(), "held by a"); len(line.Waiters) > 0 || holder.Check() != nil {
			t.Errorf("%+v, %v", line, holder.Check())
		}
		if err := won[0].Check(); err != nil {
			t.Errorf("a term that was yielded ended: %v", err)
		}
		if err := es.Stand("late"); !errors.Is(err, ErrClosed) {
			t.Errorf("Stand after Close: %v", err)
		}
		for range es.Terms(context.Background()) {
			t.Error("told something after Close")
		}
		if err := es.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func TestTermsOfOneProcessWaitForEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		own := b.lead(s, "n")
		es, es2 := s.Elections(nil), s.Elections(nil)
		_ = es.Stand("n")
		_ = es.Stand("n", "n")
		_ = es2.Stand("n")
		nothingTold(t, es)
		_ = own.Resign(context.Background())
		won, _, _ := collect(t, es, 1)
		_ = es.Stand("n") // it leads
		nothingTold(t, es)
		nothingTold(t, es2)
		es2.Withdraw("n")
		_ = es2.Stand("n")
		won[0].askToStop(ErrResigned) // its context ends, the work goes on
		if _, ended, _ := collect(t, es, 1); ended[won[0]] == nil {
			t.Fatal("its end was not told")
		}
		_ = es.Stand("n") // behind itself and es2
		nothingTold(t, es)
		_ = won[0].Resign(context.Background())
		next, _, _ := collect(t, es2, 1)
		nothingTold(t, es)
		_ = next[0].Resign(context.Background())
		if last, _, _ := collect(t, es, 1); last[0].Check() != nil {
			t.Fatal(last[0].Check())
		}
		if err := es.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestATermThatEndsUntoldIsNotYieldedAndItsNameStandsAgain(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		es := s.Elections(nil)
		_ = es.Stand("n", "o", "p") // what waits to be yielded is not tidied up for one term in three
		synctest.Wait()
		line, _ := b.store.Line(context.Background(), "n")
		was := line.Holder.Token
		b.store.Remove("n", was)
		synctest.Wait()
		won, _, _ := collect(t, es, 3)
		for _, term := range won {
			if term.Check() != nil || term.Name() == "n" && term.Token() <= Token(was) {
				t.Fatalf("%v, token %d after %d", term.Check(), term.Token(), was)
			}
		}
		nothingTold(t, es)
	})
}

func TestTheSessionsCloseEndsTerms(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		holder := b.lead(other, "waits")
		es := s.Elections(nil)
		_ = es.Stand("n", "m", "waits")
		closed := make(chan error, 1)
		told, ended := 0, 0
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		for term, err := range es.Terms(ctx) {
			if err == nil {
				if told++; told == 2 { // in whichever order n and m were won
					go func() { closed <- s.Close(context.Background()) }()
				}
				continue
			}
			if !errors.Is(err, ErrClosed) {
				t.Errorf("%s: %v", term.Name(), err)
			}
			ended++
			_ = term.Resign(context.Background())
		}
		if ctx.Err() != nil {
			t.Error("Terms goes on though nothing is left to tell")
		}
		if err := <-closed; err != nil || ended != 2 {
			t.Errorf("Close: %v, and %d terms were told to have ended, want 2", err, ended)
		}
		synctest.Wait()
		b.emptyLines("n", "m")
		if line, _ := b.store.Line(context.Background(), "waits"); len(line.Waiters) > 0 || holder.Check() != nil {
			t.Errorf("%+v", line)
		}
		if len(s.seats.taken) > 0 || es.pending != 0 {
			t.Errorf("%d turns are kept, %d names open", len(s.seats.taken), es.pending)
		}
		if err := es.Stand("n"); !errors.Is(err, ErrClosed) {
			t.Errorf("Stand: %v", err)
		}
	})
}

// Who withdraws a name takes out his own stand, not the one that is made in this moment: that one
// would never be won.
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
		r := s.seats.taken[seat{name: "x"}].seatQueue
		waits := r != nil && len(r.waiting) > 0
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
		first := es.names["x"]
		es.mu.Unlock()
		es.Withdraw("x")
		_ = es.Stand("x")
		s.seats.cancel(seat{name: "x"}, &seatWaiter{attempt: first}) // a Withdraw that was slow
		_ = h.Resign(t.Context())
		if won, _, _ := collect(t, es, 1); won[0].Check() != nil {
			t.Error(won[0].Check())
		}
	})
}

// A term that somebody else resigns before it was yielded is not, and its name is stood for again;
// Close counts it once.
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

// A seat that comes to a name which was withdrawn in this moment goes on to the next, also where
// the name is stood for anew.
func TestASeatThatComesAfterItsNameWasWithdrawnIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		es := s.Elections(nil)
		for _, again := range []bool{false, true} {
			if _, _, err := s.seats.take(t.Context(), seat{name: "x"}, 1, false, false); err != nil {
				t.Error(err)
			}
			_ = es.Stand("x")
			es.mu.Lock()
			was := es.names["x"]
			es.mu.Unlock()
			es.Withdraw("x")
			if again {
				_ = es.Stand("x")
			}
			was.gotSeat() // the seat was on its way
			if again {
				won, _, _ := collect(t, es, 1)
				_ = won[0].Resign(t.Context())
			}
			nothingLeft(t, s)
		}
	})
}

// A claim that was withdrawn before it joined its lease does not stay with it: the lease would not
// be forgotten, and the name not be kept.
func TestANameWithdrawnAtOnceLeavesNothingInTheLease(t *testing.T) {
	s := outside(t)
	_ = s.Ready(t.Context())
	es := s.Elections(nil)
	standing := func() bool {
		es.mu.Lock()
		defer es.mu.Unlock()
		a := es.names["x"]
		return a != nil && a.c != nil
	}
	rounds(t, func(i int) {
		_ = es.Stand("x")
		for from := time.Now(); time.Since(from) < 5*time.Millisecond && !standing(); {
		}
		es.Withdraw("x")
		time.Sleep(5 * time.Millisecond) // what is under way
		for _, c := range s.lease.standingClaims() {
			c.mu.Lock()
			dead := c.freed // in one step with what takes it out
			c.mu.Unlock()
			if dead && slices.Contains(s.lease.standingClaims(), c) {
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
		n := len(es.untold)
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

// Once the session is closed all who iterate end when the last name has come to its end, also where
// that is withdrawn.
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

// Two things are told while two readers are about to wait, so that one is woken; who takes the
// first is busy with it: the other gets the second.
func TestEachOfTwoReadersIsWoken(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		es := b.session("a", b.store, Options{}).Elections(nil)
		_ = es.Stand("x", "y")
		synctest.Wait()
		es.mu.Lock()
		told := es.untold
		es.untold = nil
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
		es.untold = told
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
