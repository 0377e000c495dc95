package primacy

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

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
