package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/drivertest"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/redisstore"
)

// openAt opens a store, closed by whoever asked.
func openAt(t testing.TB, c redisstore.Config) *redisstore.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s, err := redisstore.Open(ctx, c)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return s
}

// harness tells the suite about a server.
func harness(t *testing.T, srv *redistest.Server, c redisstore.Config) drivertest.Harness {
	t.Helper()
	c.Addrs = []string{srv.Addr()}
	hand := openAt(t, c)
	t.Cleanup(func() { hand.Close() })
	return drivertest.Harness{
		Open: func(t testing.TB) driver.Store { return openAt(t, c) },
		TTL:  2 * time.Second,
		Remove: func(t testing.TB, name string, token uint64) {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := hand.RemoveClaim(ctx, name, token); err != nil {
				t.Fatal(err)
			}
		},
		Cut: func(t testing.TB) (driver.Store, func(bool)) {
			p := drivertest.NewProxy(t, srv.Addr())
			far := c
			far.Addrs = []string{p.Addr}
			return openAt(t, far), p.Cut
		},
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{Persist: "always"})
	h := harness(t, srv, redisstore.Config{})
	h.Restart = func(testing.TB) {
		srv.Restart()
		srv.Age("primacy") // nothing was lost, and the largest ttl is longer than the suite's patience
	}
	drivertest.Run(t, h)
}

func TestConformanceOverABadNetwork(t *testing.T) {
	long(t)
	t.Parallel()
	h := harness(t, redistest.Start(t, redistest.Options{}), redisstore.Config{})
	h.Faults = &drivertest.Faults{Seed: 1, Delay: 5 * time.Millisecond, Drop: 0.1, Lose: 0.1}
	drivertest.Run(t, h)
}

// One of two nodes has the slot, and pushes go through channels of the slot. There is no proxy before a cluster: its nodes say where they are.
func TestConformanceOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 2, redistest.Options{})
	h := harness(t, nodes[0], redisstore.Config{Cluster: true})
	h.Cut = nil
	drivertest.Run(t, h)
}

// rights are what docs/redis.md asks for.
const rights = "~{primacy}:* &{primacy}:* +@read +@write +@pubsub +@scripting +@connection +info +time -@dangerous +info"

func TestConformanceWithTLSAndRights(t *testing.T) {
	t.Parallel()
	cert := etcdtest.NewCert(t, time.Now().Add(time.Hour))
	srv := redistest.Start(t, redistest.Options{TLS: cert, User: "alice", Password: "secret:w@rd", Rights: rights})
	drivertest.Run(t, harness(t, srv, redisstore.Config{Username: "alice", Password: "secret:w@rd", TLS: cert.Client()}))
}
