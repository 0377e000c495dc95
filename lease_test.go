package primacy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
	"github.com/primacy-go/primacy/memstore"
)

func TestOneHeartbeatServesAllElections(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		for _, n := range []string{"a", "b", "c", "d", "e"} {
			b.lead(s, n)
		}
		time.Sleep(20*time.Second + time.Millisecond)
		if got := s.Stats(); got.Leases != 1 || got.Renewals != 10 || got.Terms != 5 {
			t.Errorf("got %+v, want 1 lease, 10 renewals in 20 s at ttl/5, 5 terms", got)
		}
	})
}

func TestASessionThatHoldsNothingRenewsHalfAsOften(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		chained := b.session("chained", chainedRenewals{b.store}, Options{})
		a, second := b.session("a", b.store, Options{}), b.session("second", b.store, Options{})
		for _, s := range []*Session{chained, a, second} {
			must[*lease](t)(s.liveLease(t.Context()))
		}
		twentySeconds := func(of *Session, what string, want uint64) {
			t.Helper()
			before := of.Stats().Renewals
			time.Sleep(20 * time.Second)
			if got := of.Stats().Renewals - before; got != want {
				t.Errorf("%s: %d renewals in 20 s, want %d", what, got, want)
			}
		}
		time.Sleep(time.Millisecond) // no renewal is due while Stats is asked
		twentySeconds(a, "before anything", 5)
		go func() { _, _ = second.Election("n").Campaign(t.Context(), nil) }()
		for what, end := range map[string]func(*Term){
			"resigned": func(term *Term) { _ = term.Resign(t.Context()) },
			"removed":  b.remove,
		} {
			term := b.lead(a, what)
			go func() { _, _ = second.Election(what).Campaign(t.Context(), nil) }()
			twentySeconds(a, "leads", 10)
			twentySeconds(second, "leads one and waits for another", 10)
			end(term)
			twentySeconds(a, what, 5)
		}
		m := a.Mutex("m", nil)
		term := must[*Term](t)(m.Lock(t.Context()))
		twentySeconds(a, "holds a lock", 10)
		if err := term.Resign(t.Context()); err != nil {
			t.Error(err)
		}
		twentySeconds(a, "unlocked", 5)
		twentySeconds(chained, "a store whose renewals rest on one another", 10)
	})
}

// A standby whose last renewal was left out wins 3.9 s after the one before. An outage of 5 s must
// not end its term.
func TestWhoWinsMakesUpAtOnceForARenewalThatWasLeftOut(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		must[*lease](t)(s.liveLease(t.Context()))
		time.Sleep(3900 * time.Millisecond)
		term := b.lead(s, "n")
		time.Sleep(10 * time.Millisecond)
		if got := term.Remaining(); got < 8900*time.Millisecond {
			t.Errorf("%v of 9s are left after the win", got)
		}
	})
}

// chainedRenewals is a store whose renewals must come as often where nothing is held.
type chainedRenewals struct{ *memstore.Store }

func (s chainedRenewals) Caps() driver.Caps {
	caps := s.Store.Caps()
	caps.ChainedRenew = true
	return caps
}

