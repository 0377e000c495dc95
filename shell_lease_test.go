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
)

// An operator removes a waiting claim. The news of it come at once, the campaign enters under a fresh ID and wins, and then the same news
// come again. They are about the old claim: taken for the new one they would end a term that stands in the store.
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
			t.Errorf("Check = %v, cause %v; want a term that goes on: it was its predecessor that was removed", err, context.Cause(term.Context()))
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

// A lease that is gone is over for all its terms at once, also while telling the first of them takes its time.
func TestALeaseThatIsGoneEndsAllItsTermsBeforeItTellsTheFirst(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		goOn, held := make(chan struct{}), make(chan struct{})
		hold := sync.OnceFunc(func() { close(held); <-goOn })
		real := b.clock
		b.clock = func() time.Duration {
			if calledBy("(*Term).watchOverrun") { // where a claim whose work runs is told that its right is over
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

// The lease ends in the moment between the answer that the claim has entered and the call that waits for its turn. There is no call then
// that could be interrupted: the next one must not be made, for a store may well be silent about a lease that it does not know.
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
			if lost.Load() != nil && calledBy("(*campaign).call") && !stopped { // the first call is over, or the second begins
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
		if err := b.store.EndLease(context.Background(), (*lost.Load()).ID()); err != nil {
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

// Close has begun to tell the claims, and telling the first takes its time. A campaign that was about to join must not get in: the round
// has passed it by, so that it would never hear that it has to end, and Close would wait for it.
func TestACampaignDoesNotJoinBehindTheBackOfClose(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var hold atomic.Bool
		aboutToJoin, join := make(chan struct{}), make(chan struct{})
		real := b.clock
		b.clock = func() time.Duration {
			if hold.Load() && calledBy("(*lease).alive") {
				hold.Store(false)
				close(aboutToJoin)
				<-join
			}
			return real()
		}
		b.lead(b.session("a", b.store, Options{}), "m")
		s := b.session("b", b.store, Options{})
		telling, told := make(chan struct{}), make(chan struct{})
		tell := sync.OnceFunc(func() { close(telling); <-told })
		waits := &doneHook{context.Background(), func() {
			if calledBy("(*claim).tell") { // the call that waits is being interrupted
				tell()
			}
		}}
		lost := make(chan error, 1)
		go func() { _, err := s.Election("m").Campaign(waits, nil); lost <- err }()
		synctest.Wait()
		hold.Store(true)
		won := make(chan error, 1)
		passed := make(chan struct{}) // it has tried to join, with or without success
		pass := sync.OnceFunc(func() { close(passed) })
		joins := &doneHook{context.Background(), func() {
			if calledBy("primacy.pause", "(*campaign).call") {
				pass()
			}
		}}
		go func() { _, err := s.Election("n").Campaign(joins, nil); won <- err }()
		<-aboutToJoin
		limit, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		closed := make(chan error, 1)
		go func() { closed <- s.Close(limit) }()
		<-telling
		close(join)
		<-passed
		close(told)
		if err := <-closed; err != nil {
			t.Errorf("Close: %v, want nil", err)
		}
		for _, c := range []chan error{lost, won} {
			if err := <-c; !errors.Is(err, ErrClosed) {
				t.Errorf("a campaign beside Close: %v, want ErrClosed", err)
			}
		}
	})
}

// A grant that is under way while the session closes is answered afterwards: it must not open the session again, and the lease must not
// stay in the store.
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

// Of three campaigns of one process for one name the first leads and the second gives up. The third still waits for the first: let in
// beside it, it would take the place of the term from under it, for a lease has one claim for each name.
func TestACampaignThatGivesUpItsTurnLetsNobodyPast(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		term := b.lead(s, "n")
		patient := make(chan *Term, 1)
		go func() {
			next, _ := s.Election("n").Campaign(context.Background(), nil)
			patient <- next
		}()
		synctest.Wait()
		for _, patience := range []time.Duration{time.Second, time.Minute} {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if _, err := s.Election("n").Campaign(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a campaign beside the term: %v, want that it waits until its context ends", err)
			}
		}
		line, _ := b.store.Line(context.Background(), "n")
		if line.Holder == nil || line.Holder.Token != uint64(term.Token()) || len(line.Waiters) > 0 || term.Check() != nil {
			t.Errorf("the line is %+v, Check %v; want the term under token %d alone", line, term.Check(), term.Token())
		}
		_ = term.Resign(context.Background())
		if next := soon(patient, time.Minute); next == nil {
			t.Fatal("who waited on was forgotten with those who gave up")
		} else {
			_ = next.Resign(context.Background())
		}
		synctest.Wait()
		if len(s.locals) != 0 {
			t.Errorf("%d names are kept though nobody stands for them", len(s.locals))
		}
	})
}
