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
)

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
					_ = s.Candidate("n", nil).RunOnce(context.Background(),
						func(ctx context.Context, term *Term) error {
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
		// suspended past the deadline: the soft end is told when Check already says no
		skew.Store(int64(20 * time.Second))
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
		s := b.session("a", b.store,
			Options{Overrun: OverrunWait, Logger: slog.New(gated{enabled: func() {}, lines: func(m string) {
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
