package primacy

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
)

func TestARefusedNameIsToldAndHurtsNoOther(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", unwilling{b.store, "shard/00333"}, Options{})
		es := s.Elections(nil)
		names := manyNames(1000)
		_ = es.Stand(names...)
		won, _, refused := collect(t, es, len(names))
		var bad *NotStandingError
		if len(refused) != 1 || !errors.As(refused[0], &bad) || bad.Name != "shard/00333" || !errors.Is(bad, ErrRefused) {
			t.Errorf("refused %v, want shard/00333 for good", refused)
		}
		if len(won) != len(names)-1 {
			t.Errorf("%d names were won", len(won))
		}
		for _, bad := range []string{"", string(make([]byte, 300))} {
			if err := es.Stand("fine", bad); !errors.Is(err, ErrInvalid) {
				t.Errorf("Stand for %q: %v", bad, err)
			}
		}
		b.emptyLines("fine")
		if err := s.Elections(&ElectionsOptions{Value: make([]byte, MaxValue+1)}).Stand("n"); !errors.Is(err, ErrInvalid) {
			t.Errorf("a value too large: %v", err)
		}
	})
}

// unwilling is a store that will not have one name, and forgets the whole call for it.
type unwilling struct {
	driver.Store
	name string
}

type unwillingLease struct {
	driver.Lease
	name string
}

func (s unwilling) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return &unwillingLease{l, s.name}, err
}

func (l *unwillingLease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	if slices.ContainsFunc(claims, func(c driver.Claim) bool { return c.Name == l.name }) {
		return nil, fmt.Errorf("no permission: %w", driver.ErrRefused)
	}
	return l.Lease.Claim(ctx, claims...)
}

func TestManyElectionsBehindABadNetwork(t *testing.T) {
	for seed := range uint64(8) {
		bubble(t, func(t *testing.T, b *world) {
			bad := drivertest.Faults{Seed: seed, Delay: 200 * time.Millisecond, Drop: .1, Lose: .2, Late: .15, Twice: .15, Lag: 3 * time.Second}
			names := manyNames(300)
			nets := []drivertest.FaultyStore{drivertest.Faulty(b.store, bad), drivertest.Faulty(b.store, bad)}
			leads := map[string]*Term{}
			for round := range 4 {
				s := b.session(fmt.Sprint(round), nets[round%2], Options{})
				es := s.Elections(nil)
				_ = es.Stand(names...)
				time.Sleep(5 * time.Second)
				for _, term := range leads {
					go term.Resign(context.Background())
				}
				next := map[string]*Term{}
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
				for term, err := range es.Terms(ctx) {
					if err != nil {
						t.Fatalf("%v: %v", term, err)
					}
					old := leads[term.Name()]
					if old != nil && (old.Check() == nil || old.Token() >= term.Token()) || next[term.Name()] != nil {
						t.Fatalf("%s: token %d leads after %v", term.Name(), term.Token(), old)
					}
					if next[term.Name()] = term; len(next) == len(names) {
						break
					}
				}
				cancel()
				if len(next) < len(names) {
					t.Fatalf("seed %d, round %d: %d of %d names were won", seed, round, len(next), len(names))
				}
				leads = next
			}
			for _, term := range leads {
				go term.Resign(context.Background())
			}
			time.Sleep(time.Minute)
			b.emptyLines(names...)
		})
	}
}

// However many elections, the goroutines are as many as for one.
func TestManyElectionsCostNoGoroutines(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		first, second := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		names := manyNames(10_000)
		es1, es2 := first.Elections(nil), second.Elections(nil)
		before := runtime.NumGoroutine()
		_, _ = es1.Stand(names...), es2.Stand(names...)
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > 6 { // two leases with two each
			t.Errorf("%d goroutines for %d elections held and as many that wait", n, len(names))
		}
		won := 0
		for _, es := range []*Elections{es1, es2} {
			for _, st := range es.names {
				if st.leads {
					won++
				}
			}
		}
		if won != len(names) {
			t.Errorf("%d of %d are led", won, len(names))
		}
	})
}
