package primacy

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// keeper returns the lock x of s, kept.
func keeper(s *Session) *Mutex { return s.MutexWith("x", MutexOptions{Keep: true}) }

// idle has the lock once, and returns the term that is over.
func idle(t *testing.T, m *Mutex) *Term {
	t.Helper()
	term := must[*Term](t)(m.Lock(t.Context()))
	if err := term.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	return term
}

// holds wants a line that one claim holds, or nobody.
func (b *world) holds(name string, want uint64) {
	b.t.Helper()
	synctest.Wait()
	ln := must[driver.Line](b.t)(b.store.Line(context.Background(), name))
	if ln.Holder == nil && want != 0 || ln.Holder != nil && ln.Holder.Token != want {
		b.t.Errorf("%s is held by %+v, want the claim %d", name, ln.Holder, want)
	}
}

// counting is a store whose calls for claims are counted.
type counting struct {
	driver.Store
	claims, releases, exchanges atomic.Int64
	exchange                    func(ctx context.Context, l driver.Lease, p driver.Place, c driver.Claim) (driver.Place, error) // in place of the store's; nil: the store's
}

type countingLease struct {
	driver.Lease
	s *counting
}

func (s *counting) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return &countingLease{l, s}, err
}

func (l *countingLease) Claim(ctx context.Context, c ...driver.Claim) ([]driver.Place, error) {
	l.s.claims.Add(1)
	return l.Lease.Claim(ctx, c...)
}

func (l *countingLease) Release(ctx context.Context, p ...driver.Place) error {
	l.s.releases.Add(1)
	return l.Lease.Release(ctx, p...)
}

func (l *countingLease) Exchange(ctx context.Context, p driver.Place, c driver.Claim) (driver.Place, error) {
	l.s.exchanges.Add(1)
	if f := l.s.exchange; f != nil {
		return f(ctx, l.Lease, p, c)
	}
	return l.Lease.(driver.Exchanger).Exchange(ctx, p, c)
}

func TestAKeptLockIsHadAgainWithoutTheStore(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		st := &counting{Store: b.store}
		m := keeper(b.session("a", st, Options{}))
		last := idle(t, m)
		for i := range 300 {
			time.Sleep(time.Second)
			var term *Term
			if i%3 == 0 {
				term = must[*Term](t)(m.TryLock(t.Context()))
			} else {
				term = must[*Term](t)(m.Lock(t.Context()))
			}
			if term.Check() != nil || term.Context().Err() != nil || last.Check() == nil || last.Context().Err() == nil {
				t.Fatalf("the new term: %v, %v; the one before: %v, %v", term.Check(), term.Context().Err(), last.Check(), last.Context().Err())
			}
			if term.Token() != last.Token()+1 || term.ClaimToken() != last.ClaimToken() {
				t.Fatalf("token %v after %v", term.Token(), last.Token())
			}
			if err := term.Resign(t.Context()); err != nil || !errors.Is(term.Check(), ErrResigned) {
				t.Fatal(err, term.Check())
			}
			last = term
		}
		if n, r := st.claims.Load(), st.releases.Load(); n != 1 || r != 0 {
			t.Errorf("%d claims and %d releases, want 1 and 0", n, r)
		}
		b.holds("x", uint64(last.ClaimToken()))
	})
}

// The claim is given up as soon as anybody else waits for it: at once if it is idle, otherwise after the hold.
func TestAKeptLockIsGivenUpWhenItIsWanted(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		m := keeper(s)
		for what, wants := range map[string]func(context.Context) (*Term, error){
			"another's Lock": other.Mutex("x").Lock, "another's kept Lock": keeper(other).Lock, "another's RLock": other.RWMutex("x").RLock,
			"another's semaphore": other.Semaphore("x", 2).Acquire,
			"another's election":  func(ctx context.Context) (*Term, error) { return other.Election("x").Campaign(ctx, nil) },
			"its own election":    func(ctx context.Context) (*Term, error) { return s.Election("x").Campaign(ctx, nil) },
			"its own semaphore":   s.Semaphore("x", 2).Acquire,
			"its own elections": func(ctx context.Context) (*Term, error) {
				es := s.Elections(nil)
				if err := es.Stand("x"); err != nil {
					return nil, err
				}
				for term := range es.Terms(ctx) {
					es.Withdraw("x") // and no more
					return term, nil
				}
				return nil, ctx.Err()
			},
			"its own RLock": s.RWMutex("x").RLock,
		} {
			idle(t, m)
			got := later(t, wants)
			n := soon(got, time.Second)
			if n == nil || n.Check() != nil {
				t.Fatalf("%s waits for a lock that nobody holds", what)
			}
			_ = n.Resign(t.Context())
			if strings.HasPrefix(what, "another's kept") {
				_ = must[*Term](t)(s.Mutex("x").Lock(t.Context())).Resign(t.Context())
			}
			b.holds("x", 0)

			held := must[*Term](t)(m.Lock(t.Context()))
			got = later(t, wants)
			if n := soon(got, time.Second); n != nil || held.Check() != nil || held.Context().Err() != nil {
				t.Fatalf("%s beside who holds it: %v", what, n)
			}
			_ = held.Resign(t.Context())
			if n = soon(got, time.Second); n == nil || n.ClaimToken() <= held.ClaimToken() {
				t.Fatalf("%s does not get it after the hold", what)
			}
			_ = n.Resign(t.Context())
			if strings.HasPrefix(what, "another's kept") {
				_ = must[*Term](t)(s.Mutex("x").Lock(t.Context())).Resign(t.Context())
			}
		}
		nothingLeft(t, s)
		nothingLeft(t, other)
	})
}

