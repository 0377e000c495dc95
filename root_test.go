package primacy

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// bubble runs f in fake time with a store and a way to open sessions on it whose boot clock is the fake one.
func bubble(t *testing.T, f func(t *testing.T, b *world)) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		b := &world{t: t, store: memstore.New(memstore.Options{}), clock: func() time.Duration { return time.Since(start) + time.Hour }}
		f(t, b)
	})
}

type world struct {
	t     *testing.T
	store *memstore.Store
	clock func() time.Duration
}

func (b *world) session(id string, on driver.Store, o Options) *Session {
	b.t.Helper()
	if o.ID = id; o.TTL == 0 {
		o.TTL = 10 * time.Second
	}
	s, err := newSession(on, o, b.clock)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { // runs inside the bubble
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Close(ctx)
		time.Sleep(time.Minute) // leases that were left to run out end their goroutines
	})
	return s
}

func (b *world) lead(s *Session, name string) *Term {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	term, err := s.Election(name).Campaign(ctx, &CampaignOptions{Value: []byte("v-" + s.ID())})
	if err != nil {
		b.t.Fatal(err)
	}
	return term
}

// broken is a store whose Renew can be made to hang for ever, deaf to its context, as a bad client library does.
type broken struct {
	*memstore.Store
	hang atomic.Pointer[chan struct{}] // while not nil, renewals wait for it
}

type brokenLease struct {
	driver.Lease
	b *broken
}

func (b *broken) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := b.Store.Grant(ctx, owner, ttl)
	return &brokenLease{l, b}, err
}

func (l *brokenLease) Renew(ctx context.Context) error {
	err := l.Lease.Renew(ctx)
	if c := l.b.hang.Load(); c != nil {
		<-*c
	}
	return err
}

func TestTheTermEndsInTimeThoughTheStoreClientNeverReturns(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		bad := &broken{Store: b.store}
		s := b.session("a", bad, Options{})
		term := b.lead(s, "n")
		time.Sleep(11 * time.Second) // renewals work
		if err := term.Check(); err != nil {
			t.Fatalf("with a healthy store: %v", err)
		}
		hang := make(chan struct{})
		bad.hang.Store(&hang)
		defer close(hang)
		asked := b.clock()
		<-term.Context().Done()
		if got := b.clock() - asked; got > 8*time.Second {
			t.Errorf("the context ended %v after renewals stopped, want at most ttl − drift − grace = 8s", got)
		}
		if err := term.Check(); err != nil {
			t.Errorf("between the soft end and the deadline Check must still say yes: %v", err)
		}
		time.Sleep(term.Remaining())
		err := term.Check()
		if !errors.Is(err, ErrExpired) || !errors.Is(context.Cause(term.Context()), ErrExpired) {
			t.Errorf("at the deadline: Check %v, cause %v; want ErrExpired", err, context.Cause(term.Context()))
		}
	})
}

func TestTheFirstCheckAfterAPauseSaysNo(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var skew atomic.Int64 // what SIGSTOP or suspend does: the boot clock jumps, no timer has run
		real := b.clock
		b.clock = func() time.Duration { return real() + time.Duration(skew.Load()) }
		s := b.session("a", b.store, Options{})
		term := b.lead(s, "n")
		synctest.Wait()
		skew.Store(int64(9 * time.Second))
		if err := term.Check(); !errors.Is(err, ErrExpired) {
			t.Fatalf("first check after the pause: got %v, want ErrExpired", err)
		}
		<-term.Context().Done()
		time.Sleep(5 * time.Second)
		if err := term.Check(); err == nil {
			t.Fatal("a later renewal made Check say yes again")
		}
	})
}

func TestWinningAgainIsANewTermWithALargerToken(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		first := b.lead(s, "n")
		b.store.Expire("n")
		<-first.Context().Done()
		if err := first.Check(); !errors.Is(err, ErrDeposed) {
			t.Errorf("a lease revoked before its time: got %v, want ErrDeposed", err)
		}
		second := b.lead(s, "n")
		if second.Token() <= first.Token() {
			t.Errorf("token %d after %d", second.Token(), first.Token())
		}
		if first.Check() == nil || second.Check() != nil {
			t.Errorf("old term %v, new term %v", first.Check(), second.Check())
		}
		if err := second.Resign(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := second.Check(); !errors.Is(err, ErrResigned) {
			t.Errorf("after Resign: %v", err)
		}
		third := b.lead(s, "n")
		if third.Token() <= second.Token() {
			t.Errorf("token %d after %d", third.Token(), second.Token())
		}
	})
}

