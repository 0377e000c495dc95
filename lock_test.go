package primacy

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// guarded is what a lock guards in these tests: it knows who is inside, and the tokens it has seen.
type guarded struct {
	t       *testing.T
	inside  atomic.Int64 // a writer counts 1,000
	entries atomic.Int64
	largest atomic.Uint64
}

func (g *guarded) visit(term *Term, weight, limit int64, d time.Duration) {
	if err := term.Check(); err != nil {
		g.t.Errorf("a lock that was just won: %v", err)
	}
	if n := g.inside.Add(weight); n > limit {
		g.t.Errorf("%d inside, at most %d may be", n, limit)
	}
	if weight == 1000 {
		if old := g.largest.Swap(uint64(term.Token())); old >= uint64(term.Token()) {
			g.t.Errorf("token %v after %d", term.Token(), old)
		}
	}
	g.entries.Add(1)
	time.Sleep(d)
	g.inside.Add(-weight)
}

func TestAMutexExcludesInAndBetweenProcesses(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		g := &guarded{t: t}
		share := map[string]*atomic.Int64{}
		var wg sync.WaitGroup
		for _, id := range []string{"a", "b", "c"} {
			s, n := b.session(id, b.store, Options{}), &atomic.Int64{}
			share[id] = n
			for range 4 {
				wg.Go(func() {
					for range 50 {
						term := must[*Term](t)(s.Mutex("x", nil).Lock(t.Context()))
						g.visit(term, 1000, 1000, 3*time.Millisecond)
						n.Add(1)
						if err := term.Resign(t.Context()); err != nil {
							t.Errorf("resign: %v", err)
						}
						if term.Check() == nil {
							t.Error("Check says yes after Resign")
						}
					}
				})
			}
		}
		wg.Wait()
		if got := g.entries.Load(); got != 600 {
			t.Errorf("%d entries, want 600", got)
		}
		if ln := must[driver.Line](t)(b.store.Line(t.Context(), "x")); ln.Holder != nil {
			t.Errorf("left in the line: %+v", ln)
		}
	})
}

// While a process hands its lock on, the others wait for no longer than its turns and window, and a
// hold that is under way.
func TestLocalHandOversAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		a, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for ctx.Err() == nil {
					term, err := a.Mutex("x", nil).Lock(ctx)
					if err != nil {
						return
					}
					time.Sleep(10 * time.Millisecond)
					_ = term.Resign(t.Context())
				}
			})
		}
		time.Sleep(time.Second)
		for range 5 {
			asked := time.Now()
			term := must[*Term](t)(other.Mutex("x", nil).Lock(t.Context()))
			if waited := time.Since(asked); waited > 250*time.Millisecond {
				t.Errorf("another process waited %v", waited)
			}
			_ = term.Resign(t.Context())
		}
		stop()
		wg.Wait()
	})
}

func TestReEntryAndUpgradeAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		m := s.RWMutex("x")
		err := m.Do(t.Context(), func(ctx context.Context, term *Term) error {
			for name, lock := range map[string]func(context.Context) (*Term, error){"Lock": m.Lock, "RLock": m.RLock,
				"TryLock":  m.TryLock,
				"Campaign": func(ctx context.Context) (*Term, error) { return s.Election("x").Campaign(ctx, nil) }} {
				_, err := lock(ctx)
				if !errors.Is(err, ErrReentrant) || !strings.Contains(err.Error(), term.Token().String()) {
					t.Errorf("%s while holding: got %v, want ErrReentrant with the token", name, err)
				}
			}
			// another lock meanwhile is no re-entry, and hides none
			return s.Mutex("y", nil).Do(ctx, func(ctx context.Context, _ *Term) error {
				if _, err := m.Lock(ctx); !errors.Is(err, ErrReentrant) {
					t.Errorf("below another lock: got %v, want ErrReentrant", err)
				}
				return nil
			})
		})
		if err != nil {
			t.Error(err)
		}
		err = m.RDo(t.Context(), func(ctx context.Context, _ *Term) error {
			if _, err := m.Lock(ctx); !errors.Is(err, ErrUpgrade) {
				t.Errorf("read to write: got %v, want ErrUpgrade", err)
			}
			if _, err := m.RLock(ctx); !errors.Is(err, ErrReentrant) {
				t.Errorf("read to read: got %v, want ErrReentrant", err)
			}
			r, err := other.RWMutex("x").RLock(ctx) // another session is another holder
			if err != nil {
				t.Errorf("another session: %v", err)
				return nil
			}
			return r.Resign(ctx)
		})
		if err != nil {
			t.Error(err)
		}
		// A context of a term that is over holds nothing.
		term := must[*Term](t)(m.Lock(t.Context()))
		_ = term.Resign(t.Context())
		again := must[*Term](t)(m.Lock(context.WithoutCancel(term.Context())))
		_ = again.Resign(t.Context())
	})
}

