package primacy

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// lockRounds locks x in s from several goroutines, rounds times each, and tells of each term.
func lockRounds(t *testing.T, s *Session, m *Mutex, rounds int, tell func(*Term)) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range rounds {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				term, err := m.Lock(ctx)
				if err == nil {
					tell(term)
					time.Sleep(time.Millisecond)
					err = term.Resign(ctx)
				}
				cancel()
				if err != nil {
					t.Errorf("%s: %v", s.ID(), err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Where those of a process who wait go on behind a new claim, it is entered in the request that
// gives up the old one, and the right of each term under the old one is over by then.
func TestAUsedUpClaimIsExchanged(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var mu sync.Mutex
		terms := map[Token][]*Term{}
		st := &counting{Store: b.store}
		st.exchange = func(ctx context.Context, l driver.Lease, p driver.Place, c driver.Claim) (driver.Place, error) {
			mu.Lock()
			defer mu.Unlock()
			for _, term := range terms[Token(p.Token)] {
				if term.Check() == nil || term.Context().Err() == nil {
					t.Errorf("token %v holds while its claim is given up", term.Token())
				}
			}
			if len(terms[Token(p.Token)]) == 0 {
				t.Errorf("exchanged %+v, under which nobody held", p)
			}
			return l.(driver.Exchanger).Exchange(ctx, p, c)
		}
		s := b.session("a", st, Options{})
		g := &guarded{t: t}
		lockRounds(t, s, s.Mutex("x", &MutexOptions{Turns: 5}), 50, func(term *Term) {
			mu.Lock()
			terms[term.ClaimToken()] = append(terms[term.ClaimToken()], term)
			mu.Unlock()
			g.visit(term, 1000, 1000, time.Millisecond)
		})
		if n := len(terms); n != 40 || st.claims.Load() != 1 || st.exchanges.Load() != 39 || st.releases.Load() != 1 {
			t.Errorf("%d claims for 200 turns: %d entered, %d exchanged, %d released; want 40: 1, 39, 1", n,
				st.claims.Load(), st.exchanges.Load(), st.releases.Load())
		}
		b.holds("x", 0)
		nothingLeft(t, s)
	})
}

// A process that exchanges claims for as long as it lives keeps none of those that are over.
func TestAnExchangedClaimIsForgotten(t *testing.T) {
	s := outside(t)
	var mu sync.Mutex
	claims := map[Token]bool{}
	var last *Term // stands for the claim under which it goes on
	var forgotten atomic.Int64
	lockRounds(t, s, s.Mutex("x", &MutexOptions{Turns: 2}), 20, func(term *Term) {
		mu.Lock()
		defer mu.Unlock()
		if last = term; !claims[term.ClaimToken()] {
			claims[term.ClaimToken()] = true
			runtime.AddCleanup(term.c.term, func(n *atomic.Int64) { n.Add(1) }, &forgotten)
		}
	})
	for range 1000 {
		if runtime.GC(); forgotten.Load() > int64(len(claims)/2) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("of %d claims %d are forgotten under token %d", len(claims), forgotten.Load(), last.Token())
}

// Whatever becomes of the request, both of its halves are brought to their end: nobody is forgotten
// and nothing is left in the line.
func TestAnExchangeThatFails(t *testing.T) {
	unknown := errors.New("no answer")
	for what, exchange := range map[string]func(context.Context, driver.Lease,
		driver.Place, driver.Claim) (driver.Place, error){
		"it never arrived": func(context.Context, driver.Lease, driver.Place, driver.Claim) (driver.Place, error) {
			return driver.Place{}, unknown
		},
		"its answer was lost": func(ctx context.Context, l driver.Lease, p driver.Place,
			c driver.Claim) (driver.Place, error) {
			_, _ = l.(driver.Exchanger).Exchange(ctx, p, c)
			return driver.Place{}, unknown
		},
		"it arrives late": func(_ context.Context, l driver.Lease, p driver.Place,
			c driver.Claim) (driver.Place, error) {
			go func() {
				time.Sleep(700 * time.Millisecond)
				_, _ = l.(driver.Exchanger).Exchange(context.Background(), p, c)
			}()
			return driver.Place{}, unknown
		},
		"no answer": func(ctx context.Context, _ driver.Lease, _ driver.Place, _ driver.Claim) (driver.Place, error) {
			<-ctx.Done()
			return driver.Place{}, ctx.Err()
		},
		"refused": func(context.Context, driver.Lease, driver.Place, driver.Claim) (driver.Place, error) {
			return driver.Place{}, fmt.Errorf("not this time: %w", driver.ErrRefused)
		},
		"another place": func(ctx context.Context, l driver.Lease, p driver.Place,
			c driver.Claim) (driver.Place, error) {
			_, err := l.(driver.Exchanger).Exchange(ctx, p, c)
			return p, err
		},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *world) {
				st := &counting{Store: b.store, exchange: exchange}
				s, other := b.session("a", st, Options{}), b.session("b", b.store, Options{})
				g := &guarded{t: t}
				var wg sync.WaitGroup
				for _, s := range []*Session{s, other} {
					wg.Go(func() {
						lockRounds(t, s, s.Mutex("x", &MutexOptions{Turns: 3}), 15, func(term *Term) {
							g.visit(term, 1000, 1000, time.Millisecond)
						})
					})
				}
				wg.Wait()
				if st.exchanges.Load() == 0 {
					t.Error("nothing was exchanged")
				}
				time.Sleep(time.Minute)
				b.holds("x", 0)
				nothingLeft(t, s)
			})
		})
	}
}

