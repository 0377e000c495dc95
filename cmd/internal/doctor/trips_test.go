package doctor

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// A call for which a session with that ttl has the time is measured, and has not failed.
func TestACallThatTakesLongIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for ttl, failed := range map[time.Duration]bool{2 * time.Minute: false, 10 * time.Second: true} {
			p := &examination{o: Options{TTL: ttl, Tries: 1}}
			c := p.trip(t.Context(), "read", func(ctx context.Context) error {
				select {
				case <-time.After(4 * time.Second):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			if (c.Level == driver.Failed) != failed {
				t.Errorf("with a ttl of %v: %+v", ttl, c)
			}
		}
	})
}
