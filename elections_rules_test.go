package primacy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
)

// metered is a store that counts calls and places, and can keep Claims waiting.
type metered struct {
	driver.Store
	claims, claimed, releases atomic.Int32
	hold                      atomic.Pointer[chan struct{}]
}

type meteredLease struct {
	driver.Lease
	s *metered
}

func (s *metered) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	if err != nil {
		return nil, err
	}
	return &meteredLease{l, s}, nil
}

func (l *meteredLease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	l.s.claims.Add(1)
	l.s.claimed.Add(int32(len(claims)))
	places, err := l.Lease.Claim(ctx, claims...)
	if hold := l.s.hold.Load(); hold != nil {
		<-*hold
	}
	return places, err
}

func (l *meteredLease) Release(ctx context.Context, places ...driver.Place) error {
	l.s.releases.Add(1)
	return l.Lease.Release(ctx, places...)
}

func TestANameThatIsWithdrawnWhileItsClaimIsUnderWayIsReleased(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		slow := &metered{Store: b.store}
		s := b.session("a", slow, Options{})
		hold := make(chan struct{})
		slow.hold.Store(&hold)
		es := s.Elections(nil)
		_ = es.Stand("n", "m", "o")
		synctest.Wait()
		es.Withdraw("n", "m")
		_ = es.Stand("m")
		synctest.Wait()
		slow.hold.Store(nil)
		close(hold)
		won, _, _ := collect(t, es, 2)
		for _, term := range won {
			if term.Name() == "n" || term.Check() != nil {
				t.Errorf("%s: %v", term.Name(), term.Check())
			}
		}
		nothingTold(t, es)
		b.emptyLines("n")
	})
}

func TestManyElectionsTravelTogether(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		// Calls take a while: otherwise it is the scheduler's choice how much has come together when the next one leaves.
		s := &metered{Store: drivertest.Faulty(b.store, drivertest.Faults{Delay: time.Millisecond})}
		names := manyNames(5120)
		es := b.session("a", s, Options{}).Elections(nil)
		_ = es.Stand(names...)
		terms, _, _ := collect(t, es, len(names))
		_ = es.Resign(context.Background(), terms...)
		// Each call has at most 512; the first ones leave with what is there.
		if c, r := s.claims.Load(), s.releases.Load(); c > 40 || r > 40 || s.claimed.Load() != 5120 {
			t.Errorf("%d calls entered and %d gave up %d names (%d entered)", c, r, len(names), s.claimed.Load())
		}
	})
}

func TestAStoreThatDoesNotAnswerIsNotHammeredByMany(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := &metered{Store: drivertest.Faulty(b.store, drivertest.Faults{Delay: time.Millisecond})}
		es := b.session("a", s, Options{}).Elections(nil)
		_ = es.Stand("first")
		collect(t, es, 1)
		net := s.Store.(drivertest.FaultyStore)
		net.Set(drivertest.Faults{Delay: time.Millisecond, Lose: 1})
		before := s.claims.Load()
		_ = es.Stand(manyNames(100)...)
		time.Sleep(4 * time.Second) // less than a lease
		if n := s.claims.Load() - before; n > 2000 || n < 10 {
			t.Errorf("%d calls in 4 s of silence, for 100 names with some 10 tries each", n)
		}
		net.Set(drivertest.Faults{})
		if won, _, _ := collect(t, es, 100); won[0].Check() != nil {
			t.Error(won[0].Check())
		}
	})
}

func TestTenThousandLinesPushNoWarningOut(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var mu sync.Mutex
		lines := map[string]int{}
		stuck := make(chan struct{})
		s := b.session("a", b.store, Options{Logger: slog.New(gated{enabled: func() { <-stuck }, lines: func(msg string) {
			mu.Lock()
			defer mu.Unlock()
			lines[msg]++
		}})})
		es := s.Elections(nil)
		_ = es.Stand(manyNames(10_000)...)
		collect(t, es, 10_000)
		time.Sleep(2 * time.Second)
		b.store.Expire("shard/00000")
		time.Sleep(2 * time.Second)
		close(stuck)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if lines["lease ending"] != 1 || lines["elections"] < 2 || lines["elected"] > logQueueSize {
			t.Errorf("logged %v; want the end of the lease, and figures of what was won and ended", lines)
		}
	})
}

// Many goroutines stand, withdraw, resign and iterate; in the end nothing is left.
func TestElectionsUsedByMany(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		names := manyNames(20)
		var all sync.WaitGroup
		for i := range 3 {
			s := b.session(fmt.Sprint(i), b.store, Options{})
			es := s.Elections(nil)
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			var users sync.WaitGroup
			for range 3 {
				users.Go(func() {
					for term, err := range es.Terms(ctx) {
						if err == nil {
							time.Sleep(10 * time.Millisecond)
							_ = term.Resign(context.Background())
							_ = es.Stand(term.Name())
						}
					}
				})
			}
			for j := range 8 {
				users.Go(func() {
					for k := 0; ctx.Err() == nil; k++ {
						_ = es.Stand(names[(j+k)%len(names)])
						time.Sleep(time.Duration(j) * time.Millisecond)
						es.Withdraw(names[(j+2*k)%len(names)])
						time.Sleep(300 * time.Millisecond)
					}
				})
			}
			all.Go(func() {
				users.Wait()
				cancel()
				time.Sleep(time.Duration(i+1) * time.Minute) // one at a time
				if err := es.Close(context.Background()); err != nil {
					t.Error(err)
				}
				synctest.Wait() // those who worked for it have gone home
				es.mu.Lock()
				defer es.mu.Unlock()
				if es.open != 0 || len(es.names) != 0 || es.pool.running != 0 || len(es.pool.later) > 0 {
					t.Errorf("%d open, names %v, %d workers", es.open, es.names, es.pool.running)
				}
			})
		}
		all.Wait()
		synctest.Wait()
		b.emptyLines(names...)
	})
}

func TestCloseOfElectionsThatIsGivenUpGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		s := b.session("a", net, Options{})
		other := b.session("b", b.store, Options{})
		holder := b.lead(other, "n")
		es := s.Elections(nil)
		_ = es.Stand("n")
		synctest.Wait()
		net.Hang(true)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := es.Close(ctx); !errors.Is(err, ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v", err)
		}
		net.Hang(false)
		time.Sleep(5 * time.Second)
		if line, _ := b.store.Line(context.Background(), "n"); len(line.Waiters) > 0 || holder.Check() != nil {
			t.Errorf("%+v", line)
		}
	})
}

func TestElectionsOfATermAskedBeforeItWasYielded(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		first, second := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		es1, es2 := first.Elections(nil), second.Elections(nil)
		_ = es1.Stand("n")
		synctest.Wait()
		_ = es2.Stand("n")
		synctest.Wait()
		asked, err := second.Election("n").Ask(context.Background(), Request{Reason: "my turn"})
		if err != nil {
			t.Fatal(err)
		}
		won, _, _ := collect(t, es2, 1)
		if won[0].Check() != nil || won[0].Token() <= asked {
			t.Errorf("%v, token %d after %d", won[0].Check(), won[0].Token(), asked)
		}
		_ = es2.Resign(context.Background(), won...)
		if again, _, _ := collect(t, es1, 1); again[0].Check() != nil { // it stood again, behind
			t.Error(again[0].Check())
		}
	})
}
