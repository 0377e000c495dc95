package filereg

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/registerstore"
)

func TestConformance(t *testing.T) { conform(t, memory(t), nil) }

func TestConformanceWithFaults(t *testing.T) {
	conform(t, memory(t), &drivertest.Faults{Delay: 5 * time.Millisecond, Drop: 0.1, Lose: 0.1})
}

func conform(t *testing.T, dir string, f *drivertest.Faults) {
	t.Parallel()
	open := func(t testing.TB) driver.Store {
		s, err := Open(dir, registerstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	drivertest.Run(t, drivertest.Harness{
		Open:   open,
		TTL:    2 * time.Second,
		Faults: f,
		Remove: func(t testing.TB, name string, token uint64) {
			s := open(t)
			defer s.Close()
			if err := s.(driver.Admin).RemoveClaim(context.Background(), name, token); err != nil {
				t.Fatal(err)
			}
		},
		Cut: func(t testing.TB) (driver.Store, func(bool)) {
			s := drivertest.Faulty(open(t), drivertest.Faults{})
			return s, s.Hang
		},
	})
}

// memory returns a directory whose syncs cost nothing, if there is one: on the disk of a busy machine the suites take some
// times as long, and the other tests are there.
func memory(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "filereg")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func open(t testing.TB, dir string) *Register {
	t.Helper()
	r, err := New(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
