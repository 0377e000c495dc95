package etcdstore

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/internal/etcdsim"
)

// hung has requests of a kind wait until their callers give up.
func hung(g *gate, matches func(req any) bool) {
	g.set(func() {
		g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
			if matches(req) {
				<-ctx.Done()
				return status.Error(codes.DeadlineExceeded, "silent")
			}
			return do(ctx)
		}
	})
}

func isList(req any) bool {
	_, ok := req.(*pb.LeaseLeasesRequest)
	return ok
}

// othersShard returns a journal whose records are on another lease than those of j.
func othersShard(s *Store) string {
	for i := 0; ; i++ {
		if name := fmt.Sprint("k", i); s.journal.leases.shardOf(name) != s.journal.leases.shardOf("j") {
			return name
		}
	}
}

// TestSimulatedFirstShelfNeedsNoList: etcd tells of all leases at length, where there are tens of
// thousands. Who wants one only does not ask.
func TestSimulatedFirstShelfNeedsNoList(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		a, _ := gatedAt(t, c, 0, 0)
		k := othersShard(a)
		appended(t, a, "j", "1")
		appended(t, a, k, "1")
		b, g := gatedAt(t, c, 1, 1)
		n := countRequests(g)
		appended(t, b, "j", "2")
		if n["AuthStatusRequest"] != 1 || n["LeaseTimeToLiveRequest"] != 1 || n["LeaseLeasesRequest"] != 0 ||
			n["LeaseGrantRequest"] != 0 {
			t.Errorf("seed 1: for the first record: %v", n)
		}
		appended(t, b, k, "2")
		if n["AuthStatusRequest"] != 1 || n["LeaseTimeToLiveRequest"] != 2 || n["LeaseLeasesRequest"] != 1 ||
			n["LeaseGrantRequest"] != 0 {
			t.Errorf("seed 1: for records on two leases: %v", n)
		}
	})
}

// TestSimulatedListOfLeasesThatIsNotTold: then each lease is looked for, in time, and the member is
// not to blame.
func TestSimulatedListOfLeasesThatIsNotTold(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		k := othersShard(s)
		at, err := s.wire.Members.Current()
		if err != nil {
			t.Fatal(err)
		}
		hung(g, isList)
		begun := time.Now()
		appended(t, s, "j", "1")
		appended(t, s, k, "1")
		if took := time.Since(begun); took > listLimit+200*time.Millisecond {
			t.Errorf("seed 1: two records took %v", took)
		}
		if kv := only(t, c, s.journalDir(k)); kv.Lease != s.journal.leases.leaseID(s.journal.leases.shardOf(k), 0) {
			t.Errorf("seed 1: the record hangs on lease %x", kv.Lease)
		}
		if now, err := s.wire.Members.Current(); err != nil || now.Host() != at.Host() {
			t.Errorf("seed 1: the member is %s, %v, want still %s", now.Host(), err, at.Host())
		}
	})
}

// TestSimulatedSurveyThatFailed is made anew for the next record, and no answer to it. One that
// succeeded is forgotten when its time is over.
func TestSimulatedSurveyThatFailed(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		k := othersShard(s)
		refuse(g, func(req any) bool {
			_, ok := req.(*pb.AuthStatusRequest)
			return ok
		}, status.Error(codes.Unavailable, "no leader"))
		appended(t, s, "j", "1")
		if kv := only(t, c, s.journalDir("j")); kv.Lease != 0 {
			t.Errorf("seed 1: the record hangs on lease %x, want none", kv.Lease)
		}
		g.set(func() { g.instead = nil })
		appended(t, s, k, "1")
		if kv := only(t, c, s.journalDir(k)); kv.Lease == 0 {
			t.Error("seed 1: the record hangs on no lease")
		}
		time.Sleep(surveyLife)
		synctest.Wait()
		s.journal.leases.mu.Lock()
		defer s.journal.leases.mu.Unlock()
		if s.journal.leases.survey != nil {
			t.Error("seed 1: a survey is kept when its time is over")
		}
	})
}

// TestSimulatedOldShelvesOfMoreShardsGo: there were 256 shards once, and their leases end too.
func TestSimulatedOldShelvesOfMoreShardsGo(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		visit := func(m int64) *journalLeases {
			s, _ := gatedAt(t, c, 0, 0)
			s.journal.leases.now = func() time.Time { return time.Now().Add(time.Duration(m) * month) }
			appended(t, s, "j", fmt.Sprintf("%02d", m))
			time.Sleep(time.Second)
			return s.journal.leases
		}
		s, _ := gatedAt(t, c, 0, 0)
		leases, shard := s.journal.leases, s.journal.leases.shardOf("j")
		var old []int64
		for more := shards; int(shard.number)+more < 256; more += shards {
			id := leases.leaseID(recordShard{shard.month, shard.number + uint8(more)}, 0)
			leaseGrant(t, c, id, int64(recordTTL/time.Second))
			old = append(old, id)
		}
		if len(old) != 3 {
			t.Fatalf("%d leases, want 3", len(old))
		}
		for _, m := range []int64{20, 21, 22, 23, 24} {
			leases = visit(m)
		}
		for _, id := range old {
			if left, _, err := leases.leaseLeft(ending(t, 5*time.Second), "test", id); left != 0 || err != nil {
				t.Errorf("seed 1: lease %x lives for %v more, %v", id, left, err)
			}
		}
	})
}
