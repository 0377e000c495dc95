package etcdstore_test

import (
	"context"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// openAt opens a store at endpoints, closed by whoever asked. It asks a server that is silent
// again: Open gives it up after two attempts of two seconds, and on a busy machine a server that
// stalls for longer would fail a test of something else.
func openAt(t testing.TB, c etcdstore.Config) *etcdstore.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		s, err := etcdstore.Open(ctx, c)
		if err == nil {
			return s
		}
		if ctx.Err() != nil || !strings.Contains(err.Error(), "no answer in time") {
			t.Fatalf("Open: %v", err)
		}
		t.Logf("Open, which is tried again: %v", err)
	}
}

// plainClient returns a client of etcd's own, closed at the end of the test.
func plainClient(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatalf("client: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// removeByHand deletes the key with that create revision.
func removeByHand(t testing.TB, c *clientv3.Client, token uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	resp, err := c.Get(ctx, "primacy/", clientv3.WithPrefix(),
		clientv3.WithMinCreateRev(int64(token)), clientv3.WithMaxCreateRev(int64(token)))
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("find the claim with token %d: %d keys, %v", token, len(resp.Kvs), err)
	}
	if _, err := c.Delete(ctx, string(resp.Kvs[0].Key)); err != nil {
		t.Fatal(err)
	}
}

// harness tells the suite about a server of its own.
func harness(t *testing.T, version string) drivertest.Harness {
	t.Helper()
	srv := etcdtest.Start(t, etcdtest.Options{Version: version})
	c := plainClient(t, srv.Endpoint())
	return drivertest.Harness{
		Open: func(t testing.TB) driver.Store {
			return openAt(t, etcdstore.Config{Endpoints: []string{srv.Endpoint()}})
		},
		TTL:    2 * time.Second,
		Remove: func(t testing.TB, _ string, token uint64) { removeByHand(t, c, token) },
		Cut: func(t testing.TB) (driver.Store, func(bool)) {
			p := etcdtest.NewProxy(t, srv.Addr())
			return openAt(t, etcdstore.Config{Endpoints: []string{p.Addr()}}), func(on bool) {
				if on {
					p.Hold()
				} else {
					p.Heal()
				}
			}
		},
		Restart: func(testing.TB) { srv.Restart() },
	}
}

func TestConformance(t *testing.T) {
	for _, version := range etcdtest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			h := harness(t, version)
			if testing.Short() { // beside all other tests a server may not answer within a call's limit
				h.Faults = &drivertest.Faults{}
			}
			drivertest.Run(t, h)
		})
	}
}

func TestConformanceOverABadNetwork(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	h := harness(t, etcdtest.Newest)
	h.Faults = &drivertest.Faults{Seed: 1, Delay: 5 * time.Millisecond, Drop: 0.1, Lose: 0.1}
	drivertest.Run(t, h)
}