func TestAWaiterThatGivesUpLeavesNoTrace(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		a, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		held := must[*Term](t)(a.Mutex("x", nil).Lock(t.Context()))
		for _, s := range []*Session{a, other} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			began := time.Now()
			_, err := s.Mutex("x", nil).Lock(ctx)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnreachable) ||
				time.Since(began) > 1100*time.Millisecond {
				t.Errorf("%s: got %v after %v", s.ID(), err, time.Since(began))
			}
		}
		synctest.Wait()
		if ln := must[driver.Line](t)(b.store.Line(t.Context(), "x")); len(ln.Waiters) > 0 {
			t.Errorf("still waiting: %+v", ln.Waiters)
		}
		_ = held.Resign(t.Context())
		synctest.Wait()
		for _, s := range []*Session{a, other} {
			s.mu.Lock()
			if n := len(s.queues) + len(s.seats.taken); n > 0 {
				t.Errorf("%d queues or turns are left in the session of %s", n, s.ID())
			}
			s.mu.Unlock()
		}
	})
}

func TestALostLockEndsItsHolderAndTheOthersGoOn(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{Overrun: OverrunWait})
		term := must[*Term](t)(s.Mutex("x", nil).Lock(t.Context()))
		next := make(chan *Term)
		go func() {
			n, err := s.Mutex("x", nil).Lock(t.Context())
			if err != nil {
				t.Error(err)
			}
			next <- n
		}()
		synctest.Wait()
		b.store.Expire("x")
		<-term.Context().Done()
		n := <-next // though the first has not given it back
		if err := term.Check(); !errors.Is(err, ErrDeposed) || !strings.Contains(err.Error(), `the lock on "x"`) {
			t.Errorf("got %v, want ErrDeposed of a lock", err)
		}
		if n.Token() <= term.Token() || n.Check() != nil {
			t.Errorf("the next one: token %v after %v, %v", n.Token(), term.Token(), n.Check())
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Error(err)
		}
		if err := n.Check(); err != nil {
			t.Errorf("a late unlock hurt the successor: %v", err)
		}
		_ = n.Resign(t.Context())
	})
}

func TestALocalHolderEndsWithItsClaim(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		r1 := must[*Term](t)(s.RWMutex("x").RLock(t.Context()))
		r2 := must[*Term](t)(s.RWMutex("x").RLock(t.Context()))
		if r1.ClaimToken() != r2.ClaimToken() || r2.Token() != r1.Token()+1 {
			t.Fatalf("tokens %v and %v: not one claim", r1.Token(), r2.Token())
		}
		if err := r1.Resign(t.Context()); err != nil || r1.Check() == nil || r2.Check() != nil ||
			r2.Context().Err() != nil {
			t.Fatalf("one gave it back: %v, its own %v, the other's %v", err, r1.Check(), r2.Check())
		}
		b.store.Remove("x", uint64(r2.ClaimToken()))
		<-r2.Context().Done()
		var ended *EndedError
		if err := r2.Check(); !errors.As(err, &ended) || ended.Token != r2.Token() || !errors.Is(err, ErrDeposed) {
			t.Errorf("got %v, want ErrDeposed under token %v", err, r2.Token())
		}
		_ = r2.Resign(t.Context())
	})
}

func TestDoTellsOfALockThatWasLost(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{Overrun: OverrunWait})
		mine := errors.New("mine")
		err := s.Mutex("x", nil).Do(t.Context(), func(ctx context.Context, _ *Term) error {
			b.store.Expire("x")
			<-ctx.Done()
			return mine
		})
		if !errors.Is(err, mine) || !errors.Is(err, ErrDeposed) {
			t.Errorf("got %v, want both errors", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		err = s.Mutex("x", nil).Do(ctx, func(ctx context.Context, term *Term) error {
			cancel()
			<-ctx.Done()
			if term.Check() != nil {
				t.Error("the right ended before the work has stopped")
			}
			return mine
		})
		if err != mine {
			t.Errorf("given up by the caller: got %v, want what work returned", err)
		}
	})
}

func TestLockAllTakesAllOrNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var wg sync.WaitGroup
		g := &guarded{t: t}
		names := []string{"c", "a", "b"}
		for i, id := range []string{"a", "b", "c"} {
			s := b.session(id, b.store, Options{})
			wg.Go(func() { // each in an order of its own: without sorting they would wait in a circle
				mine := append(slices.Clone(names[i:]), names[:i]...)
				for range 20 {
					err := s.DoAll(t.Context(), mine, func(ctx context.Context, held []*Term) error {
						for j, term := range held {
							if term.Name() != mine[j] {
								t.Errorf("term %d is of %s, want %s", j, term.Name(), mine[j])
							}
							if _, err := s.Mutex(mine[j], nil).Lock(ctx); !errors.Is(err, ErrReentrant) {
								t.Errorf("re-entry of %s: %v", mine[j], err)
							}
						}
						g.visit(held[0], 1, 1, time.Millisecond)
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		s := b.session("d", b.store, Options{})
		busy := must[*Term](t)(b.session("e", b.store, Options{}).Mutex("b", nil).Lock(t.Context()))
		if _, err := s.TryLockAll(t.Context(), "a", "b", "c"); !errors.Is(err, ErrHeld) {
			t.Errorf("one is held: got %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.LockAll(ctx, "a", "b", "c"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one is held: got %v", err)
		}
		synctest.Wait()
		for _, name := range []string{"a", "c"} {
			if ln := must[driver.Line](t)(b.store.Line(t.Context(), name)); ln.Holder != nil {
				t.Errorf("%s is still held after all were not to be had", name)
			}
		}
		if _, err := s.LockAll(t.Context(), "a", "a"); !errors.Is(err, ErrInvalid) {
			t.Errorf("a name twice: got %v", err)
		}
		_ = busy.Resign(t.Context())
	})
}

func TestClosingTheSessionWaitsForItsLocks(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		term := must[*Term](t)(s.Mutex("x", nil).Lock(t.Context()))
		waiting := make(chan error)
		go func() {
			_, err := s.Mutex("x", nil).Lock(t.Context())
			waiting <- err
		}()
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- s.Close(t.Context()) }()
		<-term.Context().Done()
		synctest.Wait()
		if ln := must[driver.Line](t)(b.store.Line(t.Context(), "x")); ln.Holder == nil {
			t.Fatal("the claim went before its holder had stopped")
		}
		_ = term.Resign(t.Context())
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if err := <-waiting; !errors.Is(err, ErrClosed) {
			t.Errorf("who waited: got %v, want ErrClosed", err)
		}
		if _, err := s.Mutex("x", nil).Lock(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: got %v, want ErrClosed", err)
		}
	})
}

// A waiter whose store does not answer is told so when it gives up, and a lock that cannot be is
// told at once.
// An attempt that hangs ends by its own limit, which says nothing of the caller's context.
func TestASilentStoreIsToldAlsoWhileALeaseLives(t *testing.T) {
	for what, get := range map[string]func(context.Context, *Session) (*Term, error){
		"Campaign": func(ctx context.Context, s *Session) (*Term, error) { return s.Election("x").Campaign(ctx, nil) },
		"Lock":     func(ctx context.Context, s *Session) (*Term, error) { return s.Mutex("x", nil).Lock(ctx) },
		"Acquire":  func(ctx context.Context, s *Session) (*Term, error) { return s.Semaphore("x", 3).Acquire(ctx) },
	} {
		bubble(t, func(t *testing.T, b *world) {
			s := b.session("a", b.store, Options{})
			if err := s.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			b.store.Partition("a", true)
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			if _, err := get(ctx, s); !errors.Is(err, ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: got %v, want ErrUnreachable and the context's", what, err)
			}
			b.store.Partition("a", false)
		})
	}
}

func TestWhyALockWasNotHad(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		b.store.Partition("a", true)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := s.Mutex("x", nil).Lock(ctx); !errors.Is(err, ErrUnreachable) ||
			!errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("cut off: got %v, want ErrUnreachable and the context's", err)
		}
		b.store.Partition("a", false)
		for _, name := range []string{"", "a\x00b", strings.Repeat("x", 300)} {
			if _, err := s.Mutex(name, nil).Lock(t.Context()); !errors.Is(err, ErrInvalid) {
				t.Errorf("the name %.10q: got %v, want ErrInvalid", name, err)
			}
		}
		if _, err := s.Semaphore("s", 0).Acquire(t.Context()); !errors.Is(err, ErrInvalid) {
			t.Errorf("no slots: got %v", err)
		}
		gone, stop := context.WithCancelCause(t.Context())
		why := fmt.Errorf("why")
		stop(why)
		if _, err := s.Mutex("x", nil).Lock(gone); !errors.Is(err, why) {
			t.Errorf("a context that is over: got %v, want its cause", err)
		}
	})
}

// The tokens of all who hold a lock in one process grow, also from one claim to the next, and who
// held it before holds it no more, whatever he asks.
func TestEachHolderOfALockHasALargerToken(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		var mu sync.Mutex
		var last *Term
		claims := map[Token]int{}
		m := s.Mutex("x", &MutexOptions{Turns: 300})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 200 {
					term := must[*Term](t)(m.Lock(t.Context()))
					synctest.Wait() // the others wait for the lock, however busy the machine is
					mu.Lock()
					if last != nil && (term.Token() <= last.Token() || last.Check() == nil ||
						last.Context().Err() == nil) {
						t.Errorf("token %v after %v; the one before: %v, %v", term.Token(), last.Token(), last.Check(),
							last.Context().Err())
					}
					last = term
					claims[term.ClaimToken()]++
					mu.Unlock()
					_ = term.Resign(t.Context())
				}
			})
		}
		wg.Wait()
		if len(claims) < 2 || len(claims) > 400 {
			t.Errorf("800 holds under %d claims", len(claims))
		}
	})
}

