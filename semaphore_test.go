package primacy

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// Readers exclude nobody who reads: also not while their claim is on its way.
func TestATryToReadBesideReadersOfTheSameProcess(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		a := b.session("a", &slow{Store: b.store, claim: func() { time.Sleep(100 * time.Millisecond) }}, Options{})
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				term, err := a.RWMutex("x").TryRLock(t.Context())
				if err != nil {
					t.Errorf("nobody writes: %v", err)
					return
				}
				_ = term.Resign(t.Context())
			})
		}
		wg.Wait()
	})
}

// A holder that asks for the same name in another way would wait for itself.
func TestReEntryOfASemaphoresName(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		for what, nested := range map[string]func(ctx context.Context) error{
			"Mutex in Semaphore": func(ctx context.Context) error {
				return s.Semaphore("x", 2).Do(ctx, func(ctx context.Context, _ *Term) error {
					_, err := s.Mutex("x", nil).Lock(ctx)
					return err
				})
			},
			"Election in Semaphore": func(ctx context.Context) error {
				return s.Semaphore("x", 2).Do(ctx, func(ctx context.Context, _ *Term) error {
					_, err := s.Election("x").Campaign(ctx, nil)
					return err
				})
			},
			"Semaphore in Mutex": func(ctx context.Context) error {
				return s.Mutex("x", nil).Do(ctx, func(ctx context.Context, _ *Term) error {
					_, err := s.Semaphore("x", 2).Acquire(ctx)
					return err
				})
			},
			"all slots": func(ctx context.Context) error {
				return s.Semaphore("y", 1).Do(ctx, func(ctx context.Context, _ *Term) error {
					_, err := s.Semaphore("y", 1).Acquire(ctx)
					return err
				})
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			if err := nested(ctx); !errors.Is(err, ErrReentrant) && !errors.Is(err, ErrUpgrade) {
				t.Errorf("%s: got %v, want ErrReentrant", what, err)
			}
			cancel()
		}
	})
}

// Who names another number of slots is told the same, wherever the others are.
func TestAnotherNumberOfSlotsIsRefusedInAndBetweenProcesses(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		here, there := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		var held []*Term
		for range 2 { // all slots: whoever is not told would wait for one
			held = append(held, must[*Term](t)(here.Semaphore("x", 2).Acquire(t.Context())))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for where, s := range map[string]*Session{"in the process of the holder": here, "in another process": there} {
			for what, acquire := range map[string]func(context.Context) (*Term, error){
				"Acquire": s.Semaphore("x", 3).Acquire, "TryAcquire": s.Semaphore("x", 3).TryAcquire,
			} {
				_, err := acquire(ctx)
				if !errors.Is(err, ErrRefused) || errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "2 slots, not 3 slots") {
					t.Errorf("%s %s: got %v, want ErrRefused with both numbers", what, where, err)
				}
			}
		}
		for _, term := range held {
			if err := term.Resign(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range []*Session{here, there} {
			term, err := s.Semaphore("x", 3).TryAcquire(t.Context())
			if err != nil {
				t.Fatalf("nobody uses it with 2 slots any more: %v", err)
			}
			defer term.Unlock()
		}
	})
}

