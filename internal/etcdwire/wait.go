package etcdwire

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/primacy-go/primacy/internal/storeutil"
)

// RetryPause is how long to wait after a read that failed.
const RetryPause = 500 * time.Millisecond

// WatchAfter is how old a claim must be before its key is watched: a lock that is held for a
// millisecond need not pay for that.
const WatchAfter = 100 * time.Millisecond

// Poll returns how long to wait beside a watch before looking anyway. The spread keeps waiters
// apart.
func Poll() time.Duration { return 4*time.Second + rand.N(2*time.Second) }

// PollAfter is Poll after so many looks in a row that found nothing: up to four times as long.
// Otherwise a crowd of waiters would keep etcd busy.
func PollAfter(looks int) time.Duration { return Poll() << min(looks, 2) }

// Acquire locks turn, a channel with room for one value that serves as a mutex, unless ctx ends
// first. Locked means that the value is in: the holder takes it out to unlock.
func Acquire(ctx context.Context, turn chan struct{}) error {
	select {
	case turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Signal returns a channel that holds one signal, and a function that gives it without blocking.
func Signal() (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	return c, func() { storeutil.Signal(c) }
}
