package primacy

import (
	"context"
	"errors"
	"fmt"
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

func (b *world) emptyLines(names ...string) {
	b.t.Helper()
	for _, name := range names {
		if line, _ := b.store.Line(context.Background(), name); line.Holder != nil {
			b.t.Errorf("a claim stands on %s: %+v", name, *line.Holder)
		}
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
			if st, err := first.Election(names[7]).Leader(context.Background()); err != nil || string(st.Value) != "v" || st.ID != "b" {
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
			if err := ended[term]; !errors.Is(err, ErrDeposed) || !errors.Is(term.Check(), ErrDeposed) || !errors.Is(context.Cause(term.Context()), ErrDeposed) {
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
		won[0].stop(ErrResigned) // its context ends, the work goes on
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
		if len(s.locals) > 0 || es.open != 0 {
			t.Errorf("%d turns are kept, %d names open", len(s.locals), es.open)
		}
		if err := es.Stand("n"); !errors.Is(err, ErrClosed) {
			t.Errorf("Stand: %v", err)
		}
	})
}
