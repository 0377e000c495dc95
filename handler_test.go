package primacy

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
)

// G1: Enabled of a logger's handler is user code too, and runs under the claim's mutex.
type gated struct {
	slog.Handler
	enabled func()
	lines   func(string)
}

func (g gated) Enabled(context.Context, slog.Level) bool { g.enabled(); return true }
func (g gated) Handle(_ context.Context, r slog.Record) error {
	if g.lines != nil {
		g.lines(r.Message)
	}
	return nil
}

func TestAHandlerWhoseEnabledAsksCheckHoldsUpNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var term atomic.Pointer[Term]
		var skew atomic.Int64
		real := b.clock
		b.clock = func() time.Duration { return real() + time.Duration(skew.Load()) }
		s := b.session("a", b.store, Options{Logger: slog.New(gated{enabled: func() {
			if tm := term.Load(); tm != nil {
				_ = tm.Check() // "log while I lead"
			}
		}})})
		tm, other := b.lead(s, "n"), b.lead(s, "m")
		term.Store(tm)
		synctest.Wait()
		skew.Store(int64(20 * time.Second)) // suspended past the deadline: the soft end is told when Check already says no
		time.Sleep(time.Minute)
		if tm.Context().Err() == nil || other.Context().Err() == nil {
			t.Fatalf("deadlock: a minute later the contexts live: %v %v", tm.Context().Err(), other.Context().Err())
		}
	})
}

// G1b: an Enabled that blocks.
func TestAHandlerWhoseEnabledBlocksHoldsUpNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		full := make(chan struct{})
		var on atomic.Bool
		s := b.session("a", b.store, Options{Logger: slog.New(gated{enabled: func() {
			if on.Load() {
				<-full
			}
		}})})
		tm, tm2 := b.lead(s, "n"), b.lead(s, "m")
		on.Store(true)
		b.store.Partition("a", true)
		time.Sleep(time.Minute)
		if tm.Context().Err() == nil || tm2.Context().Err() == nil {
			t.Errorf("a minute later the contexts live: %v %v", tm.Context().Err(), tm2.Context().Err())
		}
		on.Store(false)
		close(full)
		b.store.Partition("a", false)
	})
}

// G2: what is logged after a Close that was given up is lost, also the one error line.
func TestWorkThatOutlivesAGivenUpCloseIsLogged(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var mu sync.Mutex
		var all []string
		s := b.session("a", b.store, Options{Overrun: OverrunWait, Logger: slog.New(gated{enabled: func() {}, lines: func(m string) {
			mu.Lock()
			all = append(all, m)
			mu.Unlock()
		}})})
		release, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			_ = s.Run(context.Background(), "n", func(context.Context, *Term) error { <-release; return nil })
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if s.Close(ctx) == nil {
			t.Fatal("Close did not wait for the work")
		}
		time.Sleep(time.Minute)
		mu.Lock()
		if got := strings.Join(all, ";"); !strings.Contains(got, "outlived") || s.Stats().Overruns != 1 {
			t.Errorf("%d overruns, logged: %s", s.Stats().Overruns, got)
		}
		mu.Unlock()
		close(release)
		<-done
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

// G4: a bogus "what the store said last".
func TestAnInterruptedPauseIsNotAnAnswerOfTheStore(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var waits, claims atomic.Int32
		h := &hooked{Store: b.store}
		followed := make(chan driver.Place, 10)
		h.follow = func(l driver.Lease, p ...driver.Place) {
			l.Follow(p...)
			followed <- p[0]
		}
		h.news = func(l driver.Lease, ctx context.Context) ([]driver.News, error) {
			if waits.Add(1) == 1 {
				p := <-followed
				return []driver.News{{Place: p, Held: true}}, nil // it is not
			}
			return l.News(ctx)
		}
		h.claim = func(l driver.Lease, ctx context.Context, c ...driver.Claim) ([]driver.Place, error) {
			if claims.Add(1) == 1 {
				return l.Claim(ctx, c...)
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		s, s2 := b.session("a", b.store, Options{}), b.session("b", h, Options{})
		b.lead(s, "n")
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		failed := make(chan error)
		go func() { _, err := s2.Election("n").Campaign(ctx, nil); failed <- err }()
		synctest.Wait() // it pauses before it follows again
		line, _ := b.store.Line(context.Background(), "n")
		b.store.Remove("n", line.Waiters[0].Token)
		if err := <-failed; strings.Contains(err.Error(), "answered with the place") {
			t.Errorf("the store never said that: %v", err)
		}
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