// What this process wants by other means is known also where it was wanted before the lock was had.
func TestAKeptLockIsGivenUpForWhoWaitedBefore(t *testing.T) {
	for _, wants := range []func(s *Session) func(context.Context) (*Term, error){
		func(s *Session) func(context.Context) (*Term, error) {
			return func(ctx context.Context) (*Term, error) { return s.Election("x").Campaign(ctx, nil) }
		},
		func(s *Session) func(context.Context) (*Term, error) { return s.Semaphore("x", 2).Acquire },
	} {
		bubble(t, func(t *testing.T, b *world) {
			s, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
			first := must[*Term](t)(other.Mutex("x").Lock(t.Context()))
			lock := later(t, keeper(s).Lock)
			got := later(t, wants(s))
			_ = first.Resign(t.Context())
			term := soon(lock, time.Second)
			if term == nil {
				term = soon(got, time.Second)
				got = lock
			}
			_ = term.Resign(t.Context())
			if n := soon(got, time.Second); n == nil {
				t.Fatal("the other waits for what nobody holds")
			} else {
				_ = n.Resign(t.Context())
			}
		})
	}
}

// Once another waits, those of the process have their turns, and no more.
func TestAKeptLockIsBoundedOnceItIsWanted(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		m := s.MutexWith("x", MutexOptions{Keep: true, Turns: 5})
		ctx, stop := context.WithCancel(t.Context())
		var turns atomic.Int64
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for ctx.Err() == nil {
					term, err := m.Lock(ctx)
					if err != nil {
						return
					}
					time.Sleep(time.Millisecond)
					turns.Add(1)
					_ = term.Resign(t.Context())
				}
			})
		}
		time.Sleep(time.Second)
		if n := turns.Load(); n < 500 || n > core.MaxTurns {
			t.Errorf("%d turns in a second while nobody else waits", n)
		}
		before := turns.Load()
		n := soon(later(t, other.Mutex("x").Lock), time.Second)
		if more := turns.Load() - before; n == nil || more > 7 {
			t.Fatalf("another waited for %d turns, want 5", more)
		}
		_ = n.Resign(t.Context())
		stop()
		wg.Wait()
	})
}

// However a kept claim comes to its end, nothing is left of it, and the next Lock is a new one.
func TestTheEndsOfAKeptLock(t *testing.T) {
	for what, end := range map[string]func(t *testing.T, b *world, s, other *Session, term *Term){
		"asked to give it up": func(t *testing.T, b *world, _, other *Session, _ *Term) {
			must[Token](t)(other.Election("x").Ask(t.Context(), "please"))
		},
		"removed": func(_ *testing.T, b *world, _, _ *Session, term *Term) {
			b.store.Remove("x", uint64(term.ClaimToken()))
		},
		"lease ended": func(_ *testing.T, b *world, _, _ *Session, term *Term) { b.store.Expire("x") },
		"cut off": func(_ *testing.T, b *world, _, _ *Session, _ *Term) {
			b.store.Partition("a", true)
			time.Sleep(11 * time.Second)
			b.store.Partition("a", false)
		},
	} {
		bubble(t, func(t *testing.T, b *world) {
			s, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
			m := keeper(s)
			last := idle(t, m)
			b.holds("x", uint64(last.ClaimToken()))
			end(t, b, s, other, last)
			time.Sleep(time.Second)
			b.holds("x", 0)
			nothingLeft(t, s)
			next := must[*Term](t)(m.Lock(t.Context()))
			if next.ClaimToken() <= last.ClaimToken() || next.Check() != nil {
				t.Errorf("%s: token %v after %v, %v", what, next.Token(), last.Token(), next.Check())
			}
			_ = next.Resign(t.Context())
		})
	}
}

