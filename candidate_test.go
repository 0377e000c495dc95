package primacy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
)

func TestCandidateTellsElectedDeposedAndLeaderChanged(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		c := s.Candidate("n", nil)
		ctx, cancel := context.WithCancel(context.Background())
		events := make(chan CandidateEvent, 100)
		listening := make(chan struct{})
		go func() {
			defer close(listening)
			for ev := range c.Events(ctx) {
				events <- ev
			}
		}()
		running := make(chan error)
		var terms []Token
		go func() {
			running <- c.Run(ctx, func(ctx context.Context, term *Term) error {
				terms = append(terms, term.Token())
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		time.Sleep(time.Second * 2)
		go func() { // takes over when the first loses its lease, and lets go again
			term := b.lead(other, "n")
			time.Sleep(5 * time.Second)
			_ = term.Resign(context.Background())
		}()
		synctest.Wait()
		b.store.Expire("n")
		time.Sleep(10 * time.Second)
		cancel()
		if err := <-running; !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
		<-listening
		close(events)
		var elected, deposed, changed bool
		for ev := range events {
			elected = elected || ev.Kind == CandidateElected && ev.State == StateLeader && ev.Term != nil
			deposed = deposed || ev.Kind == CandidateEnded && ev.State == StateFollower &&
				errors.Is(ev.Cause, ErrDeposed)
			changed = changed || ev.Leader != nil && ev.Leader.ID == "b"
		}
		if !elected || !deposed || !changed {
			t.Errorf("elected %v, deposed with its cause %v, leader changed %v", elected, deposed, changed)
		}
		if len(terms) != 2 || terms[1] <= terms[0] {
			t.Errorf("terms %v, want two with growing tokens", terms)
		}
	})
}

// oldNews is a store that shows who leads with a delay, as a watch behind a slow link does.
type oldNews struct {
	driver.Store
	delay time.Duration
}

func (s oldNews) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	line, err := s.Store.Next(ctx, name, after)
	time.Sleep(s.delay)
	return line, err
}

// leadersTold is what a reader is told: a word for each event, its kind and the leader.
type leadersTold struct {
	mu    sync.Mutex
	words []string
}

func (l *leadersTold) read(ctx context.Context, c *Candidate) {
	for ev := range c.Events(ctx) {
		word := ev.Kind.String() + ":"
		if ev.Leader != nil {
			word += ev.Leader.ID
		}
		l.add(word)
	}
}

func (l *leadersTold) add(word string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.words = append(l.words, word)
}

// A reader that sends requests to where Leader points must never send them to the dead: neither to
// the one before whom this candidate follows, nor to this candidate once its own term is over.
func TestNoDeadLeaderIsTold(t *testing.T) {
	for what, slow := range map[string]func(driver.Store) driver.Store{
		"with tokens":    func(s driver.Store) driver.Store { return oldNews{s, 3 * time.Second} },
		"without tokens": func(s driver.Store) driver.Store { return oldNews{notoken{s}, 3 * time.Second} },
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *world) {
				first, last := b.session("first", b.store, Options{}), b.session("last", b.store, Options{})
				c := b.session("c", slow(b.store), Options{}).Candidate("n", nil)
				before := b.lead(first, "n")
				ctx, cancel := context.WithCancel(t.Context())
				var told leadersTold
				var both sync.WaitGroup
				both.Go(func() { told.read(ctx, c) })
				synctest.Wait()
				both.Go(func() {
					_ = c.Run(ctx, func(ctx context.Context, _ *Term) error { <-ctx.Done(); return nil })
				})
				time.Sleep(5 * time.Second) // it has heard of the first
				_ = before.Resign(t.Context())
				time.Sleep(time.Second) // it leads; what the store shows is 3 s old
				var after *Term
				both.Go(func() { after = b.lead(last, "n") })
				synctest.Wait()
				b.store.Expire("n") // its term ends, and the last one leads
				time.Sleep(10 * time.Second)
				cancel()
				both.Wait()
				_ = after.Resign(t.Context())
				want := "now: stands: leader_changed:first elected:c ended: stands: leader_changed:last gave_up:last"
				// The right ends first; work that stops at once may be seen to have stopped first.
				got := strings.Replace(strings.Join(told.words, " "), "leader_changed: ended:", "ended:", 1)
				if got != want {
					t.Errorf("told\n%s, want\n%s", got, want)
				}
			})
		})
	}
}

