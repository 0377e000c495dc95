package concurrency

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	v3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/internal/etcdsim"
)

// moves reports whether a request attaches claims to another lease.
func moves(req any) bool {
	t, ok := req.(*pb.TxnRequest)
	if !ok || len(t.Success) == 0 {
		return false
	}
	inner := t.Success[0].GetRequestTxn()
	return inner != nil && len(inner.Success) > 0 && inner.Success[0].GetRequestPut().GetIgnoreValue()
}

// TestAMoveOfMoreThanOneRenewalCanEnds: etcd's leader has changed, and no renewal has the time to
// move all claims of the session, or to hear of a single move. Each must go on where the one before
// had to stop.
func TestAMoveOfMoreThanOneRenewalCanEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		claims int
		ops    int           // that etcd allows in a Txn
		slow   time.Duration // how long the answer to a move takes
	}{
		{"many moves", 40, 7, 300 * time.Millisecond},          // eight
		{"no answer in time", 400, 0, 1100 * time.Millisecond}, // a renewal has a second
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { moveSlowly(t, c.claims, c.ops, c.slow) })
		})
	}
}

func moveSlowly(t *testing.T, n, ops int, slow time.Duration) {
	c := etcdsim.Start(etcdsim.Options{Seed: 1, TxnOps: ops})
	t.Cleanup(func() { c.Heal(); c.Close(); synctest.Wait() })
	time.Sleep(5 * time.Second)
	var slowly atomic.Bool
	begun := time.Now()
	answer := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, do grpc.UnaryInvoker,
		o ...grpc.CallOption,
	) error {
		if !slowly.Load() || !moves(req) {
			return do(ctx, method, req, reply, cc, o...)
		}
		err := do(context.WithoutCancel(ctx), method, req, reply, cc, o...) // etcd carries it out
		select {
		case <-time.After(slow):
			return err
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	client, err := v3.New(v3.Config{Endpoints: c.Endpoints(), Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{c.Dialer(0), grpc.WithChainUnaryInterceptor(answer)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	s, err := newSession(client, func() time.Duration { return time.Hour + time.Since(begun) },
		[]SessionOption{WithTTL(10)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range n {
		if err := NewMutex(s, fmt.Sprint("moved/", i)).Lock(ctx); err != nil {
			t.Fatal(err)
		}
	}
	slowly.Store(true)
	for !c.MoveLeader((c.Leader() + 1) % 3) {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(time.Minute)
	if err := s.Check(); err != nil {
		t.Fatalf("seed 1: a minute after etcd's leader changed the session is lost: %v", err)
	}
	kvs := c.Keys("moved/")
	for _, kv := range kvs {
		if on, want := v3.LeaseID(kv.Lease), s.leases.current().id; on != want || on == s.id {
			t.Errorf("seed 1: %s is attached to lease %x, want the guard %x", kv.Key, on, want)
		}
	}
	if len(kvs) != n {
		t.Errorf("seed 1: %d claims stand, want %d", len(kvs), n)
	}
}
