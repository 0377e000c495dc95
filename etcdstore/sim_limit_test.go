package etcdstore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// underLimit gives do a session of 40 claims at a server with a small --max-txn-ops. It has been
// renewed.
func underLimit(t *testing.T, ops int, do func(t *testing.T, c *etcdsim.Cluster, s *Store, g *gate, l *lease)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := etcdsim.Start(etcdsim.Options{Seed: 1, TxnOps: ops})
		t.Cleanup(func() { c.Heal(); c.Close(); synctest.Wait() })
		time.Sleep(5 * time.Second)
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", 5*time.Minute)
		var claims []driver.Claim
		for i := range 40 {
			claims = append(claims, driver.Claim{Name: fmt.Sprint("x", i), ID: fmt.Sprint(i)})
		}
		if _, err := l.Claim(ending(t, 20*time.Second), claims...); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()                      // what sends batches reads the limit to its end
		l.s.wire.Limit = etcdwire.OpsLimit{} // as if they had entered one by one
		if err := renewedOnce(t, l); err != nil {
			t.Fatal(err)
		}
		do(t, c, s, g, l)
	})
}

// TestSimulatedMoveUnderASmallLimit: all claims follow their session to the next raft term, in
// Txns that the server takes, and the next move begins with such.
func TestSimulatedMoveUnderASmallLimit(t *testing.T) {
	for _, ops := range []int{7, 16, 128} {
		t.Run(fmt.Sprint(ops), func(t *testing.T) {
			underLimit(t, ops, func(t *testing.T, c *etcdsim.Cluster, s *Store, g *gate, l *lease) {
				refused := 0
				g.set(func() {
					g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
						err := do(ctx)
						if etcdwire.TooMany(err) {
							refused++
						}
						return err
					}
				})
				for range 2 {
					changeLeader(c)
					if err := renewedOnce(t, l); err != nil {
						t.Fatalf("max-txn-ops %d: %v", ops, err)
					}
					for _, kv := range c.Keys("primacy/x") {
						if kv.Lease != l.attachment().lease {
							t.Errorf("%s hangs on lease %x, renewed is %x", kv.Key, kv.Lease, l.attachment().lease)
						}
					}
				}
				if refused > 4 {
					t.Errorf("%d requests were refused: the limit was not remembered", refused)
				}
			})
		})
	}
}

// TestSimulatedRevokeUnderASmallLimit: a session whose lease etcd does not know any more, though
// its keys stand on it, is swept, in Txns that the server takes. To end that lease again and
// again would never end.
func TestSimulatedRevokeUnderASmallLimit(t *testing.T) {
	for _, ops := range []int{7, 128} {
		t.Run(fmt.Sprint(ops), func(t *testing.T) {
			underLimit(t, ops, func(t *testing.T, c *etcdsim.Cluster, s *Store, g *gate, l *lease) {
				other := granted(t, s, "b", time.Minute)
				claimed(t, other, "y")
				revokes := 0
				g.set(func() {
					g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
						if _, ok := req.(*pb.LeaseRevokeRequest); ok {
							revokes++
							return rpctypes.ErrGRPCLeaseNotFound
						}
						return do(ctx)
					}
				})
				if err := s.Revoke(ending(t, 10*time.Second), l.ID()); err != nil {
					t.Fatalf("max-txn-ops %d: %v", ops, err)
				}
				for _, kv := range c.Keys("primacy/") {
					if strings.HasSuffix(string(kv.Key), "/"+l.ID()) {
						t.Fatalf("%s stands", kv.Key)
					}
				}
				if len(c.Keys("primacy/y/")) != 1 || revokes != 1 {
					t.Errorf("%d revocations; the claims of another: %d", revokes, len(c.Keys("primacy/y/")))
				}
			})
		})
	}
}
