package safety

import (
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// WatchStalls measures for how long this machine lets a goroutine wait that wants to run, which
// tries that every so often. It returns what ends it, and tells the longest wait and all together.
func WatchStalls(every time.Duration) func() (most, sum time.Duration) {
	stop, done := make(chan struct{}), make(chan struct{})
	var most, sum time.Duration
	go func() {
		defer close(done)
		for {
			before := boottime.Now()
			select {
			case <-stop:
				return
			case <-time.After(every):
				late := max(0, boottime.Now()-before-every) // in a bubble of testing/synctest no time passes
				most, sum = max(most, late), sum+late
			}
		}
	}()
	return func() (time.Duration, time.Duration) { close(stop); <-done; return most, sum }
}
