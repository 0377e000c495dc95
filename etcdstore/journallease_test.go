package etcdstore

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// appended appends a record that is not there.
func appended(t *testing.T, s *Store, journal, key string) {
	t.Helper()
	if _, added, err := s.Append(ending(t, 10*time.Second), journal, driver.Record{Key: key, Value: []byte("v")},
		100); err != nil || !added {
		t.Fatalf("seed 1: Append = %v, %v, want it added", added, err)
	}
	synctest.Wait()
}

// leaseGrant grants a lease of that ID, as another program may.
func leaseGrant(t *testing.T, c *etcdsim.Cluster, id, ttl int64) {
	t.Helper()
	conn := simClient(t, c, 9, c.Endpoints()).ActiveConnection()
	if _, err := pb.NewLeaseClient(conn).LeaseGrant(ending(t, 5*time.Second), &pb.LeaseGrantRequest{ID: id,
		TTL: ttl}); err != nil {
		t.Fatal(err)
	}
}

// TestSimulatedShelfIsShared: all who write into a journal in a month hang their records on one
// lease, which lives for 430 days, and another one than those of another month, user or prefix.
func TestSimulatedShelfIsShared(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		a, _ := gatedAt(t, c, 0, 0)
		b, _ := gatedAt(t, c, 1, 1)
		appended(t, a, "j", "1")
		appended(t, b, "j", "2")
		shard := a.journal.leases.shardOf("j")
		ids := map[int64]bool{a.journal.leases.leaseID(shard, 0): true}
		for _, kv := range c.Keys("primacy/" + journals) {
			if !ids[kv.Lease] {
				t.Errorf("seed 1: %s hangs on lease %x, want %x", kv.Key, kv.Lease, a.journal.leases.leaseID(shard, 0))
			}
		}
		left, ours, err := b.journal.leases.leaseLeft(ending(t, time.Second), "test",
			a.journal.leases.leaseID(shard, 0))
		if err != nil || !ours || left < 429*24*time.Hour || left > 430*24*time.Hour {
			t.Errorf("seed 1: the lease lives for %v more, ours %v, %v", left, ours, err)
		}
		other := build(a.wire.Client(), Options{Prefix: "other/"})
		leases, next, beside := a.journal.leases, shard, shard
		next.month++
		beside.number++
		for _, id := range []int64{leases.leaseID(shard, 1), leases.leaseID(next, 0), leases.leaseID(beside, 0),
			other.journal.leases.leaseID(shard, 0)} {
			if ids[id] || id <= 0 {
				t.Errorf("seed 1: ID %x is used twice, or none", id)
			}
			ids[id] = true
		}
	})
}

// TestSimulatedShelfOfSomebodyElse: another program's lease has the ID. Nothing is put on it;
// where it has all of them, records have none.
func TestSimulatedShelfOfSomebodyElse(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		shard, next := s.journal.leases.shardOf("j"), s.journal.leases.shardOf("k")
		leaseGrant(t, c, s.journal.leases.leaseID(shard, 0), 60)
		for try := range otherIDs {
			leaseGrant(t, c, s.journal.leases.leaseID(next, try), int64((recordTTL-time.Hour)/time.Second))
		}
		appended(t, s, "j", "1")
		if kv := only(t, c, s.journalDir("j")); kv.Lease != s.journal.leases.leaseID(shard, 1) {
			t.Errorf("seed 1: the record hangs on lease %x, want %x", kv.Lease, s.journal.leases.leaseID(shard, 1))
		}
		appended(t, s, "k", "1")
		if kv := only(t, c, s.journalDir("k")); kv.Lease != 0 {
			t.Errorf("seed 1: the record hangs on lease %x, want none", kv.Lease)
		}
	})
}

// TestSimulatedShelfThatCannotBeHad: leases are not granted. Records are kept without, no release
// waits for long, and it is not asked for each.
func TestSimulatedShelfThatCannotBeHad(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", 5*time.Minute)
		p, q := claimed(t, l, "x"), claimed(t, l, "y")
		var asked atomic.Int64
		g.set(func() {
			g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				if r, ok := req.(*pb.LeaseGrantRequest); ok && r.ID != 0 {
					asked.Add(1)
					<-ctx.Done()
					return status.Error(codes.DeadlineExceeded, "silent")
				}
				return do(ctx)
			}
		})
		begun := time.Now()
		if err := l.Release(ending(t, 10*time.Second), leaving(p, "j", "1", "v")); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > recordWait+100*time.Millisecond {
			t.Errorf("seed 1: a release took %v", took)
		}
		time.Sleep(2 * etcdwire.CallLimit)
		before := asked.Load()
		begun = time.Now()
		if err := l.Release(ending(t, 10*time.Second), leaving(q, "j", "2", "v")); err != nil {
			t.Fatal(err)
		}
		appended(t, s, "j", "3")
		if took := time.Since(begun); took > 100*time.Millisecond || asked.Load() > before {
			t.Errorf("seed 1: a release and an append took %v, and asked %d times for a lease", took,
				asked.Load()-before)
		}
		mustKeep(t, c, "j/1=v", "j/2=v", "j/3=v")
		g.set(func() { g.instead = nil })
		time.Sleep(grantPause)
		appended(t, s, "j", "4")
		if kv := only(t, c,
			s.journalDir("j")+"4"); kv.Lease != s.journal.leases.leaseID(s.journal.leases.shardOf("j"), 0) {
			t.Errorf("seed 1: the record hangs on lease %x, want one for records", kv.Lease)
		}
	})
}

