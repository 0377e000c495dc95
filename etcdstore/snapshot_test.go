package etcdstore_test

import (
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// A member that fell behind and caught up by a snapshot shows the new state under the raft term
// of the last log entry it applied itself. Taken at its word, a session there would go on under a
// lease of an earlier term, which the leader of that term may revoke.
func TestAMemberThatCaughtUpBySnapshot(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{Args: []string{"--snapshot-count=10",
		"--snapshot-catchup-entries=10"}})
	lead := cluster.WaitLeader()
	var behind, next *etcdtest.Server
	for _, m := range cluster.Members {
		switch {
		case m == lead:
		case behind == nil:
			behind = m
		default:
			next = m
		}
	}
	s := open(t, behind.Endpoint())
	l := grant(t, s, "pinned", time.Minute)
	first := leaseOf(t, cluster)
	p := claim(t, l, "held")
	if err := l.Renew(soon(t)); err != nil {
		t.Fatal(err)
	}
	behind.Stop()
	cluster.MoveLeader(next)
	c := plainClient(t, lead.Endpoint())
	for i := range 200 {
		if _, err := c.Put(soon(t), "x", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	behind.Cont()
	told := func(m *etcdtest.Server) uint64 {
		resp, err := plainClient(t, m.Endpoint()).Get(soon(t), "x")
		if err != nil {
			t.Fatal(err)
		}
		return resp.Header.RaftTerm
	}
	if old, now := told(behind), told(next); old >= now {
		t.Logf("the member that was behind tells raft term %d, the leader %d: this run does not show the fault", old,
			now)
	}
	deadline := time.Now().Add(20 * time.Second)
	for l.Renew(soon(t)) != nil {
		if time.Now().After(deadline) {
			t.Fatal("no renewal at the member that was behind")
		}
		time.Sleep(100 * time.Millisecond)
	}
	// What a leader of the first term does when it wakes up.
	if _, err := plainClient(t, next.Endpoint()).Revoke(soon(t), first); err != nil {
		t.Logf("revoke: %v", err)
	}
	if h := line(t, s, "held").Holder; h == nil || h.Token != p.Token {
		t.Errorf("the holder is %+v, want token %d: the renewal counted under a lease of an earlier raft term", h,
			p.Token)
	}
}

// leaseOf returns the only lease that the cluster has.
func leaseOf(t *testing.T, cluster *etcdtest.Cluster) clientv3.LeaseID {
	t.Helper()
	resp, err := plainClient(t, cluster.Members[0].Endpoint()).Leases(soon(t))
	if err != nil || len(resp.Leases) != 1 {
		t.Fatalf("the cluster has the leases %+v, want one: %v", resp, err)
	}
	return resp.Leases[0].ID
}
