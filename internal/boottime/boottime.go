// Package boottime is the clock of every deadline: monotonic, and it goes on while the machine is suspended.
//
// Go's own monotonic clock is CLOCK_MONOTONIC, which stops in suspend: a lease counted on it would outlive the store's.
package boottime

import (
	"context"
	"time"
)

// Clock returns the time since boot.
type Clock func() time.Duration

type key struct{}

// With returns a context that makes [From] return clock. Tests use it: testing/synctest fakes time.Now, but no system call.
func With(ctx context.Context, clock Clock) context.Context {
	return context.WithValue(ctx, key{}, clock)
}

// From returns the clock that ctx carries, or [Now].
func From(ctx context.Context) Clock {
	if c, ok := ctx.Value(key{}).(Clock); ok {
		return c
	}
	return Now
}
