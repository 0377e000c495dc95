package primacy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// pause waits before try number n+1, with jitter so that a fleet does not come back in step. It
// returns at once for n = 0.
func pause(ctx context.Context, n int) error {
	if n == 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(jittered(n))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// jittered is how long to wait before try number n+1, for n > 0.
func jittered(n int) time.Duration {
	d := core.Pause(n)
	return d/2 + rand.N(d/2+1)
}

// storeCalls repeats calls on the store that belong to no claim.
type storeCalls struct{ limit time.Duration } // of one call

// retry repeats a call until it gets a final answer or ctx ends: an unknown outcome is not a
// failure, and every call on a store is safe to repeat.
func (s storeCalls) retry(ctx context.Context, what string, call func(context.Context) error) error {
	var last error
	for try := 1; ; try++ {
		callCtx, cancel := context.WithTimeout(ctx, s.limit)
		err := call(callCtx)
		cancel()
		if err == nil || errors.Is(err, driver.ErrGone) {
			return err
		}
		if isFinal(err) {
			return fmt.Errorf("primacy: %s: %w", what, err)
		}
		if last == nil || ctx.Err() == nil {
			last = err // an error of the context itself says less than the one before
		}
		if pause(ctx, try) != nil {
			return unreachable(ctx, what, last)
		}
	}
}

// stopwatch measures for events and statistics, which tell durations without the time that the
// machine slept. Deadlines are on the boot clock, which includes it.
type stopwatch struct{ born time.Time }

// uptime is how long the session has been there.
func (w stopwatch) uptime() time.Duration { return time.Since(w.born) }
