package memstore_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/memstore"
)

// harness is a fresh storage. Its clients are one value, but for the one that can be cut off.
func harness() drivertest.Harness {
	s := memstore.New(memstore.Options{})
	return drivertest.Harness{
		Open:   func(testing.TB) driver.Store { return s },
		TTL:    10 * time.Second,
		Remove: func(_ testing.TB, name string, token uint64) { s.Remove(name, token) },
		Cut: func(testing.TB) (driver.Store, func(bool)) {
			f := drivertest.Faulty(s, drivertest.Faults{})
			return f, f.Hang
		},
	}
}

// inBubbles runs each clause in a bubble of its own, where time passes as soon as everybody waits
// for it.
func inBubbles(t *testing.T, faults *drivertest.Faults) {
	for _, c := range drivertest.Clauses() {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := harness()
				h.Faults = faults
				c.Check(t, h)
			})
		})
	}
}

func TestConformance(t *testing.T) { inBubbles(t, nil) }

func TestConformanceOverABadNetwork(t *testing.T) {
	for seed := range uint64(5) {
		inBubbles(t, &drivertest.Faults{Seed: seed, Delay: 5 * time.Millisecond, Drop: 0.1, Lose: 0.1})
	}
}