// What Resign says is free is free: the next try of the same process gets it.
func TestASlotThatWasGivenBackIsFree(t *testing.T) {
	s, err := NewSession(memstore.New(memstore.Options{}), &Options{ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	for i := range 20000 {
		term, err := s.Semaphore("x", 1).TryAcquire(t.Context())
		if err != nil {
			t.Fatalf("try %d: %v", i, err)
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadersShareAndWritersDoNotStarve(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		g := &guarded{t: t}
		ctx, stop := context.WithCancel(t.Context())
		var most atomic.Int64
		var readers, writers sync.WaitGroup
		for _, id := range []string{"a", "b"} {
			s := b.session(id, b.store, Options{})
			for i := range 6 {
				readers.Go(func() {
					time.Sleep(time.Duration(i) * 7 * time.Millisecond)
					for ctx.Err() == nil {
						_ = s.RWMutex("x").RDo(ctx, func(_ context.Context, term *Term) error {
							g.visit(term, 1, 999, 50*time.Millisecond)
							for n := g.inside.Load(); n > most.Load(); {
								most.Store(n)
							}
							return nil
						})
					}
				})
			}
			writers.Go(func() {
				for range 20 {
					asked := time.Now()
					err := s.RWMutex("x").Do(t.Context(), func(_ context.Context, term *Term) error {
						if waited := time.Since(asked); waited > 2*time.Second {
							t.Errorf("a writer waited %v for readers", waited)
						}
						g.visit(term, 1000, 1000, 5*time.Millisecond)
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		writers.Wait()
		stop()
		readers.Wait()
		if most.Load() < 5 {
			t.Errorf("at most %d readers together, want more", most.Load())
		}
	})
}

func TestASemaphoreHasSoManyHoldersAndNoMore(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		g := &guarded{t: t}
		var last atomic.Uint64
		var most atomic.Int64
		var wg sync.WaitGroup
		for _, id := range []string{"a", "b"} {
			s := b.session(id, b.store, Options{})
			for range 5 {
				wg.Go(func() {
					for range 20 {
						term := must[*Term](t)(s.Semaphore("x", 3).Acquire(t.Context()))
						for old := last.Load(); uint64(term.Token()) > old &&
							!last.CompareAndSwap(old, uint64(term.Token())); old = last.Load() {
						}
						g.visit(term, 1, 3, 10*time.Millisecond)
						if n := g.inside.Load() + 1; n > most.Load() {
							most.Store(n)
						}
						_ = term.Resign(t.Context())
					}
				})
			}
		}
		wg.Wait()
		if g.entries.Load() != 200 || most.Load() != 3 {
			t.Errorf("%d entries with up to %d inside, want 200 and 3", g.entries.Load(), most.Load())
		}
		s := b.session("c", b.store, Options{})
		term := must[*Term](t)(s.Semaphore("x", 3).Acquire(t.Context()))
		if uint64(term.Token()) <= last.Load() {
			t.Errorf("token %v after %d", term.Token(), last.Load())
		}
		_ = term.Resign(t.Context())
	})
}

func TestATryLeavesNothingBehind(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		a, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		held := must[*Term](t)(a.RWMutex("x").RLock(t.Context()))
		for name, try := range map[string]func(context.Context) (*Term, error){
			"write, same process": a.Mutex("x", nil).TryLock, "write, other process": other.Mutex("x", nil).TryLock,
		} {
			if _, err := try(t.Context()); !errors.Is(err, ErrHeld) {
				t.Errorf("%s: got %v, want ErrHeld", name, err)
			}
		}
		for _, s := range []*Session{a, other} {
			r := must[*Term](t)(s.RWMutex("x").TryRLock(t.Context()))
			_ = r.Resign(t.Context())
		}
		_ = held.Resign(t.Context())
		w := must[*Term](t)(other.Mutex("x", nil).TryLock(t.Context()))
		if _, err := a.RWMutex("x").TryRLock(t.Context()); !errors.Is(err, ErrHeld) {
			t.Errorf("read beside a writer: got %v, want ErrHeld", err)
		}
		_ = w.Resign(t.Context())
		one := must[*Term](t)(a.Semaphore("s", 1).TryAcquire(t.Context()))
		for _, s := range []*Session{a, other} {
			if _, err := s.Semaphore("s", 1).TryAcquire(t.Context()); !errors.Is(err, ErrHeld) {
				t.Errorf("a full semaphore: got %v, want ErrHeld", err)
			}
		}
		_ = one.Resign(t.Context())
		for _, name := range []string{"x", "s"} {
			if ln := must[driver.Line](t)(b.store.Line(t.Context(), name)); ln.Holder != nil {
				t.Errorf("left in the line of %s: %+v", name, ln)
			}
		}
	})
}
