package pgstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/pgstore"
)

// open opens a store, which the caller closes.
func open(t testing.TB, c pgstore.Config) *pgstore.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := pgstore.Open(ctx, c)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return s
}

// opened is open, closed with the test.
func opened(t testing.TB, c pgstore.Config) *pgstore.Store {
	t.Helper()
	s := open(t, c)
	t.Cleanup(func() { s.Close() })
	return s
}

// harness tells the suite about a database of its own. Claims are removed by a plain DELETE, as in
// psql.
func harness(t *testing.T) drivertest.Harness {
	t.Helper()
	srv := server(t)
	few := func(addr string) pgstore.Config { return pgstore.Config{DSN: srv.URLAt(addr) + "&pool_max_conns=2"} }
	return drivertest.Harness{
		Open: func(t testing.TB) driver.Store {
			return open(t, few(srv.Addr()))
		},
		TTL: 2 * time.Second,
		Remove: func(_ testing.TB, _ string, token uint64) {
			srv.Exec(fmt.Sprintf("DELETE FROM primacy.claims WHERE token = %d", token))
		},
		Cut: func(t testing.TB) (driver.Store, func(bool)) {
			p := drivertest.NewProxy(t, srv.Addr())
			return open(t, few(p.Addr)), p.Cut
		},
		Restart: func(testing.TB) { srv.Alone(srv.Restart) },
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, harness(t))
}

func TestConformanceOverABadNetwork(t *testing.T) {
	long(t)
	t.Parallel()
	h := harness(t)
	h.Faults = &drivertest.Faults{Seed: 1, Delay: 5 * time.Millisecond, Drop: 0.1, Lose: 0.1}
	drivertest.Run(t, h)
}
