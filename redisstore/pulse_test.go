package redisstore_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/redistest"
)

// pulse asks the server for a sign of life over and over until the test ends. slowest tells how long the slowest answer took: what else is measured
// cannot be quicker on a machine that has that much to do.
func pulse(t *testing.T, srv *redistest.Server) (slowest func() time.Duration) {
	t.Helper()
	c := srv.Client()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	var most, begun atomic.Int64
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			begun.Store(time.Now().UnixNano())
			_ = c.Ping(ctx).Err()
			most.Store(max(most.Load(), time.Now().UnixNano()-begun.Load()))
			begun.Store(0)
			pauseFor(ctx, 2*time.Millisecond)
		}
	}()
	return func() time.Duration {
		slow := most.Load()
		if b := begun.Load(); b != 0 {
			slow = max(slow, time.Now().UnixNano()-b)
		}
		return time.Duration(slow)
	}
}
