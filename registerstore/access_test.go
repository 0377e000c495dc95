package registerstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver/drivertest"
)

// deaf is a register whose watches tell nothing.
type deaf struct{ *hooked }

func (deaf) Watch(ctx context.Context, _, _ string) ([]byte, string, error) {
	<-ctx.Done()
	return nil, "", ctx.Err()
}

// A watch may go deaf on a connection that lives: an API server, or a proxy before it, that keeps
// events back. Who relied on it alone would never lead, and never hear that he is removed.
func TestAWatchThatTellsNothingIsNotReliedUponAlone(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		first := granted(t, storeOver(t, h), "first", time.Hour)
		second := granted(t, storeOver(t, deaf{h}), "second", time.Hour)
		p, q := claimed(t, first, "n"), claimed(t, second, "n")
		held := make(chan time.Duration, 1)
		var released time.Time
		go func() {
			if _, err := drivertest.Await(t.Context(), second, q); err != nil {
				t.Error(err)
			}
			held <- time.Since(released)
		}()
		time.Sleep(10 * time.Minute)
		released = time.Now()
		if err := first.Release(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if took := <-held; took > 7*time.Second {
			t.Errorf("the next one held %v after the release, want at most 1.2 times the poll of 5 s", took)
		}
	})
}

// Hundreds of waiters whose lines do not change must not begin a watch anew with each poll.
func TestAWatchOutlivesThePollsBesideIt(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		first := granted(t, storeOver(t, h), "first", time.Hour)
		second := granted(t, storeOver(t, h), "second", time.Hour)
		claimed(t, first, "n")
		q := claimed(t, second, "n")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		before := h.Register.Calls()
		if _, err := drivertest.Await(ctx, second, q); err == nil {
			t.Fatal("it holds beside the first")
		}
		calls := h.Register.Calls()
		// The line, the lease of the first and its own: each once in 5 s.
		gets, watches := calls.Get-before.Get, calls.Watch-before.Watch
		if gets > 3*300 || gets < 3*180 || watches > 10 {
			t.Errorf("%d reads and %d watches in 20 minutes, want some 720 and a handful", gets, watches)
		}
	})
}
