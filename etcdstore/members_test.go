package etcdstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

// failures counts renewals until one succeeds, five at most.
func failures(l driver.Lease) (n int) {
	for ; n < 5; n++ {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := l.Renew(ctx)
		cancel()
		if err == nil {
			break
		}
	}
	return n
}

// TestSimulatedSilentMember: a member that says nothing costs one attempt. A connection to it
// that was left behind ends with the store at the latest.
func TestSimulatedSilentMember(t *testing.T) {
	inCluster(t, 1, 0, func(t *testing.T, c *etcdsim.Cluster) {
		cl := simClient(t, c, 0, c.Endpoints())
		time.Sleep(time.Second)
		own := c.Connections() // the client's, which etcd's package before 3.7 makes at once: they end with the client
		s := simStoreOn(t, cl)
		defer s.Close()
		l := grant(t, s, "a", 20*time.Second)
		c.Hold(0, 0, true, true)
		c.Hold(0, 1, true, true)
		if n := failures(l); n != 2 {
			t.Errorf("%d attempts failed with two silent members, want one at each", n)
		}
		c.Hold(0, 0, true, false)
		c.Hold(0, 2, true, true)
		if n := failures(l); n != 1 {
			t.Errorf("%d attempts failed at a silent member, want one", n)
		}
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		c.Heal()
		time.Sleep(100 * time.Millisecond) // the members close too
		if n := c.Connections(); n > own {
			t.Errorf("%d connections stand after Close, and %d before the store was made", n, own)
		}
	})
}