func TestAClaimThatJoinsWhileTheSessionClosesHearsOfIt(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		l, err := s.liveLease(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		// Election.Campaign by hand, with Close between join and campaign.
		_, leave, _ := s.seats.take(context.Background(), seat{name: "n"}, 1, false, false)
		k := newCampaigner(context.Background(), l, seat{name: "n"}, claimSpec{}, leave)
		if !l.join(&k.claim) {
			t.Fatal("not joined")
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		closed := make(chan error, 1)
		go func() { closed <- s.Close(ctx) }()
		synctest.Wait()
		term, err := k.run(context.Background())
		if err == nil {
			<-term.Context().Done() // as every well-behaved worker does
			t.Logf("the term began under a closed session; cause %v", context.Cause(term.Context()))
			_ = term.Resign(context.Background())
		}
		if err := <-closed; err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

func TestCloseEndsTheTermsOfAnEarlierLeaseToo(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		old := b.lead(s, "n")
		b.store.Partition("a", true)
		<-old.Context().Done() // the soft end; the right lasts two seconds more
		b.store.Partition("a", false)
		if err := s.Ready(context.Background()); err != nil { // a new lease
			t.Fatal(err)
		}
		if err := s.Close(context.Background()); err == nil && old.Check() == nil {
			t.Errorf("Close returned nil, and a term has still its right, for %v", old.Remaining())
		}
	})
}

// An operator removes a waiting claim. The news of it come at once, the campaign enters under a
// fresh ID and wins, and then the same news come again. They are about the old claim: taken for the
// new one they would end a term that stands in the store.
func TestNewsOfARemovedClaimComesAfterTheNextHasWon(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		push := make(chan struct{})
		var removed []driver.News
		h := &hooked{Store: b.store, news: func(l driver.Lease, ctx context.Context) ([]driver.News, error) {
			late := removed
			again, cancel := context.WithCancel(ctx)
			defer cancel()
			told := push
			go func() { // told once more, when push is closed
				select {
				case <-told:
					cancel()
				case <-again.Done():
				}
			}()
			n, err := l.News(again)
			for _, o := range n {
				if o.Gone {
					removed = append(removed, o)
				}
			}
			if err != nil && ctx.Err() == nil && len(late) > 0 {
				removed = nil
				push = nil // nothing is told a third time
				return late, nil
			}
			return n, err
		}}
		first := b.lead(b.session("a", b.store, Options{}), "n")
		s := b.session("b", h, Options{})
		won := make(chan *Term, 1)
		go func() { won <- b.lead(s, "n") }()
		synctest.Wait()
		line, _ := b.store.Line(t.Context(), "n")
		if len(line.Waiters) != 1 || !b.store.Remove("n", line.Waiters[0].Token) {
			t.Fatalf("the line is %+v, want one who waits", line)
		}
		time.Sleep(time.Second) // it stands again
		_ = first.Resign(t.Context())
		term := <-won
		close(push)
		synctest.Wait()
		if err := term.Check(); err != nil || term.Context().Err() != nil {
			t.Errorf("Check = %v, cause %v; want a term that goes on: it was its predecessor that was removed", err,
				context.Cause(term.Context()))
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Error(err)
		}
		if line, _ := b.store.Line(t.Context(), "n"); line.Holder != nil {
			t.Errorf("after Resign %+v still stands", line.Holder)
		}
	})
}

// The lease is revoked while no renewal is answered. The push alone tells, and it is enough.
func TestARevokedLeaseIsToldByThePushAlone(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var silent atomic.Bool
		store := &renewing{Store: b.store, renew: func(ctx context.Context, l driver.Lease) error {
			if silent.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			return l.Renew(ctx)
		}}
		term := b.lead(b.session("a", store, Options{}), "n")
		time.Sleep(5 * time.Second)
		silent.Store(true)
		b.store.Expire("n")
		synctest.Wait()
		if err := term.Check(); !errors.Is(err, ErrDeposed) {
			t.Errorf("Check = %v at the moment of the push, want ErrDeposed", err)
		}
	})
}

// A lease that is gone is over for all its terms at once, also while telling the first of them
// takes its time.
func TestALeaseThatIsGoneEndsAllItsTermsBeforeItTellsTheFirst(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		goOn, held := make(chan struct{}), make(chan struct{})
		hold := sync.OnceFunc(func() { close(held); <-goOn })
		real := b.clock
		b.clock = func() time.Duration {
			if calledBy("(*Term).watchOverrunLocked") { // where a claim whose work runs is told that its right is over
				hold()
			}
			return real()
		}
		s := b.session("a", b.store, Options{Overrun: OverrunWait})
		terms, stop, done := make(chan *Term, 2), make(chan struct{}), make(chan error, 2)
		for _, name := range []string{"m", "n"} {
			go func() {
				done <- s.Candidate(name, nil).RunOnce(context.Background(), func(_ context.Context, t *Term) error {
					terms <- t
					<-stop
					return nil
				})
			}()
		}
		all := []*Term{<-terms, <-terms}
		b.store.Expire("n")
		<-held
		for _, term := range all {
			if err := term.Check(); !errors.Is(err, ErrDeposed) {
				t.Errorf("Check of %s = %v while one of the two is being told, want ErrDeposed", term.Name(), err)
			}
		}
		close(goOn)
		close(stop)
		<-done
		<-done
	})
}

