package etcdstore

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

// TestSimulatedEndIsToldAtOnce: the lease is found to have ended while the hub is busy, or while a
// renewal opens its stream. News does not wait until everything that it has watched is given up.
func TestSimulatedEndIsToldAtOnce(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		ctx := ending(t, time.Minute)
		var told atomic.Bool
		go func() {
			if _, err := l.News(ctx); !isGone(err) {
				t.Errorf("seed 1: News = %v, want %v", err, driver.ErrGone)
			}
			told.Store(true)
		}()
		time.Sleep(time.Second)
		s.wire.Hub.Lock()
		done := make(chan struct{})
		go func() {
			l.end()
			close(done)
		}()
		for i := 0; i < 1e6 && !told.Load(); i++ {
			runtime.Gosched()
		}
		if !told.Load() {
			t.Error("seed 1: News has not returned")
		}
		s.wire.Hub.Unlock()
		<-done
	})
}
