package health

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// Pulse says whether a loop of this process still runs.
type Pulse struct {
	limit time.Duration
	last  atomic.Int64 // on the boot clock
}

// NewPulse starts a loop that calls touch five times within limit until ctx ends. Touch takes the
// locks that everything else needs, so that one which is never given back stops the pulse.
func NewPulse(ctx context.Context, limit time.Duration, touch func()) *Pulse {
	p := &Pulse{limit: limit}
	p.last.Store(int64(boottime.Now()))
	go func() {
		tick := time.NewTicker(limit / 5)
		defer tick.Stop()
		for {
			touch()
			p.last.Store(int64(boottime.Now()))
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return p
}

// Alive says since when the loop has not run, if that is longer than the limit.
func (p *Pulse) Alive() error {
	if silent := boottime.Now() - time.Duration(p.last.Load()); silent > p.limit {
		return fmt.Errorf("the loop of this process has not run for %v", silent.Round(time.Millisecond))
	}
	return nil
}
