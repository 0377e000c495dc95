package concurrency

import (
	"context"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	v3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy/internal/boottime"
)

// TestAWatchEndsWhereEnteringFindsTheClaimGoneAsTheSessionEnds: the watcher has found a claim gone
// and is about to end the session, as a Lock finds the same. Whichever takes the claim out of the
// table, its watch ends: the client, with which it would end otherwise, lives as long as the
// program.
func TestAWatchEndsWhereEnteringFindsTheClaimGoneAsTheSessionEnds(t *testing.T) {
	t.Parallel()
	s := &Session{state: lost} // by another goroutine, which has not come to the watches yet
	s.claims = &claims{s: s, by: map[string]*claim{}, givenUp: map[string]map[int64]bool{}}
	s.removals = &removals{s: s}
	ended := make(chan struct{}, 2)
	c := &claim{key: "k", rev: 7, unwatch: func() { ended <- struct{}{} }}
	s.claims.by["k"] = c

	s.removals.replaced(c, 1, &v3.TxnResponse{Header: &pb.ResponseHeader{Revision: 9}}, false)
	for _, stop := range s.claims.close() { // the other goroutine goes on
		stop()
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the watch on the claim goes on")
	}
}

// TestOrphanPutsBackAClaimWhoseLeaseIsMistaken: a read that was under way while a claim was moved
// shows it under the lease that it was attached to before. It is attached to the guard, which
// Orphan revokes.
func TestOrphanPutsBackAClaimWhoseLeaseIsMistaken(t *testing.T) {
	t.Parallel()
	client, err := v3.New(v3.Config{Endpoints: []string{SharedServer(t).Endpoint()},
		Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	lease, err := client.Grant(ctx, 60) // long: no renewal mends what follows
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSession(client, boottime.Now, []SessionOption{WithLease(lease.ID)})
	if err != nil {
		t.Fatal(err)
	}
	a, b := NewMutex(s, "a"), NewMutex(s, "b") // two: where no claim is to be moved, no guard is revoked
	for _, m := range []*Mutex{a, b} {
		if err := m.Lock(ctx); err != nil {
			t.Fatal(err)
		}
	}
	key := a.Key()
	s.claims.mu.Lock()
	s.claims.by[key].lease = lease.ID // what compare makes of such an answer
	s.claims.mu.Unlock()
	s.Orphan()
	for _, m := range []*Mutex{a, b} {
		resp, err := client.Get(ctx, m.Key())
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Kvs) != 1 || v3.LeaseID(resp.Kvs[0].Lease) != lease.ID {
			t.Errorf("%s is not attached to the session's lease: %v", m.Key(), resp.Kvs)
		}
	}
}
