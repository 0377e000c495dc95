package etcdstore_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdsim"
	"github.com/primacy-go/primacy/internal/servertest"
)

// simStore returns a store on a cluster in memory. It speaks to it as the client of that number,
// which faults are aimed at.
func simStore(t testing.TB, c *etcdsim.Cluster, client int) *etcdstore.Store {
	return simStoreAt(t, c, client, c.Endpoints())
}

func simStoreAt(t testing.TB, c *etcdsim.Cluster, client int, endpoints []string) *etcdstore.Store {
	t.Helper()
	return simStoreOn(t, simClient(t, c, client, endpoints))
}

func simClient(t testing.TB, c *etcdsim.Cluster, client int, endpoints []string) *clientv3.Client {
	t.Helper()
	cl, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(),
		DialKeepAliveTime: 6 * time.Second, DialKeepAliveTimeout: 3 * time.Second, DialOptions: []grpc.DialOption{c.Dialer(client)}})
	if err != nil {
		t.Fatalf("client: %v", err)
	}
	t.Cleanup(func() { _ = cl.Close() })
	return cl
}

func simStoreOn(t testing.TB, cl *clientv3.Client) *etcdstore.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s, err := etcdstore.New(ctx, cl, etcdstore.Options{})
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return s
}

// TestConformanceOfHeartbeats: a session with a heartbeat keeps every clause that another keeps.
func TestConformanceOfHeartbeats(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	for _, clause := range drivertest.Clauses() {
		t.Run(clause.Name, func(t *testing.T) {
			inCluster(t, 1, 0, func(t *testing.T, c *etcdsim.Cluster) {
				h := simHarness(c)
				h.TTL = time.Second
				clause.Check(t, h)
			})
		})
	}
}

// TestConformanceInMemory holds the simulated cluster to what real etcd does, as far as the suite
// looks: the same clauses pass on both. Each runs in a bubble of its own.
func TestConformanceInMemory(t *testing.T) {
	t.Parallel()
	for _, clause := range drivertest.Clauses() {
		t.Run(clause.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := etcdsim.Start(etcdsim.Options{})
				t.Cleanup(func() {
					c.Heal()
					c.Close()
					synctest.Wait()
				})
				time.Sleep(5 * time.Second) // until it has a leader
				clause.Check(t, simHarness(c))
			})
		})
	}
}

func simHarness(c *etcdsim.Cluster) drivertest.Harness {
	clients := 0
	return drivertest.Harness{
		Open: func(t testing.TB) driver.Store {
			clients++
			return simStore(t, c, clients)
		},
		TTL: 2 * time.Second,
		Remove: func(t testing.TB, _ string, token uint64) {
			for _, kv := range c.Keys("primacy/") {
				if kv.CreateRevision == int64(token) {
					if err := c.Delete(soon(t), string(kv.Key), kv.CreateRevision); err != nil {
						t.Fatal(err)
					}
					return
				}
			}
			t.Fatalf("no key has the create revision %d", token)
		},
		Cut: func(t testing.TB) (driver.Store, func(bool)) {
			clients++
			at := clients
			return simStore(t, c, at), func(on bool) {
				for m := range c.Endpoints() {
					c.Hold(at, m, true, on)
					c.Hold(at, m, false, on)
				}
			}
		},
		Restart: func(testing.TB) {
			for m := range c.Endpoints() {
				c.Crash(m)
			}
			time.Sleep(time.Second)
			c.Heal()
			time.Sleep(4 * time.Second)
		},
	}
}
