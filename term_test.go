package primacy

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/memstore"
)

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

func TestProclaimReturnsWhenTheTermIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		term := b.lead(s, "n")
		b.store.Partition("a", true)
		done := make(chan error, 1)
		go func() { done <- term.Proclaim(context.Background(), []byte("x")) }()
		select {
		case err := <-done:
			t.Log(err)
		case <-time.After(time.Hour):
			t.Errorf("an hour later Proclaim has not returned; Check: %v", term.Check())
			b.store.Partition("a", false)
			<-done
		}
	})
}

func TestNextDeadlineTellsTheEndAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{RenewEvery: 500 * time.Millisecond, TTL: 20 * time.Second})
		term := b.lead(s, "n")
		b.store.Partition("a", true)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		at := b.clock()
		got := make(chan time.Duration, 1)
		go func() { _, _ = term.NextDeadline(context.Background(), term.Deadline()); got <- b.clock() }()
		synctest.Wait()
		_ = term.Resign(ctx)
		if late := <-got - at; late > 0 {
			t.Errorf("told %v after Resign", late)
		}
		b.store.Partition("a", false)
	})
}

func TestResignOfATermThatIsOverIsNilWhateverTheContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		term := b.lead(s, "n")
		_ = term.Resign(context.Background())
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		for range 50 {
			if err := term.Resign(ctx); err != nil {
				t.Fatalf("it is over, yet: %v", err)
			}
		}
	})
}

// renewing is a store whose renewals can be answered otherwise.
type renewing struct {
	driver.Store
	renew func(ctx context.Context, l driver.Lease) error
}

type renewingLease struct {
	driver.Lease
	s *renewing
}

func (s *renewing) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return &renewingLease{l, s}, err
}

func (l *renewingLease) Renew(ctx context.Context) error { return l.s.renew(ctx, l.Lease) }

// A renewal arrives in time, and the goroutine that is to move the deadline is stopped just when it
// has read the clock. Meanwhile the old deadline passes and Check says no. When the goroutine goes
// on it moves the deadline, rightly by its own reading: what was said stays.
func TestCheckThatSaidNoStaysThoughTheDeadlineMovesLater(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var stopped atomic.Pointer[chan struct{}] // where the heartbeat waits once it has read the clock
		real := b.clock
		b.clock = func() time.Duration {
			at := real()
			if c := stopped.Load(); c != nil && calledBy("(*lease).beat") {
				<-*c
			}
			return at
		}
		var cut atomic.Bool
		goOn := make(chan struct{})
		store := &renewing{Store: b.store, renew: func(ctx context.Context, l driver.Lease) error {
			if cut.Load() {
				return errors.New("no answer")
			}
			if err := l.Renew(ctx); err != nil || real() < time.Hour+20*time.Second {
				return err
			}
			stopped.Store(&goOn)
			return nil
		}}
		term := b.lead(b.session("a", store, Options{}), "n")
		time.Sleep(19 * time.Second)
		cut.Store(true)
		deadline := term.Deadline()
		time.Sleep(deadline - real() - 1500*time.Millisecond) // half a second before the context would end
		cut.Store(false)
		time.Sleep(deadline - real() - 500*time.Millisecond)
		if stopped.Load() == nil || term.Deadline() != deadline {
			t.Fatalf("the heartbeat was not stopped before it moved the deadline from %v; it is %v", deadline,
				term.Deadline())
		}
		if err := term.Check(); err != nil {
			t.Errorf("before the deadline: %v, want nil", err)
		}
		time.Sleep(time.Second)
		if err := term.Check(); !errors.Is(err, ErrExpired) {
			t.Errorf("after the deadline: %v, want ErrExpired", err)
		}
		stopped.Store(nil)
		close(goOn)
		time.Sleep(time.Millisecond)
		if moved := time.Duration(term.l.deadline.Load()); moved <= real() {
			t.Fatalf("the deadline has not moved beyond %v, so that nothing was tested", real())
		}
		if err := term.Check(); !errors.Is(err, ErrExpired) {
			t.Errorf("after the deadline has moved: %v, want still ErrExpired", err)
		}
		<-term.Context().Done()
	})
}

// The claim was removed by hand and the push has not come. The answer to Proclaim tells as well:
// the term must not go on after it.
func TestProclaimThatFindsTheClaimGoneEndsTheTerm(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		term := b.lead(b.session("a", &hooked{Store: b.store, news: noNews}, Options{}), "n")
		if !b.store.Remove("n", uint64(term.Token())) {
			t.Fatal("nothing was removed")
		}
		if err := term.Proclaim(context.Background(), []byte("x")); !errors.Is(err, ErrDeposed) {
			t.Errorf("Proclaim = %v, want ErrDeposed", err)
		}
		if err := term.Check(); !errors.Is(err, ErrDeposed) || term.Context().Err() == nil {
			t.Errorf("afterwards Check = %v, context %v; want ErrDeposed and an end", err, term.Context().Err())
		}
	})
}

