package metrics

import (
	"context"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// jumpFrom is how late a look at the clock must come to count: less is what a busy machine does every minute.
const jumpFrom = 500 * time.Millisecond

// jumped returns by how much a look at the clock that was due after a wait came late, 0 if it hardly did.
func jumped(last, now, wait time.Duration) time.Duration {
	if late := now - last - wait; late >= jumpFrom {
		return late
	}
	return 0
}

// watchClock counts the time for which this process did not run. The boot clock goes on while the machine is suspended, and while the process is frozen.
func (t *tally) watchClock(ctx context.Context, clock boottime.Clock) {
	const wait = time.Second
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for last := clock(); ; {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		now := clock()
		t.mu.Lock()
		t.jumped += jumped(last, now, wait)
		t.mu.Unlock()
		last = now
		timer.Reset(wait)
	}
}
