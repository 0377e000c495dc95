package registerstore_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/registerstore"
)

// plain hides that a register can watch.
type plain struct{ registerstore.Register }

// bad is a register behind a network that loses, delays and repeats.
type bad struct {
	*memstore.Register
	drop, lose, late, twice float64 // shares of calls: never done, done without an answer, done later without one, done twice by a client that repeats
	delay                   time.Duration

	mu  sync.Mutex
	rnd *rand.Rand
	all sync.WaitGroup
}

func newBad(t testing.TB, r *memstore.Register, seed uint64) *bad {
	b := &bad{Register: r, drop: 0.04, lose: 0.04, late: 0.04, twice: 0.04, delay: 3 * time.Millisecond, rnd: rand.New(rand.NewPCG(seed, 1))}
	t.Cleanup(b.all.Wait)
	return b
}

var errNet = errors.New("the network lost it")

// fate draws what becomes of a call.
func (b *bad) fate(ctx context.Context) (drop, lose, late, twice bool, err error) {
	b.mu.Lock()
	x, d := b.rnd.Float64(), time.Duration(b.rnd.Float64()*float64(b.delay))
	b.mu.Unlock()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return false, false, false, false, ctx.Err()
	}
	drop = x < b.drop
	x -= b.drop
	lose = !drop && x < b.lose
	x -= b.lose
	late = !drop && !lose && x < b.late
	x -= b.late
	return drop, lose, late, !drop && !lose && !late && x < b.twice, nil
}

func (b *bad) Get(ctx context.Context, key string) ([]byte, string, error) {
	drop, lose, _, _, err := b.fate(ctx)
	if err != nil || drop || lose {
		return nil, "", errors.Join(errNet, err)
	}
	return b.Register.Get(ctx, key)
}

func (b *bad) Put(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
	drop, lose, late, twice, err := b.fate(ctx)
	switch {
	case err != nil || drop:
		return "", false, errors.Join(errNet, err)
	case late:
		b.all.Go(func() {
			time.Sleep(50 * time.Millisecond)
			_, _, _ = b.Register.Put(context.WithoutCancel(ctx), key, value, version)
		})
		return "", false, errNet
	case lose:
		_, _, _ = b.Register.Put(ctx, key, value, version)
		return "", false, errNet
	case twice:
		_, _, _ = b.Register.Put(ctx, key, value, version)
	}
	return b.Register.Put(ctx, key, value, version)
}

func (b *bad) Watch(ctx context.Context, key, version string) ([]byte, string, error) {
	drop, _, _, twice, err := b.fate(ctx)
	switch {
	case err != nil || drop:
		return nil, "", errors.Join(errNet, err)
	case twice: // it returns early
		return b.Register.Get(ctx, key)
	}
	return b.Register.Watch(ctx, key, version)
}

// harness is a fresh storage, through whose register each client goes by a wrapper of its own.
func harness(t testing.TB, wrap func(testing.TB, *memstore.Register) registerstore.Register) drivertest.Harness {
	r := memstore.NewRegister()
	open := func(t testing.TB) driver.Store {
		s, err := registerstore.FromRegister(wrap(t, r), registerstore.Options{Name: "memory register"})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	return drivertest.Harness{
		Open: open,
		TTL:  10 * time.Second,
		Remove: func(t testing.TB, name string, token uint64) {
			s, err := registerstore.FromRegister(r, registerstore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.RemoveClaim(context.Background(), name, token); err != nil {
				t.Fatal(err)
			}
		},
		Cut: func(t testing.TB) (driver.Store, func(bool)) {
			f := drivertest.Faulty(open(t), drivertest.Faults{})
			return f, f.Hang
		},
	}
}

// inBubbles runs each clause in a bubble of its own, where time passes as soon as everybody waits
// for it.
func inBubbles(t *testing.T, faults *drivertest.Faults, wrap func(testing.TB, *memstore.Register) registerstore.Register) {
	for _, c := range drivertest.Clauses() {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := harness(t, wrap)
				h.Faults = faults
				c.Check(t, h)
			})
		})
	}
}

func TestConformance(t *testing.T) {
	inBubbles(t, nil, func(t testing.TB, r *memstore.Register) registerstore.Register { return r })
}

func TestConformanceByPolls(t *testing.T) {
	inBubbles(t, nil, func(t testing.TB, r *memstore.Register) registerstore.Register { return plain{r} })
}

func TestConformanceWithoutDeletes(t *testing.T) {
	inBubbles(t, nil, func(t testing.TB, r *memstore.Register) registerstore.Register { return keeps{r} })
}

func TestConformanceOverABadNetworkAbove(t *testing.T) {
	for seed := range uint64(2) {
		inBubbles(t, &drivertest.Faults{Seed: seed, Delay: 5 * time.Millisecond, Drop: 0.1, Lose: 0.1},
			func(t testing.TB, r *memstore.Register) registerstore.Register { return r })
	}
}

// Puts whose outcome is unknown happen, now or later or not, and clients repeat them by themselves.
func TestConformanceOverABadNetworkBelow(t *testing.T) {
	for seed := range uint64(2) {
		inBubbles(t, &drivertest.Faults{Seed: seed}, func(t testing.TB, r *memstore.Register) registerstore.Register { return newBad(t, r, seed) })
		inBubbles(t, &drivertest.Faults{Seed: seed}, func(t testing.TB, r *memstore.Register) registerstore.Register { return plain{newBad(t, r, seed)} })
	}
}