// Stop, then release: before anybody else of the process can get the lock the right of the one
// before is over.
func TestTheRightEndsBeforeTheLockIsHandedOn(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		first := must[*Term](t)(s.Mutex("x", nil).Lock(t.Context()))
		next := later(t, s.Mutex("x", nil).Lock)
		q := first.share.q.(*queue)
		q.mu.Lock() // nobody is handed anything
		resigned := make(chan error, 1)
		go func() { resigned <- first.Resign(t.Context()) }()
		for range 1_000_000 {
			if first.Check() != nil && first.Context().Err() != nil {
				break
			}
			runtime.Gosched()
		}
		if first.Check() == nil || first.Context().Err() == nil {
			t.Error("its right lasts until after the lock was handed on: two hold at once")
		}
		q.mu.Unlock()
		n := soon(next, time.Second)
		if n == nil || n.ClaimToken() != first.ClaimToken() || n.Check() != nil || <-resigned != nil {
			t.Fatal("it was not handed on")
		}
		_ = n.Resign(t.Context())
	})
}

func TestALockIsGivenBackOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		var wg sync.WaitGroup
		first := must[*Term](t)(s.Mutex("x", nil).Lock(t.Context()))
		second, third := later(t, s.Mutex("x", nil).Lock), later(t, s.Mutex("x", nil).Lock)
		for range 3 {
			wg.Go(func() {
				if err := first.Resign(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		n := soon(second, time.Second)
		if soon(third, time.Second) != nil {
			t.Error("giving one lock back three times let two in")
		}
		_ = first.Resign(t.Context())
		if n.Check() != nil {
			t.Errorf("a late unlock hurt the successor: %v", n.Check())
		}
		_ = n.Resign(t.Context())
		if n = soon(third, time.Second); n == nil || n.Check() != nil {
			t.Fatal("the third never got it")
		}
		_ = n.Resign(t.Context())
		nothingLeft(t, s)
	})
}

// A claim that was asked for before its owner knew that it holds is ending when it is won: nobody
// gets the lock under it, or its context would never end.
func TestAnEndingClaimIsHandedToNobody(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		a, other := b.session("a", &slow{Store: b.store, news: func() { time.Sleep(time.Second) }}, Options{}),
			b.session("b", b.store, Options{})
		held := must[*Term](t)(other.Mutex("x", nil).Lock(t.Context()))
		next := later(t, a.Mutex("x", nil).Lock)
		_ = held.Resign(t.Context())
		asked, err := other.Election("x").Ask(t.Context(), Request{Reason: "please"})
		if err != nil {
			t.Fatal(err)
		}
		n := soon(next, 10*time.Second)
		if n == nil || n.ClaimToken() <= asked || n.Check() != nil || n.Context().Err() != nil {
			t.Fatalf("got %+v, want a term of a later claim than %v", n, asked)
		}
		_ = n.Resign(t.Context())
	})
}

// Who lost a lock keeps nobody of his own process from it, though he never gives it back.
func TestALostLockIsFreeForTheOthersOfTheProcess(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		for _, lose := range []func(*Term){
			func(*Term) { b.store.Expire("x") },
			func(term *Term) { b.store.Remove("x", uint64(term.ClaimToken())) },
		} {
			lost := must[*Term](t)(s.Mutex("x", nil).Lock(t.Context()))
			next := later(t, s.Mutex("x", nil).Lock)
			lose(lost)
			n := soon(next, 30*time.Second)
			if n == nil {
				t.Fatal("the next one waits for one who has lost it")
			}
			if lost.Check() == nil || lost.Context().Err() == nil || n.Check() != nil {
				t.Errorf("the one before: %v, context %v; the next: %v", lost.Check(), lost.Context().Err(), n.Check())
			}
			_ = n.Resign(t.Context())
			_ = lost.Resign(t.Context())
		}
	})
}

func TestAllReadersOfAProcessHearOfTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		var all []*Term
		for range 3 {
			all = append(all, must[*Term](t)(s.RWMutex("x").RLock(t.Context())))
		}
		b.store.Partition("a", true)
		time.Sleep(10 * time.Second)
		for _, r := range all {
			if !errors.Is(context.Cause(r.Context()), ErrExpired) || !errors.Is(r.Check(), ErrExpired) ||
				r.Remaining() != 0 {
				t.Errorf("cut off for a ttl: cause %v, Check %v", context.Cause(r.Context()), r.Check())
			}
		}
		b.store.Partition("a", false)
	})
}

