package primacy

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
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
			elected = elected || ev.State == StateLeader && ev.Term != nil
			deposed = deposed || ev.State != StateLeader && errors.Is(ev.Cause, ErrDeposed)
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