func TestClosingTheSessionEndsWhatIsKept(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		m := keeper(s)
		idle(t, m)
		at := b.clock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.Close(ctx); err != nil || b.clock()-at > time.Second {
			t.Errorf("Close: %v after %v: it waits for work that does not run", err, b.clock()-at)
		}
		b.holds("x", 0)
		if _, err := m.Lock(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		nothingLeft(t, s)
	})
}

// After a pause beyond the deadline a kept lock is had once more at most, and Check of that term says no.
func TestAKeptLockAfterAPause(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var skew atomic.Int64
		real := b.clock
		b.clock = func() time.Duration { return real() + time.Duration(skew.Load()) }
		m := keeper(b.session("a", b.store, Options{}))
		last := idle(t, m)
		synctest.Wait()
		skew.Store(int64(9 * time.Second))
		old := must[*Term](t)(m.Lock(t.Context()))
		if old.Check() == nil {
			t.Fatal("Check says yes beyond the deadline")
		}
		if err := old.Resign(t.Context()); err != nil {
			t.Error(err)
		}
		n := soon(later(t, m.Lock), 30*time.Second)
		if n == nil || n.Check() != nil || n.ClaimToken() <= last.ClaimToken() || old.Check() == nil {
			t.Fatalf("the next one: %+v", n)
		}
		_ = n.Resign(t.Context())
	})
}

// unable is a store that tells nobody who waits.
type unable struct{ driver.Store }

func (s unable) Caps() driver.Caps {
	c := s.Store.Caps()
	c.FIFO = false
	return c
}

func (s unable) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return struct{ driver.Lease }{l}, err
}

func TestLockOptionsThatCannotBe(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, poor := b.session("a", b.store, Options{}), b.session("b", unable{b.store}, Options{})
		for _, turns := range []int{-1, core.MaxTurns + 1} {
			for _, keep := range []bool{false, true} {
				if _, err := s.MutexWith("x", MutexOptions{Turns: turns, Keep: keep}).Lock(t.Context()); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "65535") {
					t.Errorf("%d turns: %v", turns, err)
				}
			}
		}
		for _, lock := range []func(context.Context) (*Term, error){keeper(poor).Lock, keeper(poor).TryLock} {
			term, err := lock(t.Context())
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "cannot tell when another waits") {
				t.Errorf("a store that cannot follow: %v", err)
			}
			if err == nil {
				_ = term.Resign(t.Context())
			}
		}
		if _, err := s.MutexWith("", MutexOptions{Keep: true}).Lock(t.Context()); !errors.Is(err, ErrInvalid) {
			t.Errorf("no name: %v", err)
		}
		term := must[*Term](t)(poor.MutexWith("x", MutexOptions{Turns: core.MaxTurns}).Lock(t.Context()))
		_ = term.Resign(t.Context())
		nothingLeft(t, poor)
	})
}

// A try of another is no waiting: it changes nothing. One who holds it by Keep and asks again with his own context is refused.
func TestAKeptLockAndThoseWhoDoNotWait(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		m := keeper(s)
		last := idle(t, m)
		if _, err := other.Mutex("x").TryLock(t.Context()); !errors.Is(err, ErrHeld) {
			t.Errorf("another's try: %v", err)
		}
		if _, err := s.RWMutex("x").TryRLock(t.Context()); !errors.Is(err, ErrHeld) {
			t.Errorf("a try to read: %v", err)
		}
		b.holds("x", uint64(last.ClaimToken()))
		err := m.Do(t.Context(), func(ctx context.Context, term *Term) error {
			if term.ClaimToken() != last.ClaimToken() {
				t.Errorf("a new claim %v", term.ClaimToken())
			}
			if _, err := m.Lock(ctx); !errors.Is(err, ErrReentrant) {
				t.Errorf("re-entry: %v", err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := m.Lock(over); !errors.Is(err, context.Canceled) {
			t.Errorf("a context that is over: %v", err)
		}
		_ = must[*Term](t)(s.Mutex("x").Lock(t.Context())).Resign(t.Context()) // who did not ask for Keep keeps nothing
		b.holds("x", 0)
	})
}

// When the tokens behind a claim are used up there is a new one.
func TestAKeptLockOutlivesItsTokens(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		m := keeper(b.session("a", b.store, Options{}))
		last := idle(t, m)
		first := last
		for range core.MaxTurns + 10 {
			term := must[*Term](t)(m.Lock(t.Context()))
			if term.Token() <= last.Token() || last.Check() == nil {
				t.Fatalf("token %v after %v", term.Token(), last.Token())
			}
			_ = term.Resign(t.Context())
			last = term
		}
		if last.ClaimToken() <= first.ClaimToken() {
			t.Error("one claim for all")
		}
	})
}
