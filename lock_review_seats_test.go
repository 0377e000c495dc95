package primacy

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/core"
)

// orders returns what the core does after the events, of the last event only.
func orders(events ...core.QueueEvent) (last []core.QueueOrder) {
	var q core.Queue
	for _, e := range events {
		last = q.Step(0, e)
	}
	return last
}

func count(all []core.QueueOrder, do core.QueueAction) (n int) {
	for _, o := range all {
		if o.Do == do {
			n++
		}
	}
	return n
}

func TestATenureThatFadesIsHandedToNobody(t *testing.T) {
	for name, after := range map[string]core.QueueEvent{"fade": {Kind: core.Fade, Tenure: 9}, "return": {Kind: core.Return, Waiter: 2, Tenure: 9}} {
		last := orders(core.QueueEvent{Kind: core.Arrive, Waiter: 1, Read: true}, core.QueueEvent{Kind: core.Arrive, Waiter: 2, Read: true},
			core.QueueEvent{Kind: core.Win, Tenure: 9}, after, core.QueueEvent{Kind: core.Arrive, Waiter: 3, Read: true})
		if count(last, core.Grant) > 0 {
			t.Errorf("%s: %+v", name, last)
		}
	}
}

func TestARefusalIsToldToAllWhoWait(t *testing.T) {
	last := orders(core.QueueEvent{Kind: core.Arrive, Waiter: 1}, core.QueueEvent{Kind: core.Arrive, Waiter: 2}, core.QueueEvent{Kind: core.Lose, Refused: true})
	if count(last, core.Deny) != 2 || len(last) != 2 {
		t.Errorf("got %+v, want both denied and no other campaign", last)
	}
}

func TestACampaignOfTheWrongKindIsCancelled(t *testing.T) {
	last := orders(core.QueueEvent{Kind: core.Arrive, Waiter: 1, Read: true}, core.QueueEvent{Kind: core.Arrive, Waiter: 2}, core.QueueEvent{Kind: core.Quit, Waiter: 1})
	if count(last, core.Cancel) != 1 {
		t.Errorf("the reader has gone, its campaign goes on for the writer: %+v", last)
	}
	last = orders(core.QueueEvent{Kind: core.Arrive, Waiter: 1, Try: true}, core.QueueEvent{Kind: core.Arrive, Waiter: 2}, core.QueueEvent{Kind: core.Quit, Waiter: 1})
	if count(last, core.Cancel) != 1 {
		t.Errorf("the try has gone, its campaign goes on for one who waits: %+v", last)
	}
}

func TestATryBehindWaitersIsSentAway(t *testing.T) {
	last := orders(core.QueueEvent{Kind: core.Arrive, Waiter: 1, Read: true}, core.QueueEvent{Kind: core.Win, Tenure: 9},
		core.QueueEvent{Kind: core.Arrive, Waiter: 2}, core.QueueEvent{Kind: core.Arrive, Waiter: 3, Read: true, Try: true})
	if count(last, core.Deny) != 1 {
		t.Errorf("a reader that tries behind a writer: %+v, want it denied", last)
	}
}

// A seat of a semaphore is free when nothing of its claim stands any more, and not before.
func TestASeatIsGivenBackWithItsClaim(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		sem := s.Semaphore("x", 2)
		one, two := soon(later(t, sem.Acquire), time.Second), soon(later(t, sem.Acquire), time.Second)
		limit, stop := context.WithTimeout(t.Context(), 20*time.Second)
		defer stop()
		if one == nil || two == nil {
			t.Fatal("one process cannot have all slots")
		}
		if _, err := sem.TryAcquire(limit); !errors.Is(err, ErrHeld) {
			t.Errorf("all slots are taken: %v", err)
		}
		b.store.Partition("a", true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := one.Resign(ctx); !errors.Is(err, ErrUnreachable) {
			t.Errorf("cut off: %v", err)
		}
		if _, err := sem.TryAcquire(limit); !errors.Is(err, ErrHeld) {
			t.Errorf("the release is not confirmed: %v", err)
		}
		if _, err := sem.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the release is not confirmed: %v", err)
		}
		cancel()
		b.store.Partition("a", false)
		time.Sleep(2 * time.Second)
		three := soon(later(t, sem.Acquire), time.Second)
		if three == nil || three.Check() != nil || two.Check() != nil {
			t.Fatalf("got %+v beside %v", three, two.Check())
		}
		_, _ = two.Resign(t.Context()), three.Resign(t.Context())
		nothingLeft(t, s)
	})
}

// Lost answers, ended leases, given up waits: whatever becomes of an Acquire, its seat comes back.
func TestNoSeatIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		sem := s.Semaphore("x", 2)
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Second)
				defer cancel()
				if term, err := sem.Acquire(ctx); err == nil {
					time.Sleep(time.Duration(i%7) * 500 * time.Millisecond)
					_ = term.Resign(ctx)
				}
			})
		}
		for i := range 8 {
			time.Sleep(time.Duration(i) * time.Second)
			b.store.Partition("a", i%2 == 0)
			if i%3 == 0 {
				b.store.Expire("x")
			}
		}
		b.store.Partition("a", false)
		wg.Wait()
		one, two := soon(later(t, sem.Acquire), time.Second), soon(later(t, sem.Acquire), time.Second)
		if one == nil || two == nil {
			t.Fatal("a seat is lost")
		}
		_, _ = one.Resign(t.Context()), two.Resign(t.Context())
		nothingLeft(t, s)
	})
}
