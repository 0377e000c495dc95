package etcdstore_test

import (
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdsim"
)

// TestSimulatedSnapshot: of five members, etcd's leader is frozen and another one is, which falls
// far behind. That one wakes up, catches up by a snapshot under a leader of a later raft term,
// and a session that knows no other member renews there: the first thing that it applies as an
// entry. Then the former leader wakes up and ends the lease as it knew it. A renewal that was
// accepted must hold all the same.
func TestSimulatedSnapshot(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	var sum etcdsim.Stats
	for seed := range uint64(100) {
		inClusterOf(t, etcdsim.Options{Members: 5, Seed: seed * 7919, Keep: 6}, func(t *testing.T, c *etcdsim.Cluster) {
			lead := c.Leader()
			behind := (lead + 1) % 5
			s := simStoreAt(t, c, 0, c.Endpoints()[behind:behind+1])
			defer s.Close()
			l := grant(t, s, "a", ttl)
			p := claim(t, l, "x")
			untilRenewed(t, l)
			renewed := time.Now()
			c.Freeze(behind)
			c.Freeze(lead)
			time.Sleep(3 * time.Second) // until another member leads
			for range 10 {
				_ = c.Revoke(soon(t), 1) // there is no such lease, but the log has the request
			}
			time.Sleep(200 * time.Millisecond) // until all are carried out: the snapshot has them
			c.Thaw(behind)
			time.Sleep(200 * time.Millisecond) // until the leader has sent it
			untilRenewed(t, l)
			last := time.Now()
			time.Sleep(time.Until(renewed.Add(ttl + 100*time.Millisecond)))
			c.Thaw(lead)
			time.Sleep(time.Second)
			if keys := c.Keys("primacy/x/"); time.Since(last) < ttl && (len(keys) != 1 ||
				keys[0].CreateRevision != int64(p.Token)) {
				t.Fatalf("seed %d: the claim is gone %v after a renewal that promised %v", seed+1, time.Since(last),
					ttl)
			}
			untilRenewed(t, l)
			sum.Snapshots += c.Stats().Snapshots
			sum.StaleRevokes += c.Stats().StaleRevokes
		})
	}
	t.Logf("%d snapshots, %d leases ended by a leader that had been deposed", sum.Snapshots, sum.StaleRevokes)
	if !t.Failed() && (sum.Snapshots < 100 || sum.StaleRevokes == 0) {
		t.Error("the fault is too weak for this test to show anything")
	}
}