// A reader that comes when the claim of its process is used up waits for no reader, and a writer
// gets in between.
func TestALateReaderHasAClaimOfItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		early := must[*Term](t)(s.RWMutex("x").RLock(t.Context()))
		time.Sleep(time.Second)
		late := soon(later(t, s.RWMutex("x").RLock), time.Second)
		if late == nil || late.ClaimToken() <= early.ClaimToken() {
			t.Fatalf("got %+v beside claim %v", late, early.ClaimToken())
		}
		_ = early.Resign(t.Context())
		if late.Check() != nil {
			t.Errorf("it ended with the other: %v", late.Check())
		}
		_ = late.Resign(t.Context())
	})
}

// No try waits, whoever holds.
func TestNoTryWaits(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		a, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		w := must[*Term](t)(a.Mutex("x", nil).Lock(t.Context()))
		one := must[*Term](t)(a.Semaphore("s", 1).Acquire(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		for _, s := range []*Session{a, other} {
			for what, try := range map[string]func(context.Context) (*Term, error){"TryLock": s.Mutex("x", nil).TryLock,
				"TryRLock":   s.RWMutex("x").TryRLock,
				"TryAcquire": s.Semaphore("s", 1).TryAcquire} {
				if _, err := try(ctx); !errors.Is(err, ErrHeld) {
					t.Errorf("%s in %s: got %v, want ErrHeld", what, s.ID(), err)
				}
			}
			if _, err := s.TryLockAll(ctx, "w", "x"); !errors.Is(err, ErrHeld) {
				t.Errorf("TryLockAll in %s: got %v, want ErrHeld", s.ID(), err)
			}
		}
		_, _ = w.Resign(t.Context()), one.Resign(t.Context())
		nothingLeft(t, a)
		nothingLeft(t, other)
	})
}

func TestLockAllWaitsInOneOrder(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		first := must[*Term](t)(other.Mutex("a", nil).Lock(t.Context()))
		all := make(chan error, 1)
		go func() {
			held, err := s.LockAll(t.Context(), "b", "a")
			for _, term := range held {
				_ = term.Resign(t.Context())
			}
			all <- err
		}()
		synctest.Wait()
		if second, err := other.Mutex("b", nil).TryLock(t.Context()); err != nil {
			t.Errorf("it waits for a while it holds b: %v", err)
		} else {
			_ = second.Resign(t.Context())
		}
		_ = first.Resign(t.Context())
		if err := <-all; err != nil {
			t.Error(err)
		}
	})
}

// The work of DoAll holds every one of the names: it is told so instead of waiting for itself.
func TestDoAllRefusesReEntry(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		err := s.DoAll(t.Context(), []string{"b", "a", "c"}, func(ctx context.Context, _ []*Term) error {
			for _, name := range []string{"a", "b", "c"} {
				limit, cancel := context.WithTimeout(ctx, time.Second)
				if _, err := s.Mutex(name, nil).Lock(limit); !errors.Is(err, ErrReentrant) {
					t.Errorf("%s: got %v, want ErrReentrant", name, err)
				}
				cancel()
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// A lock that went while LockAll waited for another is not among those that it returns.
func TestLockAllNoticesWhatWasLost(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		second := must[*Term](t)(other.Mutex("b", nil).Lock(t.Context()))
		all := make(chan []*Term, 1)
		go func() { all <- must[[]*Term](t)(s.LockAll(t.Context(), "a", "b")) }()
		synctest.Wait()
		leader := must[Entry](t)(other.Election("a").Leader(t.Context()))
		b.store.Remove("a", uint64(leader.Token))
		synctest.Wait()
		_ = second.Resign(t.Context())
		held := <-all
		for _, term := range held {
			if term.Check() != nil {
				t.Errorf("%s was lost before it was returned: %v", term.Name(), term.Check())
			}
		}
		resignAll(t.Context(), held)
	})
}

func TestDoAllGivesTheOthersBackWhenOneIsLostBeforeTheWork(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		held := must[[]*Term](t)(s.LockAll(t.Context(), "x", "y", "z"))
		b.store.Remove("y", uint64(held[1].ClaimToken()))
		synctest.Wait()
		err := holdAll(t.Context(), held, func(context.Context) error { t.Error("work ran"); return nil })
		if !errors.Is(err, ErrDeposed) {
			t.Errorf("got %v, want ErrDeposed", err)
		}
		synctest.Wait()
		b.emptyLines("x", "y", "z")
	})
}

