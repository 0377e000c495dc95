package k8sstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/k8stest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// harness tells the suite about a server.
func harness(srv *k8stest.Server) drivertest.Harness {
	return drivertest.Harness{
		Open: func(t testing.TB) driver.Store { return open(t, config(srv, srv.Addr)) },
		TTL:  4 * time.Second, // beside other tests a write takes a second and more
		Remove: func(t testing.TB, name string, token uint64) {
			if err := open(t, config(srv, srv.Addr)).RemoveClaim(context.Background(), name, token); err != nil {
				t.Fatal(err)
			}
		},
		Cut: func(t testing.TB) (driver.Store, func(bool)) {
			p := drivertest.NewProxy(t, srv.Addr)
			return open(t, config(srv, p.Addr)), p.Cut
		},
		Restart: func(testing.TB) { srv.Restart() },
	}
}

// TestConformance runs as the user who has the store's role and no other.
// With -short no test runs beside it, and it shares the server with those that run after it.
func TestConformance(t *testing.T) {
	if testing.Short() {
		drivertest.Run(t, harness(shared(t)))
		return
	}
	t.Parallel()
	drivertest.Run(t, harness(k8stest.Start(t)))
}

func TestConformanceOnTheFake(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("with -short TestConformance runs on one server, the real one if there is one; without it on both")
	}
	drivertest.Run(t, harness(k8stest.StartFake(t)))
}

func TestConformanceOverABadNetwork(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	h := harness(k8stest.Start(t))
	h.Faults = &drivertest.Faults{Seed: 1, Delay: 5 * time.Millisecond, Drop: 0.1, Lose: 0.1}
	drivertest.Run(t, h)
}
