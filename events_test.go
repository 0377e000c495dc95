package primacy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver/drivertest"
)

// collectEvents collects the events of a session, but for those of skip.
func collectEvents(t *testing.T, s *Session, skip ...EventKind) (events func() []Event) {
	t.Helper()
	var all []Event
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ev := range s.Events(ctx) {
			if !slices.Contains(skip, ev.Kind) {
				all = append(all, ev)
			}
		}
	}()
	synctest.Wait()
	return func() []Event {
		synctest.Wait()
		cancel()
		<-done
		return all
	}
}

// kinds tells events in short.
func kinds(all []Event) (out []string) {
	for _, ev := range all {
		s := ev.Kind.String()
		if ev.Name != "" {
			s += " " + ev.Name
		}
		if ev.Reason != "" {
			s += " " + string(ev.Reason)
		}
		out = append(out, s)
	}
	return out
}

func sameKinds(t *testing.T, got []Event, want ...string) {
	t.Helper()
	if k := kinds(got); !slices.Equal(k, want) {
		t.Errorf("told:\n %q\nwant:\n %q", k, want)
	}
}

func TestEventsOfATermFromTheCampaignToItsEnd(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		a, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		first := b.lead(other, "x")
		events := collectEvents(t, a, Renewed)
		won := make(chan *Term)
		go func() { won <- b.lead(a, "x") }()
		time.Sleep(7 * time.Second)
		if err := first.Resign(context.Background()); err != nil {
			t.Fatal(err)
		}
		term := <-won
		if got := time.Since(term.Since()); got != 0 {
			t.Errorf("won %v ago, want now", got)
		}
		if _, err := other.Election("x").Ask(context.Background(), Request{Reason: "upgrade"}); err != nil {
			t.Fatal(err)
		}
		<-term.Context().Done()
		time.Sleep(300 * time.Millisecond)
		_ = term.Resign(context.Background())
		all := events()
		sameKinds(t, all, "campaign_begun x", "lease_granted", "elected x", "stopping x resigned", "ended x resigned",
			"work_stopped x resigned")
		if e := all[2]; e.Took < 7*time.Second || e.Took > 8*time.Second || e.Token != term.Token() ||
			e.Lease != term.Lease() || e.At.IsZero() {
			t.Errorf("elected: %+v", e)
		}
		if e := all[3]; e.By != "b" || e.Text != "upgrade" || !errors.Is(e.Cause, ErrResigned) {
			t.Errorf("stopping: %+v", e)
		}
		if e := all[4]; e.Took != 300*time.Millisecond || e.By != "b" {
			t.Errorf("ended: %+v, want 300ms after the context", e)
		}
		if e := all[5]; e.Took != 300*time.Millisecond {
			t.Errorf("work stopped: %+v", e)
		}
	})
}

func TestEventsOfALostLease(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		s := b.session("a", net, Options{Overrun: OverrunWait})
		events := collectEvents(t, s, LeaseGranted, CampaignBegun, Renewed)
		term := b.lead(s, "x")
		if err := term.beginWork(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		net.Hang(true)
		<-term.Context().Done()
		for term.Check() == nil {
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(20 * time.Second)
		term.endWork()
		net.Hang(false)
		_ = term.Resign(context.Background())
		all := events()
		misses := 0
		all = slices.DeleteFunc(all, func(ev Event) bool {
			if ev.Kind == RenewalMissed {
				misses++
			}
			return ev.Kind == RenewalMissed
		})
		sameKinds(t, all, "elected x", "stopping x expired", "lease_lost", "ended x expired", "work_overran x",
			"work_stopped x expired")
		if s := s.Stats(); misses == 0 || uint64(misses) != s.Misses || s.Late == 0 || s.Overruns != 1 {
			t.Errorf("%d misses told; counted %+v", misses, s)
		}
	})
}

func TestEventsOfCampaignsThatWinNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		a, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		b.lead(other, "x")
		b.lead(other, "y")
		events := collectEvents(t, a, LeaseGranted, Renewed)
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if _, err := a.Election("x").Campaign(ctx, nil); err == nil {
			t.Fatal("won")
		}
		es := a.Elections(nil)
		if err := es.Stand("y"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		es.Withdraw("y")
		_ = es.Close(context.Background())
		all := events()
		sameKinds(t, all, "campaign_begun x", "campaign_ended x", "campaign_begun y", "campaign_ended y")
		if all[1].Took != 2*time.Second || !errors.Is(all[1].Cause, context.DeadlineExceeded) ||
			all[3].Took != 3*time.Second {
			t.Errorf("%+v and %+v", all[1], all[3])
		}
	})
}

func TestEventsOfAHandOver(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		a, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		term := b.lead(a, "x")
		go b.lead(other, "x")
		time.Sleep(time.Second)
		events := collectEvents(t, a, Renewed)
		if err := term.Transfer(context.Background(), "b"); err != nil {
			t.Fatal(err)
		}
		all := events()
		sameKinds(t, all, "stopping x transferred", "ended x transferred", "work_stopped x transferred",
			"handed_over x")
		if all[1].To != "b" || all[3].To != "b" {
			t.Errorf("to %q and %q, want b", all[1].To, all[3].To)
		}
	})
}

func TestTalliesMissNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		names := manyNames(2000)
		es := s.Elections(nil)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		missed, goOn := make(chan int), make(chan struct{})
		go func() {
			n := 0
			for ev := range s.Events(ctx) {
				<-goOn // a slow reader
				n += ev.Missed
			}
			missed <- n
		}()
		synctest.Wait()
		_ = es.Stand(names...)
		terms, _, _ := collect(t, es, len(names))
		if n := len(s.Terms()); n != len(names) {
			t.Errorf("%d terms, want %d", n, len(names))
		}
		_ = es.Resign(context.Background(), terms[:1500]...)
		if n := len(s.Terms()); n != 500 {
			t.Errorf("%d terms, want 500", n)
		}
		_ = s.Election(names[0]).s.Run(context.Background(), names[0], func(context.Context, *Term) error {
			return errors.New("broken")
		})
		if _, err := s.Mutex("l", nil).TryLock(context.Background()); err != nil {
			t.Fatal(err)
		}
		if n := len(s.Terms()); n != 500 {
			t.Errorf("%d terms with a lock held", n)
		}
		var elected, resigned, failed uint64
		for _, n := range s.Tallies() {
			elected, resigned, failed = elected+n.Elected, resigned+n.Ended[Resigned], failed+n.Ended[Failed]
		}
		if elected != 2001 || resigned != 1500 || failed != 1 {
			t.Errorf("elected %d, resigned %d, failed %d; want 2001, 1500, 1", elected, resigned, failed)
		}
		close(goOn)
		synctest.Wait()
		cancel()
		if n := <-missed; n == 0 {
			t.Error("a reader that sleeps has missed nothing")
		}
	})
}

func TestAReaderOfEventsHoldsUpNothingAndEndsWithTheSession(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		var last Event
		done := make(chan struct{})
		go func() {
			defer close(done)
			for last = range s.Events(context.Background()) {
				time.Sleep(time.Minute)
			}
		}()
		synctest.Wait()
		begin := time.Now()
		for i := range 100 {
			_ = b.lead(s, fmt.Sprint("x", i%3)).Resign(context.Background())
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("100 terms took %v with a slow reader", d)
		}
		b.lead(s, "last")
		closing, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Close(closing)
		<-done
		if last.Kind != Ended && last.Kind != Stopping || last.Name != "last" || last.Reason != Closed {
			t.Errorf("the last event is %+v, want the end of the last term", last)
		}
	})
}

func TestEventsNobodyReadsCostNothing(t *testing.T) {
	s := &Session{}
	ev := Event{Kind: Renewed, Lease: "l", Took: time.Second}
	if n := testing.AllocsPerRun(1000, func() { s.readers.publish(ev) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
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
