package drivertest_test

import (
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/memstore"
)

// TestRun runs the suite in real time, as a store behind a network does.
func TestRun(t *testing.T) {
	s := memstore.New(memstore.Options{})
	drivertest.Run(t, drivertest.Harness{
		Open:   func(testing.TB) driver.Store { return s },
		TTL:    500 * time.Millisecond,
		Remove: func(_ testing.TB, name string, token uint64) { s.Remove(name, token) },
		Cut: func(testing.TB) (driver.Store, func(bool)) {
			f := drivertest.Faulty(s, drivertest.Faults{})
			return f, f.Hang
		},
	})
}
