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

// isFinal says whether asking again would get the same answer.
func isFinal(err error) bool {
	return errors.Is(err, driver.ErrRefused) || errors.Is(err, driver.ErrTaken) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrClosed)
}

// pause waits before try number n+1, with jitter so that a fleet does not come back in step. It
// returns at once for n = 0.
func pause(ctx context.Context, n int) error {
	if n == 0 {
		return ctx.Err()
	}
	d := core.Pause(n)
	timer := time.NewTimer(d/2 + rand.N(d/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unreachable says that ctx ended before the store gave an answer, with what it said last.
func unreachable(ctx context.Context, what string, last error) error {
	if last == nil || errors.Is(last, context.Cause(ctx)) {
		return fmt.Errorf("primacy: %s: %w: %w", what, ErrUnreachable, context.Cause(ctx))
	}
	return fmt.Errorf("primacy: %s: %w: %w; last: %w", what, ErrUnreachable, context.Cause(ctx), last)
}

// unreachableOr is for a wait that ctx ended: only an error of the store makes it unreachable.
func unreachableOr(ctx context.Context, what string, last error) error {
	if last == nil || errors.Is(last, context.Canceled) || errors.Is(last, context.DeadlineExceeded) {
		return fmt.Errorf("primacy: %s: %w", what, context.Cause(ctx))
	}
	return unreachable(ctx, what, last)
}