// TestSimulatedOldShelvesGo: who comes first in a month ends what is older than 400 days; but not
// where hardly anybody was there for so long, which may be a clock that is far ahead, also over
// the end of its month.
func TestSimulatedOldShelvesGo(t *testing.T) {
	for _, c := range []struct{ visits, left []int }{
		{[]int{0, 1, 2, 3, 4, 14}, []int{0, 1, 2, 3, 4, 14}},
		{[]int{0, 1, 5, 9, 14, 15}, []int{1, 5, 9, 14, 15}},
		{[]int{0, 1, 2, 5, 9, 14, 16}, []int{2, 5, 9, 14, 16}},
		{[]int{0, 20}, []int{0, 20}},
		{[]int{0, 20, 21, 22, 23}, []int{0, 20, 21, 22, 23}},
		{[]int{0, 20, 21, 22, 23, 24}, []int{20, 21, 22, 23, 24}},
		{[]int{0, 12, 27}, []int{0, 12, 27}},
	} {
		t.Run(fmt.Sprint(c.visits), func(t *testing.T) {
			simulated(t, func(t *testing.T, cluster *etcdsim.Cluster) {
				for _, m := range c.visits {
					s, _ := gatedAt(t, cluster, 0, 0)
					s.journal.leases.now = func() time.Time { return time.Now().Add(time.Duration(m) * month) }
					appended(t, s, "j", fmt.Sprintf("%02d", m))
					time.Sleep(time.Second) // the clearing has no caller who waits
				}
				var want []string
				for _, m := range c.left {
					want = append(want, fmt.Sprintf("j/%02d=v", m))
				}
				mustKeep(t, cluster, want...)
			})
		})
	}
}

// TestSimulatedShelfWhereEtcdAsksForAUser: at each put on a lease etcd would look at all its
// keys. So records have none, and it is not asked each time.
func TestSimulatedShelfWhereEtcdAsksForAUser(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		p := leaving(claimed(t, l, "x"), "j", "2", "v")
		asked := 0
		refuse(g, func(req any) bool {
			_, ok := req.(*pb.AuthStatusRequest)
			if ok {
				asked++
			}
			return ok
		}, rpctypes.ErrGRPCPermissionDenied)
		appended(t, s, "j", "1")
		if err := l.Release(ending(t, 5*time.Second), p); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * grantPause)
		appended(t, s, "j", "3")
		mustKeep(t, c, "j/1=v", "j/2=v", "j/3=v")
		for _, kv := range c.Keys("primacy/" + journals) {
			if kv.Lease != 0 {
				t.Errorf("seed 1: %s hangs on lease %x", kv.Key, kv.Lease)
			}
		}
		if asked != 1 {
			t.Errorf("seed 1: etcd was asked %d times whether it asks for a user, want once", asked)
		}
	})
}

// TestSimulatedManyReleasesWithoutShelves: no leases for records are granted, and there are many
// to ask for. All releases together wait for them once.
func TestSimulatedManyReleasesWithoutShelves(t *testing.T) {
	t.Parallel()
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", 5*time.Minute)
		const many = 3 * maxParallel
		var claims []driver.Claim
		for i := range many {
			claims = append(claims, driver.Claim{Name: fmt.Sprint("x", i), ID: fmt.Sprint(i)})
		}
		places, err := l.Claim(ending(t, 20*time.Second), claims...)
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range places {
			places[i] = leaving(p, p.Name, "k", "v")
		}
		g.set(func() {
			g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				if r, ok := req.(*pb.LeaseGrantRequest); ok && r.ID != 0 {
					<-ctx.Done()
					return status.Error(codes.DeadlineExceeded, "silent")
				}
				return do(ctx)
			}
		})
		begun := time.Now()
		if err := l.Release(ending(t, 20*time.Second), places...); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > recordWait+200*time.Millisecond {
			t.Errorf("seed 1: %d releases took %v", many, took)
		}
		if n := len(recordsIn(c)); n != many {
			t.Errorf("seed 1: %d records are kept, want %d", n, many)
		}
	})
}
