package primacy

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
)

func TestWorkIsGoneByTheDeadlineAlsoWhileTheSessionCloses(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, next := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		var exited, deadline atomic.Int64
		s.exit = func(int) { exited.CompareAndSwap(0, int64(b.clock())) }
		release := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.Run(context.Background(), "n", func(ctx context.Context, term *Term) error { // deaf to its context
				<-ctx.Done()
				b.store.Partition("a", true)
				time.Sleep(time.Second)
				deadline.Store(int64(term.Deadline()))
				<-release
				return nil
			})
		}()
		synctest.Wait()
		led := make(chan time.Duration, 1)
		go func() { b.lead(next, "n"); led <- b.clock() }()
		closed := make(chan struct{})
		go func() { defer close(closed); _ = s.Close(context.Background()) }()
		at := <-led
		time.Sleep(10 * time.Second)
		if exited.Load() != deadline.Load() {
			t.Errorf("deadline %v, next leader from %v, work killed at %v", time.Duration(deadline.Load()), at, time.Duration(exited.Load()))
		}
		b.store.Partition("a", false)
		close(release)
		<-done
		<-closed
	})
}

func TestAClaimThatJoinsWhileTheSessionClosesHearsOfIt(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		l, err := s.live(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		// Election.Campaign by hand, with Close between join and campaign.
		leave, _ := s.enterLocal(context.Background(), seat{name: "n"}, false)
		k := newCampaign(context.Background(), l, claimSpec{seat: seat{name: "n"}}, leave)
		if !l.join(k.c) {
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

// a process paused between winning and working.
type pausing struct {
	slog.Handler
	at   string
	then func()
}

func (p *pausing) Enabled(context.Context, slog.Level) bool { return true }

func (p *pausing) Handle(_ context.Context, r slog.Record) error {
	if r.Message == p.at {
		p.then()
	}
	return nil
}

func TestWorkDoesNotBeginWhenTheTermIsOverAlready(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var skew atomic.Int64
		real := b.clock
		b.clock = func() time.Duration { return real() + time.Duration(skew.Load()) }
		h := &hooked{Store: b.store, claim: func(l driver.Lease, ctx context.Context, c ...driver.Claim) ([]driver.Place, error) {
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

// a logger whose pipe is full.
func TestALoggerThatBlocksHoldsUpNothing(t *testing.T) {
	for _, at := range []string{"lease ending", "term ending", "work outlived its right"} {
		t.Run(at, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *world) {
				full := make(chan struct{})
				s := b.session("a", b.store, Options{Logger: slog.New(&pausing{at: at, then: func() { <-full }})})
				var exited atomic.Int64
				s.exit = func(int) { exited.CompareAndSwap(0, int64(b.clock())) }
				release, done := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(done)
					_ = s.Candidate("n", nil).RunOnce(context.Background(), func(ctx context.Context, term *Term) error {
						<-release
						return nil
					})
				}()
				term2 := b.lead(s, "m")
				synctest.Wait()
				b.store.Partition("a", true)
				time.Sleep(time.Minute)
				if term2.Context().Err() == nil {
					t.Errorf("a minute later the context of m lives")
				}
				if exited.Load() == 0 {
					t.Errorf("a minute later the deaf work still runs")
				}
				b.store.Partition("a", false)
				close(full)
				close(release)
				<-done
			})
		})
	}
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

func TestCloseDoesNotHandOverWhileWorkRuns(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, next := b.session("a", b.store, Options{Overrun: OverrunWait}), b.session("b", b.store, Options{})
		release, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			_ = s.Run(context.Background(), "n", func(ctx context.Context, term *Term) error { <-release; return nil })
		}()
		synctest.Wait()
		led := make(chan time.Duration, 1)
		go func() { b.lead(next, "n"); led <- b.clock() - time.Hour }()
		synctest.Wait()
		b.store.Partition("a", true)
		closed := make(chan error, 1)
		go func() { closed <- s.Close(context.Background()) }()
		time.Sleep(9*time.Second + 100*time.Millisecond) // past the deadline; the store keeps the lease until 10s
		b.store.Partition("a", false)
		synctest.Wait()
		select {
		case err := <-closed:
			t.Errorf("Close returned %v while the work runs", err)
		default:
		}
		if at := <-led; at < 10*time.Second {
			t.Errorf("the next led at %v: Close ended the lease in the store beside work that runs", at)
		}
		close(release)
		<-done
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