// Work of all kinds of locks is told when its caller's context ends, and seen when it outlives its
// right.
func TestWorkUnderALockIsStoppedAndWatched(t *testing.T) {
	type do = func(context.Context, func(context.Context, *Term) error) error
	for what, of := range map[string]func(*Session) do{
		"Mutex": func(s *Session) do { return s.Mutex("x", nil).Do }, "RWMutex": func(s *Session) do {
			return s.RWMutex("x").RDo
		},
		"Semaphore": func(s *Session) do { return s.Semaphore("x", 2).Do },
		"DoAll": func(s *Session) do {
			return func(ctx context.Context, work func(context.Context, *Term) error) error {
				return s.DoAll(ctx, []string{"y", "x", "z"}, func(ctx context.Context, held []*Term) error {
					return work(ctx, held[1])
				})
			}
		},
	} {
		bubble(t, func(t *testing.T, b *world) {
			s := b.session("a", b.store, Options{})
			var exited atomic.Int64
			s.exit = func(int) { exited.Add(1) }
			ctx, cancel := context.WithCancel(t.Context())
			err := of(s)(ctx, func(ctx context.Context, term *Term) error {
				cancel()
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
					t.Errorf("%s: its context goes on", what)
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s: given up by the caller: %v", what, err)
			}
			if err := of(s)(t.Context(), func(_ context.Context, term *Term) error { // deaf
				b.store.Expire("x")
				time.Sleep(20 * time.Second)
				return nil
			}); !errors.Is(err, ErrDeposed) {
				t.Errorf("%s: got %v, want ErrDeposed", what, err)
			}
			if exited.Load() == 0 {
				t.Errorf("%s: the work outlived its right and nobody saw it", what)
			}
		})
	}
}

// Unlock in a defer gives the lock back also where the caller's context has ended, and does not
// wait for ever for a store that does not answer.
func TestUnlockNeedsNoContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		func() {
			term := must[*Term](t)(s.Mutex("x", nil).Lock(ctx))
			defer term.Unlock()
			cancel()
		}()
		term := must[*Term](t)(other.Mutex("x", nil).TryLock(t.Context()))
		if err := term.Unlock(); err != nil || !errors.Is(term.Check(), ErrResigned) {
			t.Errorf("Unlock = %v, and then Check = %v", err, term.Check())
		}
		term = must[*Term](t)(other.Mutex("x", nil).Lock(t.Context()))
		b.store.Partition("b", true)
		began := b.clock()
		if err := term.Unlock(); !errors.Is(err, ErrUnreachable) || b.clock()-began > other.o.TTL {
			t.Errorf("a store that does not answer: %v after %v, want ErrUnreachable soon", err, b.clock()-began)
		}
		b.store.Partition("b", false)
	})
}

// A try answers at once also where this process itself stands for the name by other means.
func TestATryBesideAnElectionOfTheSameSession(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		leads := b.lead(s, "x")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		at := b.clock()
		if _, err := s.Mutex("x", nil).TryLock(ctx); !errors.Is(err, ErrHeld) || b.clock() > at+time.Second {
			t.Errorf("got %v after %v, want ErrHeld at once", err, b.clock()-at)
		}
		_ = leads.Resign(t.Context())
	})
}

// What a waiter before it met with is not what a try is told.
func TestATryIsToldOfNobodyElsesEnd(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		r := must[*Term](t)(s.RWMutex("x").RLock(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.RWMutex("x").Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the writer that gives up: %v", err)
		}
		synctest.Wait()
		if _, err := s.RWMutex("x").TryLock(t.Context()); !errors.Is(err, ErrHeld) ||
			errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want ErrHeld", err)
		}
		_ = r.Resign(t.Context())
	})
}

// A claim that is asked for in the moment of its grant is ending when the queue hears that it was
// won. Those who wait behind it are not forgotten, and leave nothing behind.
func TestAGrantThatComesTooLateLeavesNoCampaignBehind(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		a, other := b.session("a", &slow{Store: b.store, news: func() { time.Sleep(time.Second) }}, Options{}),
			b.session("b", b.store, Options{})
		writes := must[*Term](t)(other.Mutex("x", nil).Lock(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		r := laterErr(a.RWMutex("x").RLock, ctx)
		synctest.Wait()
		w := laterErr(a.RWMutex("x").Lock, ctx)
		synctest.Wait()
		behind := laterErr(other.RWMutex("x").RLock, t.Context()) // holds beside r
		_ = behind
		_ = writes.Resign(t.Context())
		synctest.Wait() // the claim of r holds; r does not know yet
		l := must[*lease](t)(a.liveLease(t.Context()))
		for _, c := range l.standingClaims() {
			c.notify("", core.ClaimEvent{Kind: core.Ask, Cause: core.Resigned}, nil)
		}
		holds := must[*Term](t)(b.session("c", b.store, Options{}).RWMutex("x").RLock(t.Context()))
		time.Sleep(3 * time.Second)
		select {
		case err := <-r:
			if err != nil {
				t.Errorf("the reader: %v", err)
			}
		default:
			t.Error("a reader waits for a reader")
		}
		cancel()
		<-w
		time.Sleep(3 * time.Second)
		if ln := must[driver.Line](t)(b.store.Line(t.Context(), "x")); len(ln.Waiters) > 0 {
			t.Errorf("left in the line: %+v", ln.Waiters)
		}
		_ = holds.Resign(t.Context())
	})
}