// Work that does not stop keeps the state, but not the lead, and that is told when the right ends.
func TestALeaderWhoseWorkDoesNotStopIsToldToBeNone(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		// What the store shows comes much too late.
		c := b.session("a", oldNews{b.store, time.Hour}, Options{Overrun: OverrunWait}).Candidate("n", nil)
		ctx, cancel := context.WithCancel(t.Context())
		goOn := make(chan struct{})
		var told leadersTold
		var both sync.WaitGroup
		both.Go(func() { told.read(ctx, c) })
		synctest.Wait()
		both.Go(func() {
			_ = c.RunOnce(ctx, func(context.Context, *Term) error { <-goOn; return nil })
		})
		synctest.Wait()
		b.store.Expire("n")
		time.Sleep(time.Minute)
		told.add("late")
		close(goOn)
		synctest.Wait()
		cancel()
		both.Wait()
		want := "now: stands: elected:a leader_changed: late ended:"
		if got := strings.Join(told.words, " "); got != want {
			t.Errorf("told\n%s, want\n%s", got, want)
		}
	})
}

// unanswered is a store that does not answer releases.
type unanswered struct{ driver.Store }

type unansweredLease struct{ driver.Lease }

func (s unanswered) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return unansweredLease{l}, err
}

func (unansweredLease) Release(ctx context.Context, _ ...driver.Place) error {
	<-ctx.Done()
	return ctx.Err()
}

// A candidate that has given up leads no more, and that is told before the store answers.
func TestAReleaseWithoutAnAnswerNamesNoLeader(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		// What the store shows comes much too late.
		c := b.session("a", oldNews{unanswered{b.store}, time.Hour}, Options{}).Candidate("n", nil)
		ctx, cancel := context.WithCancel(t.Context())
		goOn := make(chan struct{})
		var told leadersTold
		var both sync.WaitGroup
		both.Go(func() { told.read(ctx, c) })
		synctest.Wait()
		both.Go(func() {
			_ = c.Run(ctx, func(context.Context, *Term) error { <-goOn; return nil })
		})
		synctest.Wait()
		close(goOn)
		synctest.Wait()
		told.add("unanswered")
		time.Sleep(time.Minute)
		cancel()
		both.Wait()
		want := "now: stands: elected:a leader_changed: unanswered ended:"
		if got := strings.Join(told.words, " "); got != want {
			t.Errorf("told\n%s, want\n%s", got, want)
		}
	})
}

// The end of a term whose work panicked is told with its own cause, not with an earlier one.
func TestTheEndByAPanicHasItsOwnCause(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := b.session("a", b.store, Options{}).Candidate("n", nil)
		var causes []error
		terms := 0
		reading, done := context.WithCancel(t.Context())
		var reader sync.WaitGroup
		reader.Go(func() {
			for ev := range c.Events(reading) {
				if ev.Kind == CandidateEnded {
					causes = append(causes, ev.Cause)
				}
			}
		})
		synctest.Wait()
		go func() { time.Sleep(time.Second); b.store.Expire("n") }()
		func() {
			defer func() { _ = recover() }()
			_ = c.Run(t.Context(), func(ctx context.Context, _ *Term) error {
				if terms++; terms == 2 {
					panic("x")
				}
				<-ctx.Done()
				return nil
			})
		}()
		synctest.Wait()
		done()
		reader.Wait()
		if len(causes) != 2 || !errors.Is(causes[0], ErrDeposed) || !errors.Is(causes[1], ErrResigned) {
			t.Errorf("ended for %v, want deposed, then resigned", causes)
		}
	})
}

// Run and Events usually end by one context. The reader is told how it ends all the same.
func TestTheEndIsToldBeforeTheEventsEnd(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, stop := b.session("a", b.store, Options{}), errors.New("shut down")
		follow := func(c *Candidate, ctx context.Context) <-chan CandidateEvent {
			last := make(chan CandidateEvent, 1)
			go func() {
				var ev CandidateEvent
				for ev = range c.Events(ctx) {
				}
				last <- ev
			}()
			return last
		}
		leads, cancel := context.WithCancelCause(t.Context())
		c := s.Candidate("n", nil)
		var inWork <-chan CandidateEvent
		go func() {
			_ = c.Run(leads, func(ctx context.Context, _ *Term) error {
				inWork = follow(c, ctx)
				<-ctx.Done()
				select {
				case <-inWork:
				case <-time.After(time.Minute):
					t.Error("a reader under the term's context waits for the work")
				}
				time.Sleep(3 * time.Second)
				return nil
			})
		}()
		last := follow(c, leads)
		own, cancelOwn := context.WithCancel(t.Context())
		alone := follow(c, own)
		synctest.Wait() // it leads
		waits, giveUp := context.WithCancel(t.Context())
		waiting := s.Candidate("n", nil)
		go func() { _ = waiting.Run(waits, nil) }()
		lastOfWaiting := follow(waiting, waits)
		time.Sleep(time.Second)

		cancelOwn()
		synctest.Wait()
		select {
		case ev := <-alone:
			if ev.Kind == CandidateEnded {
				t.Error("a reader whose own context ended was told that the term has")
			}
		default:
			t.Error("a reader whose own context ended goes on while the candidate leads")
		}
		giveUp()
		if ev := <-lastOfWaiting; ev.Kind != CandidateGaveUp || ev.State != StateFollower {
			t.Errorf("the last event of a candidate that waited is %v, %v", ev.Kind, ev.State)
		}
		cancel(stop)
		synctest.Wait()
		ev := <-last
		if ev.Kind != CandidateEnded || ev.State != StateFollower || ev.Term != nil || !errors.Is(ev.Cause, stop) {
			t.Errorf("the last event is %v, %v, cause %v", ev.Kind, ev.State, ev.Cause)
		}
	})
}