// doneHook is a context that calls hook whenever somebody asks for its end.
type doneHook struct {
	context.Context
	hook func()
}

func (c *doneHook) Done() <-chan struct{} {
	c.hook()
	return c.Context.Done()
}

// The lease ends in the moment between the answer that the claim has entered and the call that
// waits for its turn. There is no call then that could be interrupted: the next one must not be
// made, for a store may well be silent about a lease that it does not know.
func TestALeaseThatEndsBetweenEnteringAndWaitingEndsTheWait(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var lost atomic.Pointer[driver.Lease]
		h := &hooked{Store: b.store}
		h.claim = func(l driver.Lease, ctx context.Context, c ...driver.Claim) ([]driver.Place, error) {
			defer lost.CompareAndSwap(nil, &l)
			return l.Claim(ctx, c...)
		}
		h.follow = func(l driver.Lease, p ...driver.Place) {
			if l != *lost.Load() {
				l.Follow(p...)
			}
		}
		first := b.lead(b.session("a", b.store, Options{}), "n")
		between, goOn := make(chan struct{}), make(chan struct{})
		stopped := false
		limit, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		ctx := &doneHook{limit, func() {
			// the first call is over, or the second begins
			if lost.Load() != nil && calledBy("(*campaigner).call") && !stopped {
				stopped = true
				close(between)
				<-goOn
			}
		}}
		s := b.session("b", h, Options{})
		won := make(chan error, 1)
		go func() {
			term, err := s.Election("n").Campaign(ctx, nil)
			if err == nil {
				err = term.Check()
			}
			won <- err
		}()
		<-between
		if err := b.store.Revoke(context.Background(), (*lost.Load()).ID()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		close(goOn)
		time.Sleep(2 * time.Second)
		if line, _ := b.store.Line(context.Background(), "n"); len(line.Waiters) != 1 {
			t.Errorf("two seconds later %d wait, want the campaign under its next lease", len(line.Waiters))
		}
		_ = first.Resign(context.Background())
		if err := <-won; err != nil {
			t.Errorf("Campaign: %v, want a term under the next lease", err)
		}
	})
}

// A grant that is under way while the session closes is answered afterwards: it must not open the
// session again, and the lease must not stay in the store.
func TestALeaseThatIsGrantedAfterCloseIsGivenBack(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		store := &slowGrant{Store: b.store, answer: make(chan struct{}), granted: make(chan driver.Lease, 1)}
		s := b.session("a", store, Options{})
		ready := make(chan error, 1)
		go func() { ready <- s.Ready(context.Background()) }()
		lease := <-store.granted
		if err := s.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		close(store.answer)
		if err := <-ready; !errors.Is(err, ErrClosed) {
			t.Errorf("Ready = %v on a session that was closed meanwhile, want ErrClosed", err)
		}
		synctest.Wait()
		if err := lease.Renew(context.Background()); !errors.Is(err, driver.ErrGone) {
			t.Errorf("the store still keeps the lease that nobody will use: Renew = %v, want ErrGone", err)
		}
		if got := s.Stats(); got.Leases != 0 || len(s.leases) != 0 {
			t.Errorf("the session has taken in %d leases and keeps %d, want none", got.Leases, len(s.leases))
		}
	})
}

// slowGrant is a store whose Grant is done at once and answered later.
type slowGrant struct {
	driver.Store
	granted chan driver.Lease
	answer  chan struct{}
}

func (s *slowGrant) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	s.granted <- l
	<-s.answer
	return l, err
}

