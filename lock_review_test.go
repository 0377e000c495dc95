package primacy

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// What each rule of the locks is held by, one test for each. None waits for ever when its rule is broken: a mutation has to fail, not
// to hang.

// slow is a store whose answers to Claim, and its news that a place is held, come late, while something else happens.
type slow struct {
	driver.Store
	claim, news func() // called between the store's answer and its arrival; nil: at once
}

type slowLease struct {
	driver.Lease
	s *slow
}

func (s *slow) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	if err != nil {
		return nil, err
	}
	return &slowLease{l, s}, nil
}

func (l *slowLease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	places, err := l.Lease.Claim(ctx, claims...)
	if f := l.s.claim; f != nil {
		f()
	}
	return places, err
}

func (l *slowLease) News(ctx context.Context) ([]driver.News, error) {
	news, err := l.Lease.News(ctx)
	if f := l.s.news; f != nil && err == nil && news[0].Held {
		f()
	}
	return news, err
}

// later locks on a goroutine of its own, for at most a minute.
func later(t *testing.T, lock func(ctx context.Context) (*Term, error)) <-chan *Term {
	got := make(chan *Term, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		term, err := lock(ctx)
		if err != nil {
			t.Errorf("not had: %v", err)
		}
		got <- term
	}()
	synctest.Wait()
	return got
}

// soon is what has come after d, nil if nothing has.
func soon(got <-chan *Term, d time.Duration) *Term {
	select {
	case term := <-got:
		return term
	case <-time.After(d):
		return nil
	}
}

// nothingLeft wants a session that keeps nothing of the locks it had.
func nothingLeft(t *testing.T, s *Session) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queues)+len(s.seats)+len(s.locals) > 0 {
		t.Errorf("%s keeps %d queues, %d semaphores and %d turns", s.ID(), len(s.queues), len(s.seats), len(s.locals))
	}
}

// Stop, then release: before anybody else of the process can get the lock the right of the one before is over.
func TestTheRightEndsBeforeTheLockIsHandedOn(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		first := must[*Term](t)(s.Mutex("x", nil).Lock(t.Context()))
		next := later(t, s.Mutex("x", nil).Lock)
		q := first.share.q
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

// A claim that was asked for before its owner knew that it holds is ending when it is won: nobody gets the lock under it, or its context
// would never end.
func TestAnEndingClaimIsHandedToNobody(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		a, other := b.session("a", &slow{Store: b.store, news: func() { time.Sleep(time.Second) }}, Options{}), b.session("b", b.store, Options{})
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
			if !errors.Is(context.Cause(r.Context()), ErrExpired) || !errors.Is(r.Check(), ErrExpired) || r.Remaining() != 0 {
				t.Errorf("cut off for a ttl: cause %v, Check %v", context.Cause(r.Context()), r.Check())
			}
		}
		b.store.Partition("a", false)
	})
}

// A reader that comes when the claim of its process is used up waits for no reader, and a writer gets in between.
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
			for what, try := range map[string]func(context.Context) (*Term, error){"TryLock": s.Mutex("x", nil).TryLock, "TryRLock": s.RWMutex("x").TryRLock,
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
		_ = resignAll(t.Context(), held)
	})
}

// Work of all kinds of locks is told when its caller's context ends, and seen when it outlives its right.
func TestWorkUnderALockIsStoppedAndWatched(t *testing.T) {
	type do = func(context.Context, func(context.Context, *Term) error) error
	for what, of := range map[string]func(*Session) do{
		"Mutex": func(s *Session) do { return s.Mutex("x", nil).Do }, "RWMutex": func(s *Session) do { return s.RWMutex("x").RDo },
		"Semaphore": func(s *Session) do { return s.Semaphore("x", 2).Do },
		"DoAll": func(s *Session) do {
			return func(ctx context.Context, work func(context.Context, *Term) error) error {
				return s.DoAll(ctx, []string{"y", "x", "z"}, func(ctx context.Context, held []*Term) error { return work(ctx, held[1]) })
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