// Those who wait give up while the request is under way: neither claim is left.
func TestAnExchangeForNobody(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		ctx, cancel := context.WithCancel(t.Context())
		st := &counting{Store: b.store}
		st.exchange = func(ctx context.Context, l driver.Lease, p driver.Place, c driver.Claim) (driver.Place, error) {
			cancel()
			synctest.Wait()
			return l.(driver.Exchanger).Exchange(context.WithoutCancel(ctx), p, c)
		}
		s := b.session("a", st, Options{})
		m := s.Mutex("x", &MutexOptions{Turns: 1})
		first := must[*Term](t)(m.Lock(t.Context()))
		var errs []chan error
		for range 3 {
			errs = append(errs, laterErr(m.Lock, ctx))
		}
		synctest.Wait()
		_ = first.Resign(t.Context())
		for _, err := range errs {
			if e := <-err; !errors.Is(e, context.Canceled) {
				t.Errorf("got %v, want the context's error", e)
			}
		}
		time.Sleep(10 * time.Second)
		if st.exchanges.Load() == 0 {
			t.Error("nothing was exchanged")
		}
		b.holds("x", 0)
		nothingLeft(t, s)
	})
}

// A session that closes, or a lease that ends, in the middle of it leaves nothing behind either.
func TestTheLeaseEndsDuringAnExchange(t *testing.T) {
	for _, end := range []func(t *testing.T, b *world, s *Session){
		func(t *testing.T, _ *world, s *Session) { _ = s.Close(t.Context()) },
		func(_ *testing.T, b *world, _ *Session) { b.store.Expire("x") },
		func(_ *testing.T, b *world, _ *Session) {
			b.store.Partition("a", true)
			time.Sleep(12 * time.Second)
			b.store.Partition("a", false)
		},
	} {
		bubble(t, func(t *testing.T, b *world) {
			begun := make(chan struct{})
			var once sync.Once
			st := &counting{Store: b.store}
			st.exchange = func(ctx context.Context, l driver.Lease, p driver.Place,
				c driver.Claim) (driver.Place, error) {
				once.Do(func() { close(begun) })
				time.Sleep(500 * time.Millisecond)
				return l.(driver.Exchanger).Exchange(ctx, p, c)
			}
			s := b.session("a", st, Options{Overrun: OverrunWait})
			m := s.Mutex("x", &MutexOptions{Turns: 1})
			first := must[*Term](t)(m.Lock(t.Context()))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			next := make(chan error, 1)
			go func() {
				term, err := m.Lock(ctx)
				if err == nil {
					time.Sleep(time.Second)
					err = errors.Join(term.Check(), term.Resign(ctx))
				}
				next <- err
			}()
			synctest.Wait()
			go func() { _ = first.Resign(t.Context()) }()
			<-begun
			end(t, b, s)
			if err := <-next; err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrDeposed) {
				t.Errorf("who waited: %v", err)
			}
			time.Sleep(time.Minute)
			b.holds("x", 0)
			nothingLeft(t, s)
		})
	}
}

// unable is a store that can do nothing but what each store can.
type unable struct{ driver.Store }

func (s unable) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return struct{ driver.Lease }{l}, err
}

// A store that cannot exchange does the two one after the other.
func TestALockOnAStoreThatCannotExchange(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", unable{b.store}, Options{})
		g := &guarded{t: t}
		lockRounds(t, s, s.Mutex("x", &MutexOptions{Turns: 3}), 20, func(term *Term) {
			g.visit(term, 1000, 1000, time.Millisecond)
		})
		b.holds("x", 0)
		nothingLeft(t, s)
	})
}