func TestWorkDoesNotBeginWhenTheTermIsOverAlready(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var skew atomic.Int64
		real := b.clock
		b.clock = func() time.Duration { return real() + time.Duration(skew.Load()) }
		h := &hooked{Store: b.store,
			claim: func(l driver.Lease, ctx context.Context, c ...driver.Claim) ([]driver.Place, error) {
				p, err := l.Claim(ctx, c...)
				skew.CompareAndSwap(0, int64(20*time.Second)) // the process is paused while the answer is on its way
				return p, err
			}}
		s := b.session("a", h, Options{})
		s.exit = func(code int) { t.Errorf("exit %d", code) }
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		ran := false
		err := s.Run(ctx, "n", func(ctx context.Context, term *Term) error {
			ran = true
			return term.Check()
		})
		if err != nil || !ran {
			t.Errorf("the work ran %v and found %v, want it to run in a term that lives", ran, err)
		}
	})
}

// after suspend the Go timers have not moved.
func TestTheContextEndsSoonAfterSuspend(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var skew atomic.Int64
		real := b.clock
		b.clock = func() time.Duration { return real() + time.Duration(skew.Load()) }
		s := b.session("a", b.store, Options{TTL: 300 * time.Second})
		term := b.lead(s, "n")
		time.Sleep(time.Second)
		skew.Store(int64(time.Hour))
		at := time.Now()
		<-term.Context().Done()
		if late := time.Since(at); late > 2*time.Second {
			t.Errorf("the context ended %v after the machine woke", late)
		}
	})
}

func TestAPanicInWorkDoesNotLeaveALeaderBehind(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		c := s.Candidate("n", nil)
		func() {
			defer func() { _ = recover() }()
			_ = c.Run(context.Background(), func(context.Context, *Term) error { panic("x") })
		}()
		if st, term := c.State(); st != StateFollower || term != nil {
			t.Errorf("after the panic: %v, term %v", st, term)
		}
	})
}

// G3: the timer that ends work after Close (or a removal) stands still in suspend.
func TestWorkThatOutlivesItsRightIsEndedSoonAfterSuspend(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var skew, exited atomic.Int64
		real := b.clock
		b.clock = func() time.Duration { return real() + time.Duration(skew.Load()) }
		s := b.session("a", b.store, Options{TTL: 300 * time.Second})
		s.exit = func(int) { exited.CompareAndSwap(0, int64(real())) }
		release, done := make(chan struct{}), make(chan struct{})
		var tok atomic.Uint64
		go func() {
			defer close(done)
			_ = s.Candidate("n", nil).RunOnce(context.Background(), func(_ context.Context, t *Term) error {
				tok.Store(uint64(t.Token()))
				<-release
				return nil
			})
		}()
		synctest.Wait()
		b.store.Remove("n", tok.Load())
		synctest.Wait()
		skew.Store(int64(time.Hour)) // suspended in the grace
		at := real()
		time.Sleep(2 * time.Minute)
		if late := time.Duration(exited.Load()) - at; exited.Load() == 0 || late > 2*time.Second {
			t.Errorf("work was ended %v after the machine woke", late)
		}
		close(release)
		<-done
	})
}

// G5: Proclaim under a store client that ignores its context.
func TestProclaimReturnsThoughTheStoreClientIsDeaf(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		s := b.session("a", net, Options{})
		term := b.lead(s, "n")
		net.Deaf(true)
		done := make(chan time.Duration, 1)
		go func() {
			_ = term.Proclaim(term.Context(), []byte("x"))
			done <- b.clock()
		}()
		<-term.Context().Done()
		at := b.clock()
		time.AfterFunc(time.Minute, func() { net.Deaf(false) })
		if late := <-done - at; late > 2*time.Second {
			t.Errorf("Proclaim came back %v after its context ended, the work's deadline was 2s after that", late)
		}
	})
}

func TestCheckAllocatesNothing(t *testing.T) {
	s, err := NewSession(memstore.New(memstore.Options{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	term, err := s.Election("n").Campaign(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() { _ = term.Check() }); n != 0 {
		t.Errorf("Check allocates %v times", n)
	}
	_ = term.Resign(context.Background())
}

func BenchmarkCheck(b *testing.B) {
	s, err := NewSession(memstore.New(memstore.Options{}), &Options{TTL: MaxTTL})
	if err != nil {
		b.Fatal(err)
	}
	term, err := s.Election("n").Campaign(context.Background(), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if term.Check() != nil {
			b.Fatal("lost")
		}
	}
}