func TestAClaimRemovedByHandDeposesAtOnceAndAWaitingOneIsEnteredAgain(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s1, s2 := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		t1 := b.lead(s1, "n")
		won := make(chan *Term, 1)
		go func() { won <- b.lead(s2, "n") }()
		synctest.Wait()
		line, _ := b.store.Line(context.Background(), "n")
		if len(line.Waiters) != 1 {
			t.Fatalf("got %d waiters, want 1", len(line.Waiters))
		}
		was := line.Waiters[0].Token
		b.store.Remove("n", was)
		synctest.Wait()
		line, _ = b.store.Line(context.Background(), "n")
		if len(line.Waiters) != 1 || line.Waiters[0].Token <= was {
			t.Fatalf("the waiting claim was not entered again: %+v", line.Waiters)
		}
		at := b.clock()
		b.store.Remove("n", uint64(t1.Token()))
		t2 := <-won
		synctest.Wait()
		if took := b.clock() - at; took > 0 {
			t.Errorf("noticed after %v, want at once", took)
		}
		if err := t1.Check(); !errors.Is(err, ErrDeposed) {
			t.Errorf("the removed leader: got %v, want ErrDeposed", err)
		}
		if err := t2.Check(); err != nil || t2.Token() <= t1.Token() {
			t.Errorf("the next leader: %v, token %d after %d", err, t2.Token(), t1.Token())
		}
	})
}

func TestAnAskedLeaderStopsThenReleases(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s1, s2 := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		stopped := time.Duration(0)
		done := make(chan error, 1)
		go func() {
			c := s1.Candidate("n", nil)
			done <- c.RunOnce(context.Background(), func(ctx context.Context, term *Term) error {
				<-ctx.Done()
				time.Sleep(3 * time.Second) // takes its time to stop
				if err := term.Check(); err != nil {
					t.Errorf("while the work stops it still has the right: %v", err)
				}
				stopped = b.clock()
				return nil
			})
		}()
		synctest.Wait()
		won := make(chan time.Duration, 1)
		go func() { b.lead(s2, "n"); won <- b.clock() }()
		synctest.Wait()
		if _, err := s2.Election("n").Ask(context.Background(), Request{Reason: "maintenance"}); err != nil {
			t.Fatal(err)
		}
		at, err := <-won, <-done
		if at < stopped || stopped == 0 {
			t.Errorf("the next led at %v, the work stopped at %v", at, stopped)
		}
		var e *EndedError
		if !errors.As(err, &e) || !errors.Is(err, ErrResigned) || e.By != "b" || e.Reason != "maintenance" {
			t.Errorf("got %v, want resigned, asked by b (maintenance)", err)
		}
	})
}

func TestCloseWaitsForTheWorkAndTellsErrClosed(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		term := b.lead(s, "n")
		go func() {
			<-term.Context().Done()
			time.Sleep(2 * time.Second)
			_ = term.Resign(context.Background())
		}()
		at := b.clock()
		if err := s.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got := b.clock() - at; got != 2*time.Second {
			t.Errorf("Close took %v, want the 2s that the work took to stop", got)
		}
		if err := context.Cause(term.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("cause %v, want ErrClosed", err)
		}
		if _, err := s.Election("n").Campaign(context.Background(), nil); !errors.Is(err, ErrClosed) {
			t.Errorf("campaign on a closed session: %v", err)
		}
	})
}

func TestCloseThatIsGivenUpLeavesTheLeaseToRunOut(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s1, s2 := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		b.lead(s1, "n") // and never resigns
		at := b.clock()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := s1.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		b.lead(s2, "n")
		if got := b.clock() - at; got < 8*time.Second {
			t.Errorf("the next led after %v although the work of the first may still run", got)
		}
	})
}

func TestCampaignObeysItsContextAndLeavesNoTrace(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s1, s2 := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		t1 := b.lead(s1, "n")
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		at := b.clock()
		_, err := s2.Election("n").Campaign(ctx, nil)
		if !errors.Is(err, context.DeadlineExceeded) || b.clock()-at != 3*time.Second {
			t.Fatalf("got %v after %v", err, b.clock()-at)
		}
		synctest.Wait()
		if line, _ := b.store.Line(context.Background(), "n"); len(line.Waiters) != 0 {
			t.Errorf("left in the line: %+v", line.Waiters)
		}
		if t1.Check() != nil {
			t.Errorf("the leader was hurt: %v", t1.Check())
		}
	})
}

func TestWorkThatOutlivesItsRight(t *testing.T) {
	for _, policy := range []Overrun{OverrunExit, OverrunWait} {
		bubble(t, func(t *testing.T, b *world) {
			s := b.session("a", b.store, Options{Overrun: policy})
			var exited, deadline atomic.Int64
			s.exit = func(code int) {
				if code != 122 {
					t.Errorf("exit status %d, want 122", code)
				}
				exited.Store(int64(b.clock()))
			}
			release := make(chan struct{})
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = s.Run(ctx, "n", func(ctx context.Context, term *Term) error { // deaf to its context
					b.store.Partition("a", true)
					<-ctx.Done()
					deadline.Store(int64(term.Deadline()))
					<-release
					return nil
				})
			}()
			time.Sleep(30 * time.Second)
			if got := s.Stats().Overruns; got != 1 {
				t.Errorf("policy %d: counted %d overruns, want 1", policy, got)
			}
			if want := policy == OverrunExit; (exited.Load() != 0) != want || want && exited.Load() != deadline.Load() {
				t.Errorf("policy %d: exit at %d, deadline %d", policy, exited.Load(), deadline.Load())
			}
			b.store.Partition("a", false)
			cancel()
			close(release)
			<-done
		})
	}
}

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
