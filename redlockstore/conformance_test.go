package redlockstore_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/redlockstore"
)

// fleet is n independent servers. That they were just started is known to lose nothing, so the
// guard is off unless a test is about it.
func fleet(t testing.TB, n int) ([]*redistest.Server, redlockstore.Config) {
	t.Helper()
	all := make([]*redistest.Server, n)
	c := redlockstore.Config{MaxTTL: time.Minute, Guard: -1}
	for i := range all {
		all[i] = redistest.Start(t, redistest.Options{})
		c.Addrs = append(c.Addrs, all[i].Addr())
	}
	return all, c
}

// open returns a client, closed with the test.
func open(t testing.TB, c redlockstore.Config) *redlockstore.Store {
	t.Helper()
	s := bare(t, c)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func bare(t testing.TB, c redlockstore.Config) *redlockstore.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := redlockstore.Open(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// behindProxies returns a client of its own ways to the servers, and a switch that cuts them all.
func behindProxies(t testing.TB, c redlockstore.Config) (driver.Store, func(bool)) {
	var all []*drivertest.Proxy
	addrs := c.Addrs
	c.Addrs = nil
	for _, a := range addrs {
		p := drivertest.NewProxy(t, a)
		all = append(all, p)
		c.Addrs = append(c.Addrs, p.Addr)
	}
	return bare(t, c), func(cut bool) {
		for _, p := range all {
			p.Cut(cut)
		}
	}
}

func harness(servers []*redistest.Server, c redlockstore.Config) drivertest.Harness {
	h := drivertest.Harness{
		Open: func(t testing.TB) driver.Store { return bare(t, c) },
		TTL:  2 * time.Second,
		Remove: func(t testing.TB, name string, _ uint64) {
			key := "primacy:lock:" + name
			if c.Plain {
				key = name
			}
			for _, s := range servers {
				s.Do("DEL", key)
			}
		},
		Cut: func(t testing.TB) (driver.Store, func(bool)) { return behindProxies(t, c) },
		Restart: func(t testing.TB) {
			var all sync.WaitGroup
			for _, s := range servers {
				all.Go(s.Restart)
			}
			all.Wait()
		},
	}
	if testing.Short() { // beside all other tests a majority may not answer within a call's limit
		h.Faults = &drivertest.Faults{}
	}
	return h
}

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

func TestConformance(t *testing.T) {
	t.Parallel()
	sizes := []int{3, 5}
	if testing.Short() {
		sizes = sizes[:1] // make verify has the other one
	}
	for _, n := range sizes {
		t.Run(fmt.Sprintf("quorum of %d", n), func(t *testing.T) {
			t.Parallel()
			servers, c := fleet(t, n)
			drivertest.Run(t, harness(servers, c))
		})
	}
}

func TestConformanceOfPlainKeys(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 1)
	c.Plain = true
	drivertest.Run(t, harness(servers, c))
}
