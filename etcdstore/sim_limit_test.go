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

// narrow runs do with servers that take 7 operations in a Txn.
func narrow(t *testing.T, do func(t *testing.T, c *etcdsim.Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := etcdsim.Start(etcdsim.Options{Seed: 1, TxnOps: 7})
		t.Cleanup(func() { c.Heal(); c.Close(); synctest.Wait() })
		time.Sleep(5 * time.Second)
		do(t, c)
	})
}

// TestSimulatedLongLineUnderASmallLimit: of a line with more sessions than operations go in a Txn
// all is found out, and it is handed over from the first to the last.
func TestSimulatedLongLineUnderASmallLimit(t *testing.T) {
	narrow(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		const n = 30
		var leases []*lease
		var places []driver.Place
		var ids []string
		for range n {
			l := granted(t, s, "w", time.Minute)
			leases, places, ids = append(leases, l), append(places, claimed(t, l, "x")), append(ids, l.ID())
		}
		fresh, _ := gatedAt(t, c, 1, 1)
		ln, err := fresh.Line(ending(t, 10*time.Second), "x")
		if err != nil || len(ln.Waiters) != n-1 || ln.Waiters[n-2].Owner != "w" {
			t.Errorf("seed 1: Line = %d waiters, %v, want %d with their owner", len(ln.Waiters), err, n-1)
		}
		fresh.wire.Limit = etcdwire.OpsLimit{}
		if left, err := fresh.Remaining(ending(t, 10*time.Second), ids...); err != nil || len(left) != n {
			t.Errorf("seed 1: Remaining = %d of %d, %v", len(left), n, err)
		}
		s.wire.Limit = etcdwire.OpsLimit{}
		if err := leases[0].Transfer(ending(t, 10*time.Second), places[0], places[n-1].Token); err != nil {
			t.Errorf("seed 1: Transfer = %v", err)
		}
		if kv := only(t, c, "primacy/x/"); uint64(kv.CreateRevision) != places[n-1].Token {
			t.Errorf("seed 1: token %d stands, want %d alone", kv.CreateRevision, places[n-1].Token)
		}
	})
}

// TestSimulatedCrashUnderASmallLimit: a session with a heartbeat falls silent, and more claims of
// it are waited for than go in the Txn that ends it. Those who wait end it all the same, long
// before etcd's lease below it ends.
func TestSimulatedCrashUnderASmallLimit(t *testing.T) {
	narrow(t, func(t *testing.T, c *etcdsim.Cluster) {
		a, _ := gatedAt(t, c, 0, 0)
		b, _ := gatedAt(t, c, 1, 1)
		holder, waiter := granted(t, a, "a", time.Second), granted(t, b, "b", time.Minute)
		k := keep(t, holder)
		var places []driver.Place
		const n = 12
		for i := range n {
			name := fmt.Sprint("x", i)
			claimed(t, holder, name)
			places = append(places, claimed(t, waiter, name))
		}
		waiter.Follow(places...)
		time.Sleep(time.Second)
		b.wire.Limit = etcdwire.OpsLimit{}
		last := k.stop()
		ctx := ending(t, 20*time.Second)
		for held := 0; held < n; {
			news, err := waiter.News(ctx)
			if err != nil {
				t.Fatalf("seed 1: News = %v, after %d of %d hold", err, held, n)
			}
			for _, one := range news {
				if one.Held {
					held++
				}
			}
		}
		if took := time.Since(last); took > 3*time.Second {
			t.Errorf("seed 1: all hold %v after the holder fell silent, want 3 s at most", took)
		}
	})
}
