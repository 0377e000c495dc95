package primacy

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/internal/core"
)

// After a pause of the process nobody gets what is kept and over, but who asked for Keep and looks himself. Do looks.
func TestALockAfterAPauseWhereItIsKept(t *testing.T) {
	for _, what := range []string{"Lock", "TryLock", "Do", "Do with Keep"} {
		bubble(t, func(t *testing.T, b *world) {
			var skew atomic.Int64
			real := b.clock
			b.clock = func() time.Duration { return real() + time.Duration(skew.Load()) }
			s := b.session("a", b.store, Options{})
			kept := keeper(s)
			idle(t, kept)
			synctest.Wait()
			skew.Store(int64(9 * time.Second)) // over, and no timer has said so
			if err := hadAfterAPause(t, s, kept, what); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
}

func hadAfterAPause(t *testing.T, s *Session, kept *Mutex, what string) error {
	m := s.Mutex("x")
	switch what {
	case "Lock", "TryLock":
		f := m.Lock
		if what == "TryLock" {
			f = m.TryLock
		}
		term, err := f(t.Context())
		if errors.Is(err, ErrHeld) {
			return nil // the store keeps the old claim still
		}
		if err != nil {
			return err
		}
		defer term.Resign(t.Context())
		return term.Check()
	case "Do with Keep":
		m = kept
	}
	ran := errors.New("ran")
	if err := m.Do(t.Context(), func(_ context.Context, term *Term) error { return errors.Join(ran, term.Check()) }); err.Error() != "ran" {
		return err
	}
	return nil
}

// Work that gives its lock back itself and runs on is watched from then on, also where the claim stands on.
func TestWorkThatRunsOnBesideAKeptClaimIsWatched(t *testing.T) {
	for _, keep := range []bool{false, true} {
		bubble(t, func(t *testing.T, b *world) {
			s := b.session("a", b.store, Options{})
			var exited atomic.Bool
			s.exit = func(int) { exited.Store(true) }
			m := s.MutexWith("x", MutexOptions{Keep: keep})
			stop, done := make(chan struct{}), make(chan error, 1)
			go func() {
				done <- m.Do(context.Background(), func(ctx context.Context, term *Term) error {
					_ = term.Resign(ctx)
					<-stop
					return nil
				})
			}()
			time.Sleep(2 * s.o.timing(s.o.TTL).Grace)
			if !exited.Load() || s.Stats().Overruns != 1 {
				t.Errorf("keep %v: the process was ended: %v, %d overruns", keep, exited.Load(), s.Stats().Overruns)
			}
			close(stop)
			if err := <-done; !errors.Is(err, ErrResigned) {
				t.Error(err)
			}
			next := must[*Term](t)(m.Lock(t.Context())) // who works in time is not counted for the other
			time.Sleep(time.Minute)
			_ = next.Resign(t.Context())
			if n := s.Stats().Overruns; n != 1 {
				t.Errorf("%d overruns", n)
			}
		})
	}
}

func TestBadTurnsAreRefusedAlsoWhereTheLockIsKept(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		idle(t, keeper(s))
		for _, turns := range []int{-1, core.MaxTurns + 1} {
			if _, err := s.MutexWith("x", MutexOptions{Turns: turns, Keep: true}).Lock(t.Context()); !errors.Is(err, ErrInvalid) {
				t.Errorf("%d turns: %v", turns, err)
			}
		}
	})
}

// A kept lock that is had again in the moment in which its claim is asked for, before the queue hears of it, is given up all the same.
func TestAKeptLockHadAgainWhileItsClaimEnds(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		m := keeper(s)
		for range 50 {
			idle(t, m)
			s.mu.Lock()
			q := s.queues["x"]
			s.mu.Unlock()
			var c *claim
			q.mu.Lock()
			for _, c = range q.claims {
			}
			q.mu.Unlock()
			c.tell("", core.ClaimEvent{Kind: core.Ask, Cause: core.Resigned}, nil) // the queue hears of it on another goroutine
			if term := q.retake(t.Context()); term != nil {
				t.Fatal("a claim that is ending was had again")
			}
			n := soon(later(t, other.Mutex("x").Lock), time.Minute)
			if n == nil {
				t.Fatal("the claim stays for ever")
			}
			_ = n.Resign(t.Context())
		}
		nothingLeft(t, s)
	})
}

// Who waits for a seat gives up in the moment in which it becomes his: it goes on.
func TestASeatThatComesTooLateIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		for range 50 {
			leave := must[func()](t)(s.enterLocal(t.Context(), seat{name: "x"}, false))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				if next, err := s.enterLocal(ctx, seat{name: "x"}, false); err == nil {
					next()
				}
			}()
			synctest.Wait()
			cancel()
			leave()
			<-done
			nothingLeft(t, s)
		}
	})
}