// A claim that was asked for is given up by itself: who asked for it wants no other in its place.
func TestALockThatWasAskedForIsNotExchanged(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		st := &counting{Store: b.store}
		s, other := b.session("a", st, Options{}), b.session("b", b.store, Options{})
		first := must[*Term](t)(s.Mutex("x", nil).Lock(t.Context()))
		next := later(t, s.Mutex("x", nil).Lock)
		must[Token](t)(other.Election("x").Ask(t.Context(), Request{Reason: "please"}))
		<-first.Context().Done()
		_ = first.Resign(t.Context())
		n := soon(next, 5*time.Second)
		if n == nil || n.ClaimToken() <= first.ClaimToken() || st.exchanges.Load() != 0 {
			t.Fatalf("got %+v, %d exchanged", n, st.exchanges.Load())
		}
		_ = n.Resign(t.Context())
	})
}

// late is a context that has ended, which is seen from the second look on.
type late struct {
	context.Context
	looks atomic.Int64
}

func (c *late) Err() error {
	if c.looks.Add(1) == 1 {
		return nil
	}
	return c.Context.Err()
}

// Where nobody wants the next claim any more before the request is sent, the old one is released
// all the same.
func TestAnExchangeThatIsNotSent(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		st := &counting{Store: b.store}
		s := b.session("a", st, Options{})
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for _, ctx := range []context.Context{over, &late{Context: over}} {
			x := b.lead(s, "x").c.giveUpOrExchange(true)
			if x == nil {
				t.Fatal("not to be exchanged")
			}
			spec := claimSpec{lock: true, turnBits: turnBits}
			if _, err := s.campaignSeated(ctx, x.at, spec, x.vacate, x); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			time.Sleep(time.Second)
			b.holds("x", 0)
			nothingLeft(t, s)
		}
		if st.exchanges.Load() > 0 {
			t.Error("it was sent")
		}
	})
}

// A lock is given back after the lease's soft end, of which nothing was heard yet, while another of
// this process wants it. The next claim has another lease, and the old one is released at once: who
// waits in another process need not wait for the end of the old lease.
func TestAnExchangeAfterTheSoftEnd(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var jump atomic.Int64
		clock := b.clock
		b.clock = func() time.Duration { return clock() + time.Duration(jump.Load()) }
		s := b.session("a", b.store, Options{})
		b.clock = clock
		other := b.session("b", b.store, Options{})
		held := must[*Term](t)(s.Mutex("x", nil).Lock(t.Context()))
		theirs := later(t, other.Mutex("x", nil).Lock)
		mine := later(t, s.Mutex("x", nil).Lock)
		jump.Store(int64(8500 * time.Millisecond)) // the soft end is at 8 s, the deadline at 9
		go held.Resign(t.Context())
		for _, got := range []<-chan *Term{theirs, mine} {
			term := soon(got, time.Second)
			if term == nil {
				t.Fatal("the lock was not had within a second")
			}
			_ = term.Resign(t.Context())
		}
	})
}

