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
	f := &feed{ready: make(chan struct{}, 1)}
	for range feedSize + 3 {
		f.push(Event{})
	}
	if ev, ok := f.next(t.Context()); !ok || ev.Missed != 3 {
		t.Errorf("the first event read says %d missed, want 3", ev.Missed)
	}
	if ev, ok := f.next(t.Context()); !ok || ev.Missed != 0 {
		t.Errorf("the next says %d, want 0: they were told", ev.Missed)
	}
}