// A try whose claim ended in the moment of its grant is still a try.
func TestATryThatIsGrantedTooLateDoesNotWait(t *testing.T) {
	var q core.Queue
	q.Step(0, core.QueueEvent{Kind: core.Arrive, Waiter: 1, Try: true})
	q.Step(0, core.QueueEvent{Kind: core.Win, Claim: 2})
	for _, o := range q.Step(0, core.QueueEvent{Kind: core.PutBack, Waiter: 1, Claim: 2, Try: true}) {
		if o.Do == core.Campaign && !o.Try {
			t.Errorf("it waits: %+v", o)
		}
	}
}

func TestATryWhoseClaimIsAskedForDoesNotWait(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		st := &slow{Store: b.store}
		a, other := b.session("a", st, Options{}), b.session("b", b.store, Options{})
		st.claim = func() { st.claim = nil; time.Sleep(500 * time.Millisecond) }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		at := b.clock()
		got := laterErr(a.Mutex("x", nil).TryLock, ctx)
		synctest.Wait()
		if _, err := other.Election("x").Ask(t.Context(), Request{Reason: "please"}); err != nil {
			t.Fatal(err)
		}
		next := laterErr(func(ctx context.Context) (*Term, error) {
			term, err := other.Mutex("x", nil).Lock(ctx)
			time.Sleep(30 * time.Second)
			return term, err
		}, t.Context())
		if err := <-got; b.clock()-at > 5*time.Second {
			t.Errorf("a try took %v: %v", b.clock()-at, err)
		}
		<-next
	})
}

// Whoever loses the lock hears of it, also where its own context ends before the work has returned.
func TestDoTellsOfALockThatWasLostBeforeItsContextEnded(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{Overrun: OverrunWait})
		ctx, cancel := context.WithCancel(t.Context())
		err := s.Mutex("x", nil).Do(ctx, func(ctx context.Context, _ *Term) error {
			b.store.Expire("x")
			<-ctx.Done()
			cancel()
			return nil
		})
		if !errors.Is(err, ErrDeposed) {
			t.Errorf("lost, then the context ended: got %v, want ErrDeposed", err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		err = s.Mutex("x", nil).Do(ctx, func(ctx context.Context, term *Term) error {
			cancel()
			<-ctx.Done()
			b.store.Expire("x")
			synctest.Wait()
			if term.Check() == nil {
				t.Error("Check says yes")
			}
			return nil
		})
		if !errors.Is(err, ErrDeposed) {
			t.Errorf("the context ended, then lost: got %v, want ErrDeposed", err)
		}
	})
}

// LockAll obeys its context also where it has to give many back to a store that does not answer.
func TestLockAllReturnsWhenItsContextEnds(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		a, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		held := must[*Term](t)(other.Mutex("z", nil).Lock(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		names := strings.Split("abcdefghijz", "")
		go func() {
			time.Sleep(time.Second)
			b.store.Partition("a", true)
		}()
		at := b.clock()
		_, err := a.LockAll(ctx, names...)
		if took := b.clock() - at; took > 5*time.Second {
			t.Errorf("it returned after %v, its context ended after 2s: %v", took, err)
		}
		b.store.Partition("a", false)
		_ = held.Resign(t.Context())
	})
}

// Who waits for a lock returns when his context ends, though the store's client ignores that.
func TestLockReturnsThoughTheClientIgnoresItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		answers := make(chan struct{})
		h := &hooked{Store: b.store}
		h.claim = func(l driver.Lease, ctx context.Context, c ...driver.Claim) ([]driver.Place, error) {
			<-answers
			return l.Claim(ctx, c...)
		}

		s := b.session("a", h, Options{})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		time.AfterFunc(time.Minute, func() { close(answers) })
		at := b.clock()
		_, err := s.Mutex("n", nil).Lock(ctx)
		if took := b.clock() - at; err == nil || took > 3*time.Second {
			t.Errorf("Lock returned after %v, its context ended after 2s: %v", took, err)
		}
	})
}

// notoken is a store that has no tokens.
type notoken struct{ driver.Store }

func (s notoken) Caps() driver.Caps { c := s.Store.Caps(); c.Token = driver.TokenNone; return c }

func (s notoken) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return notokenLease{l}, err
}

func (s notoken) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	line, err := s.Store.Next(ctx, name, after)
	if line.Holder != nil {
		h := *line.Holder
		h.Token, line.Holder = 0, &h
	}
	return line, err
}

type notokenLease struct{ driver.Lease }

func (l notokenLease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	places, err := l.Lease.Claim(ctx, claims...)
	for i := range places {
		places[i].Token = 0
	}
	return places, err
}

func (l notokenLease) News(ctx context.Context) ([]driver.News, error) {
	news, err := l.Lease.News(ctx)
	for i := range news {
		news[i].Place.Token = 0
	}
	return news, err
}

