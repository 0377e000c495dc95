package etcdstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdsim"
)

// TestSimulatedSilentMember: a member that says nothing costs one attempt, and what is left behind of it ends with the store.
func TestSimulatedSilentMember(t *testing.T) {
	inCluster(t, 1, 0, func(t *testing.T, c *etcdsim.Cluster) {
		s := simStore(t, c, 0)
		defer s.Close() // the bubble ends only when every goroutine has, and time stands still by then
		l := grant(t, s, "a", 10*time.Second)
		for m := range c.Endpoints()[:2] {
			c.Hold(0, m, true, true)
		}
		failed := 0
		for ; failed < 5; failed++ {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			err := l.Renew(ctx)
			cancel()
			if err == nil {
				break
			}
		}
		if failed != 2 {
			t.Errorf("%d attempts failed with two silent members, want one at each", failed)
		}
	})
}
