package storeutil

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestSpentIDs(t *testing.T) {
	var s SpentIDs
	if s.Has("0") {
		t.Error("the zero value has an ID")
	}
	s.Remove("0")
	const n = 2 * generation
	for i := range n + 1 {
		s.Add(fmt.Sprint(i))
		if !s.Has(fmt.Sprint(i)) || !s.Has(fmt.Sprint(max(0, i+1-generation))) {
			t.Fatalf("after %d: one of the last %d IDs is not known", i, generation)
		}
	}
	if s.Has("0") || len(s.recent)+len(s.older) > n {
		t.Errorf("%d IDs are kept, the first among them: %v", len(s.recent)+len(s.older), s.Has("0"))
	}
	for _, id := range []string{fmt.Sprint(n), fmt.Sprint(n - 1)} { // one of each generation
		if s.Remove(id); s.Has(id) {
			t.Errorf("%s was removed and is known", id)
		}
	}
}

func TestWaitFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		if err := Sleep(t.Context(), time.Second); err != nil || time.Since(begun) != time.Second {
			t.Errorf("Sleep = %v after %v", err, time.Since(begun))
		}
		ch := make(chan struct{}, 1)
		Signal(ch)
		Signal(ch)
		begun = time.Now()
		if err := WaitFor(t.Context(), time.Second, ch); err != nil || time.Since(begun) != 0 {
			t.Errorf("WaitFor with a signal = %v after %v", err, time.Since(begun))
		}
		if err := WaitFor(t.Context(), time.Second, ch); err != nil || time.Since(begun) != time.Second {
			t.Errorf("WaitFor after its signal = %v after %v", err, time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := Sleep(ctx, time.Second); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Sleep = %v, want its context's end", err)
		}
		Signal(ch)
		if err := WaitFor(ctx, time.Second, ch); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("WaitFor with an ended context and a signal = %v, want the context's end", err)
		}
	})
}

func TestBackoff(t *testing.T) {
	for tries, want := range map[int]time.Duration{
		0: 20 * time.Millisecond, 1: 20 * time.Millisecond, 2: 40 * time.Millisecond, 4: 160 * time.Millisecond,
		5: 200 * time.Millisecond, 70: 200 * time.Millisecond, 1 << 40: 200 * time.Millisecond,
	} {
		for range 100 {
			if d := Backoff(tries, 20*time.Millisecond, 200*time.Millisecond); d < want/2 || d > want {
				t.Fatalf("after %d tries: %v, want %v to %v", tries, d, want/2, want)
			}
		}
	}
	if d := Backoff(31, 10*time.Hour, time.Second); d > time.Second {
		t.Errorf("Backoff = %v beyond its limit", d)
	}
}