// The lease ends in the moment between a campaign's look at it and its claim. The claim would not
// hear that the terms have to end, and Close would not wait for its work.
func TestALeaseThatIsEndingTakesNoClaim(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		l, err := s.liveLease(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		k := newCampaigner(context.Background(), l, seat{name: "n"}, claimSpec{}, func() {})
		l.end(core.Closed)
		if l.join(&k.claim) {
			t.Error("join = true under a lease that is ending, want false")
		}
		if l.alive() {
			t.Error("alive = true while the lease is ending, want false")
		}
	})
}

// TestAClaimRemovedAfterTheDeadlineHasExpired: a process that was frozen beyond its deadline may
// hear that its claim was removed before it reads the clock.
func TestAClaimRemovedAfterTheDeadlineHasExpired(t *testing.T) {
	for _, late := range []bool{false, true} {
		bubble(t, func(t *testing.T, b *world) {
			term := b.lead(b.session("a", b.store, Options{}), "n")
			l, want := term.c.l, ErrDeposed
			if late { // beat sleeps, as a frozen process does
				want = ErrExpired
				defer l.deadline.Store(l.deadline.Swap(int64(l.s.clock())))
			}
			l.deliver(driver.News{Place: term.c.place, Gone: true})
			if err := context.Cause(term.Context()); !errors.Is(err, want) {
				t.Errorf("after the deadline %v: the term ended by %v, want %v", late, err, want)
			}
			if err := term.Check(); err == nil {
				t.Errorf("after the deadline %v: Check says yes", late)
			}
			time.Sleep(time.Second) // the record is written beside it
			past, err := l.s.Election("n").History(context.Background(), 1)
			if err != nil || len(past) != 1 || past[0].Reason != ReasonOf(want) {
				t.Errorf("after the deadline %v: the history says %+v, %v", late, past, err)
			}
		})
	}
}

// TestTheClockAndTheContextSayTheSame: Check looks at the clock between the end of a lease that was
// removed and the claims' hearing of it. The context ends for the same cause.
func TestTheClockAndTheContextSayTheSame(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		term := b.lead(b.session("a", b.store, Options{}), "n")
		term.l.setEnding(core.Deposed) // as carryOut does, before it tells the claims
		defer term.l.deadline.Store(term.l.deadline.Swap(0))
		says, context := term.Check(), context.Cause(term.Context())
		if !errors.Is(says, ErrDeposed) || !errors.Is(context, ErrDeposed) {
			t.Errorf("Check says %v, the context %v, want both %v", says, context, ErrDeposed)
		}
		_ = term.Resign(t.Context())
	})
}

type namedLease struct{ driver.Lease }

func (namedLease) ID() string { return "l" }

// Who shows the misses that were not late as a counter takes one figure from the other: that must
// never go back.
func TestMissesWithoutLateOnesNeverGoBack(t *testing.T) {
	s := &Session{}
	l := &lease{s: s, stored: namedLease{}}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 200_000 {
				l.countRenewal(context.DeadlineExceeded, 0)
			}
		})
	}
	wg.Go(func() {
		for st := s.Stats(); st.Late < 400_000; st = s.Stats() {
			if st.Misses != st.Late {
				t.Errorf("%d misses, %d late: all were late", st.Misses, st.Late)
				return
			}
		}
	})
	wg.Wait()
	l.countRenewal(context.Canceled, 0)
	if st := s.Stats(); st.Misses != st.Late+1 || st.Renewals != 0 {
		t.Errorf("%+v", st)
	}
}

// The end of a lease cancels a renewal that is under way. The store has missed nothing.
func TestARenewalThatTheEndCancelledIsNoMiss(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		asked := make(chan struct{}, 1)
		s := b.session("a", &renewing{Store: b.store, renew: func(ctx context.Context, l driver.Lease) error {
			select {
			case asked <- struct{}{}:
			default:
			}
			<-ctx.Done()
			return ctx.Err()
		}}, Options{})
		wantNil(t, "Resign", b.lead(s, "n").Resign(context.Background()))
		<-asked
		wantNil(t, "Close", s.Close(context.Background()))
		synctest.Wait()
		if st := s.Stats(); st.Misses != 0 {
			t.Errorf("%+v, want no miss", st)
		}
	})
}