// counting is a store whose calls for claims are counted.
type counting struct {
	driver.Store
	claims, releases, exchanges atomic.Int64
	// in place of the store's; nil: the store's
	exchange func(ctx context.Context, l driver.Lease, p driver.Place, c driver.Claim) (driver.Place, error)
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

// Who waits for a seat gives up in the moment in which it becomes his: it goes on.
func TestASeatThatComesTooLateIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		for range 50 {
			_, leave, err := s.seats.take(t.Context(), seat{name: "x"}, 1, false, false)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				if _, next, err := s.seats.take(ctx, seat{name: "x"}, 1, false, false); err == nil {
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

// Work that gives its lock back itself and runs on is watched from then on.
func TestWorkThatGaveItsLockBackIsWatched(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		var exited atomic.Bool
		s.exit = func(int) { exited.Store(true) }
		m := s.Mutex("x", nil)
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
			t.Errorf("the process was ended: %v, %d overruns", exited.Load(), s.Stats().Overruns)
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

func TestLockOptionsThatCannotBe(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		for _, turns := range []int{-1, core.MaxTurns + 1} {
			_, err := s.Mutex("x", &MutexOptions{Turns: turns}).Lock(t.Context())
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "65535") {
				t.Errorf("%d turns: %v", turns, err)
			}
		}
		term := must[*Term](t)(s.Mutex("x", &MutexOptions{Turns: core.MaxTurns}).Lock(t.Context()))
		_ = term.Resign(t.Context())
		nothingLeft(t, s)
	})
}

// orders returns what the core does after the events, of the last event only.
func orders(events ...core.QueueEvent) (last []core.QueueOrder) {
	var q core.Queue
	for _, e := range events {
		last = q.Step(0, e)
	}
	return last
}

func count(all []core.QueueOrder, do core.QueueAction) (n int) {
	for _, o := range all {
		if o.Do == do {
			n++
		}
	}
	return n
}

func TestALockIsNotHandedOnUnderAClaimThatIsEnding(t *testing.T) {
	for name, after := range map[string]core.QueueEvent{"fade": {Kind: core.ClaimEnding, Claim: 9},
		"return": {Kind: core.PutBack, Waiter: 2, Claim: 9}} {
		last := orders(core.QueueEvent{Kind: core.Arrive, Waiter: 1, Read: true},
			core.QueueEvent{Kind: core.Arrive, Waiter: 2, Read: true},
			core.QueueEvent{Kind: core.Win, Claim: 9}, after,
			core.QueueEvent{Kind: core.Arrive, Waiter: 3, Read: true})
		if count(last, core.Grant) > 0 {
			t.Errorf("%s: %+v", name, last)
		}
	}
}

func TestARefusalIsToldToAllWhoWait(t *testing.T) {
	last := orders(core.QueueEvent{Kind: core.Arrive, Waiter: 1}, core.QueueEvent{Kind: core.Arrive, Waiter: 2},
		core.QueueEvent{Kind: core.Lose, Refused: true})
	if count(last, core.Deny) != 2 || len(last) != 2 {
		t.Errorf("got %+v, want both denied and no other campaign", last)
	}
}

func TestACampaignOfTheWrongKindIsCancelled(t *testing.T) {
	last := orders(core.QueueEvent{Kind: core.Arrive, Waiter: 1, Read: true},
		core.QueueEvent{Kind: core.Arrive, Waiter: 2}, core.QueueEvent{Kind: core.Quit, Waiter: 1})
	if count(last, core.Cancel) != 1 {
		t.Errorf("the reader has gone, its campaign goes on for the writer: %+v", last)
	}
	last = orders(core.QueueEvent{Kind: core.Arrive, Waiter: 1, Try: true},
		core.QueueEvent{Kind: core.Arrive, Waiter: 2}, core.QueueEvent{Kind: core.Quit, Waiter: 1})
	if count(last, core.Cancel) != 1 {
		t.Errorf("the try has gone, its campaign goes on for one who waits: %+v", last)
	}
}

func TestATryBehindWaitersIsSentAway(t *testing.T) {
	last := orders(core.QueueEvent{Kind: core.Arrive, Waiter: 1, Read: true},
		core.QueueEvent{Kind: core.Win, Claim: 9},
		core.QueueEvent{Kind: core.Arrive, Waiter: 2},
		core.QueueEvent{Kind: core.Arrive, Waiter: 3, Read: true, Try: true})
	if count(last, core.Deny) != 1 {
		t.Errorf("a reader that tries behind a writer: %+v, want it denied", last)
	}
}

// A seat of a semaphore is free when nothing of its claim stands any more, and not before.
func TestASeatIsGivenBackWithItsClaim(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		sem := s.Semaphore("x", 2)
		one, two := soon(later(t, sem.Acquire), time.Second), soon(later(t, sem.Acquire), time.Second)
		limit, stop := context.WithTimeout(t.Context(), 20*time.Second)
		defer stop()
		if one == nil || two == nil {
			t.Fatal("one process cannot have all slots")
		}
		if _, err := sem.TryAcquire(limit); !errors.Is(err, ErrHeld) {
			t.Errorf("all slots are taken: %v", err)
		}
		b.store.Partition("a", true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := one.Resign(ctx); !errors.Is(err, ErrUnreachable) {
			t.Errorf("cut off: %v", err)
		}
		if _, err := sem.TryAcquire(limit); !errors.Is(err, ErrHeld) {
			t.Errorf("the release is not confirmed: %v", err)
		}
		if _, err := sem.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the release is not confirmed: %v", err)
		}
		cancel()
		b.store.Partition("a", false)
		time.Sleep(2 * time.Second)
		three := soon(later(t, sem.Acquire), time.Second)
		if three == nil || three.Check() != nil || two.Check() != nil {
			t.Fatalf("got %+v beside %v", three, two.Check())
		}
		_, _ = two.Resign(t.Context()), three.Resign(t.Context())
		nothingLeft(t, s)
	})
}

// Lost answers, ended leases, given up waits: whatever becomes of an Acquire, its seat comes back.
func TestNoSeatIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		sem := s.Semaphore("x", 2)
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Second)
				defer cancel()
				if term, err := sem.Acquire(ctx); err == nil {
					time.Sleep(time.Duration(i%7) * 500 * time.Millisecond)
					_ = term.Resign(ctx)
				}
			})
		}
		for i := range 8 {
			time.Sleep(time.Duration(i) * time.Second)
			b.store.Partition("a", i%2 == 0)
			if i%3 == 0 {
				b.store.Expire("x")
			}
		}
		b.store.Partition("a", false)
		wg.Wait()
		one, two := soon(later(t, sem.Acquire), time.Second), soon(later(t, sem.Acquire), time.Second)
		if one == nil || two == nil {
			t.Fatal("a seat is lost")
		}
		_, _ = one.Resign(t.Context()), two.Resign(t.Context())
		nothingLeft(t, s)
	})
}