// Where the store has no tokens a lock has none either: a number that goes back would be worse than
// none.
func TestALockHasNoTokenWhereTheStoreHasNone(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", notoken{b.store}, Options{})
		var last atomic.Uint64
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				term := must[*Term](t)(s.Mutex("x", nil).Lock(t.Context()))
				if n := uint64(term.Token()); n != 0 {
					t.Errorf("token %d", n)
				}
				last.Store(uint64(term.Token()))
				time.Sleep(90 * time.Millisecond)
				_ = term.Resign(t.Context())
			})
		}
		wg.Wait()
	})
}

// A lock that was lost keeps nothing of its name, whether or not it is given back: there may be
// many names.
func TestALockThatWasLostKeepsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		term := must[*Term](t)(s.Mutex("x", nil).Lock(t.Context()))
		b.store.Expire("x")
		<-term.Context().Done()
		time.Sleep(time.Minute)
		s.mu.Lock()
		if n := len(s.queues); n > 0 {
			t.Errorf("%d queues are left", n)
		}
		s.mu.Unlock()
	})
}

// That the context has ended does not mean that the store does not answer.
func TestAnEndedContextIsNoUnreachableStore(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		_ = s.Ready(t.Context())
		bad := map[string]int{}
		for range 200 {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			for what, f := range map[string]func(context.Context) (*Term, error){
				"Lock": s.Mutex("x", nil).Lock, "Acquire": s.Semaphore("s", 1).Acquire,
				"Campaign": func(ctx context.Context) (*Term, error) { return s.Election("e").Campaign(ctx, nil) }} {
				term, err := f(ctx)
				if err == nil {
					_ = term.Resign(t.Context())
				} else if errors.Is(err, ErrUnreachable) {
					bad[what]++
				}
			}
		}
		for range 500 {
			ctx, cancel := context.WithCancel(t.Context())
			go cancel()
			term, err := s.Mutex("x", nil).Lock(ctx)
			if err == nil {
				_ = term.Resign(t.Context())
			} else if errors.Is(err, ErrUnreachable) {
				bad["Lock, cancelled meanwhile"]++
			}
		}
		for what, n := range bad {
			t.Errorf("%s: ErrUnreachable %d times though the store answers", what, n)
		}
	})
}

// One call of Claim may bring several claims on one name.
func TestABatchOnOneName(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		l := must[driver.Lease](t)(b.store.Grant(t.Context(), "a", 10*time.Second))
		defer l.Close(t.Context())
		if _, err := l.Claim(t.Context(), driver.Claim{Name: "x", Seat: "a", ID: "1", Slots: 2},
			driver.Claim{Name: "x", Seat: "b", ID: "2", Slots: 3}); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("two numbers of slots in one call: %v", err)
		}
		if _, err := l.Claim(t.Context(), driver.Claim{Name: "y", Seat: "a", ID: "3", Slots: 1, Try: true},
			driver.Claim{Name: "y", Seat: "b", ID: "4", Slots: 1, Try: true}); !errors.Is(err, driver.ErrTaken) {
			t.Errorf("a try of two for one slot: %v", err)
		}
	})
}

// The next holder of a lock in this process gets the claim, and not what the one before has
// proclaimed under it.
func TestAProclaimedValueEndsWithItsHolder(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		shows := func(want string) {
			t.Helper()
			synctest.Wait()
			if e := must[Entry](t)(s.Election("n").Leader(t.Context())); string(e.Value) != want {
				t.Errorf("the lock shows %q, want %q", e.Value, want)
			}
		}
		for _, lock := range []func(ctx context.Context) (*Term, error){s.Mutex("n", nil).Lock, s.RWMutex("n").RLock} {
			first := must[*Term](t)(lock(t.Context()))
			if err := first.Proclaim(t.Context(), []byte("job 1")); err != nil {
				t.Fatal(err)
			}
			shows("job 1")
			got := later(t, lock)
			shows("job 1")
			if err := first.Resign(t.Context()); err != nil {
				t.Fatal(err)
			}
			second := <-got
			shows("")
			if err := first.Proclaim(t.Context(), []byte("too late")); !errors.Is(err, ErrResigned) {
				t.Errorf("a holder of the past proclaims: %v", err)
			}
			if err := second.Proclaim(t.Context(), []byte("job 2")); err != nil {
				t.Fatal(err)
			}
			shows("job 2")
			if second.ClaimToken() != first.ClaimToken() {
				t.Error("the second holder has a claim of its own: the test shows nothing")
			}
			if err := second.Resign(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Proclaim asks Check first. The lock may be another's before it announces.
func TestALateProclaimIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		m := b.session("a", b.store, Options{}).Mutex("n", nil)
		first := must[*Term](t)(m.Lock(t.Context()))
		got := later(t, m.Lock)
		if err := first.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		second := <-got
		_, _, err := announcer{first.c}.proclaim(first, []byte("late"))
		if !errors.Is(err, ErrResigned) || second.Check() != nil {
			t.Errorf("a value is announced for who holds the lock no more: %v; the next one: %v", err, second.Check())
		}
	})
}