// client-go's callbacks, with what differs: work has returned before another leads.
func TestCallbacksOfClientGo(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		a, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		before := b.lead(other, "n")
		var mu sync.Mutex
		var calls []string
		called := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, what)
		}
		done := make(chan error)
		run := func(ctx context.Context) {
			done <- a.Candidate("n", nil).RunCallbacks(ctx, LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) { called("started") }, // returns at once, and leads on
				OnStoppedLeading: func() {
					led := a.Terms()
					called(fmt.Sprint("stopped while leading ", len(led)))
				},
				OnNewLeader: func(id string) { called("new " + id) },
			})
		}
		go run(t.Context())
		time.Sleep(time.Second)
		_ = before.Resign(t.Context())
		time.Sleep(time.Minute)
		if _, err := other.Election("n").Ask(t.Context(), Request{}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, ErrResigned) {
			t.Errorf("RunCallbacks = %v, want why the term ended", err)
		}
		want := "new b, started, new a, stopped while leading 1, new "
		got := strings.Replace(strings.Join(calls, ", "), "new a, started", "started, new a", 1) // two goroutines
		if got != want {
			t.Errorf("called %q, want %q", got, want)
		}

		waits := b.lead(other, "n")
		calls = nil
		ctx, cancel := context.WithCancel(t.Context())
		go run(ctx)
		time.Sleep(time.Second)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || slices.Contains(calls, "started") || len(calls) > 1 {
			t.Errorf("given up while it waited: %v, called %q", err, calls)
		}
		_ = waits.Resign(t.Context())
		if err := a.Candidate("n", nil).RunCallbacks(t.Context(), LeaderCallbacks{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("without OnStartedLeading: %v, want ErrInvalid", err)
		}
	})
}

func TestTwoCandidatesOfOneProcessTakeTurns(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		first := b.lead(s, "n")
		won := make(chan *Term)
		go func() { won <- b.lead(s, "n") }()
		synctest.Wait()
		if line, _ := b.store.Line(context.Background(), "n"); len(line.Waiters) != 0 {
			t.Errorf("one lease has two claims for one name: %+v", line)
		}
		if err := first.Resign(context.Background()); err != nil {
			t.Fatal(err)
		}
		second := <-won
		if first.Check() == nil || second.Check() != nil || second.Token() <= first.Token() {
			t.Errorf("first %v, second %v, tokens %d, %d", first.Check(), second.Check(), first.Token(), second.Token())
		}
	})
}

func TestACandidateRunsOnceAtATime(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := b.session("a", b.store, Options{}).Candidate("n", nil)
		work := func(ctx context.Context, _ *Term) error { <-ctx.Done(); return nil }
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 2)
		go func() { done <- c.Run(ctx, work) }()
		synctest.Wait()
		go func() { done <- c.Run(ctx, work) }()
		synctest.Wait()
		select {
		case err := <-done:
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("the second Run = %v, want ErrInvalid", err)
			}
		default:
			t.Error("the second Run has not returned")
			done <- nil
		}
		cancel()
		synctest.Wait()
		<-done
	})
}

func TestASlowReaderIsToldHowManyEventsItMissed(t *testing.T) {
	f := newFeed[CandidateEvent](3)
	for range 3 + 3 {
		f.push(CandidateEvent{})
	}
	if _, missed, ok := f.next(t.Context(), nil); !ok || missed != 3 {
		t.Errorf("the first event read says %d missed, want 3", missed)
	}
	if _, missed, ok := f.next(t.Context(), nil); !ok || missed != 0 {
		t.Errorf("the next says %d, want 0: they were told", missed)
	}
}
