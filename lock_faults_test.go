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
