package redisstore_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/redisstore"
)

// openAt opens a store, closed by whoever asked.
func openAt(t testing.TB, c redisstore.Config) *redisstore.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
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
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
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

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

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

// One of three masters has the slot, and pushes go through channels of the slot. There is no proxy
// before a cluster: its nodes say where they are.
func TestConformanceOnACluster(t *testing.T) {
	long(t)
	t.Parallel()
	nodes := redistest.StartCluster(t, 3, 1, redistest.Options{})
	h := harness(t, nodes[0], redisstore.Config{Cluster: true})
	h.Cut = nil
	drivertest.Run(t, h)
}

// rights are what docs/redis.md asks for.
const rights = "~{primacy}:* &{primacy}:* +@read +@write +@pubsub +@scripting +@connection +info +time -@dangerous +info"

func TestConformanceWithTLSAndRights(t *testing.T) {
	long(t)
	t.Parallel()
	cert := etcdtest.NewCert(t, time.Now().Add(time.Hour))
	srv := redistest.Start(t, redistest.Options{TLS: cert, User: "alice", Password: "secret:w@rd", Rights: rights})
	drivertest.Run(t, harness(t, srv, redisstore.Config{Username: "alice", Password: "secret:w@rd", TLS: cert.Client()}))
}

// The short form of the two: a hand-over by a push, a request, an observer and a journal.
func TestAClusterAndRights(t *testing.T) {
	t.Parallel()
	cert := etcdtest.NewCert(t, time.Now().Add(time.Hour))
	srv := redistest.Start(t, redistest.Options{TLS: cert, User: "alice", Password: "secret:w@rd", Rights: rights})
	nodes := redistest.StartCluster(t, 2, 0, redistest.Options{User: "alice", Password: "secret:w@rd", Rights: rights + " +cluster|slots"})
	for _, c := range []redisstore.Config{
		{Addrs: []string{srv.Addr()}, Username: "alice", Password: "secret:w@rd", TLS: cert.Client()},
		{Addrs: []string{nodes[0].Addr()}, Username: "alice", Password: "secret:w@rd", Cluster: true},
	} {
		s := openAt(t, c)
		t.Cleanup(func() { s.Close() })
		a, b := grant(t, s, time.Minute), grant(t, s, time.Minute)
		p, q := enter(t, a, "n", "1"), enter(t, b, "n", "2")
		ln, err := s.Line(t.Context(), "n")
		if err == nil {
			err = s.Ask(t.Context(), "n", driver.Request{Token: p.Token, By: "x"})
		}
		if news, nerr := a.News(soon(t)); err != nil || nerr != nil || !p.Held || q.Held || news[0].Request == nil {
			t.Fatalf("a request = %+v, %v, %v", news, nerr, err)
		}
		seen := make(chan error, 1)
		go func() { _, err := s.Next(soon(t), "n", ln.Revision); seen <- err }()
		p.Record, p.Journal = &driver.Record{Key: "k"}, "j"
		if err := a.Release(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if q, err := drivertest.Await(soon(t), b, q); err != nil {
			t.Errorf("Wait = %v", err)
		} else if err := b.Release(t.Context(), q); err != nil {
			t.Error(err)
		}
		if err := <-seen; err != nil {
			t.Errorf("Next = %v", err)
		}
		if all, err := s.Records(t.Context(), "j", "", 1); err != nil || len(all) != 1 {
			t.Errorf("Records = %d, %v", len(all), err)
		}
		if err := b.Renew(t.Context()); err != nil {
			t.Errorf("Renew = %v", err)
		}
		pushed(t, s, fmt.Sprint("cluster ", c.Cluster))
	}
}
