package doctor

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// deaf is a store whose every answer is lost.
type deaf struct{ driver.Store }

func (deaf) Grant(ctx context.Context, _ string, _ time.Duration) (driver.Lease, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (deaf) Line(ctx context.Context, _ string) (driver.Line, error) {
	<-ctx.Done()
	return driver.Line{}, ctx.Err()
}

func TestASilentStoreIsAFailureInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		begun := time.Now()
		r := Examine(ctx, deaf{memstore.New(memstore.Options{})},
			Options{Name: "n", TTL: 10 * time.Second, Drift: 0.1, Window: 6 * time.Second, Tries: 5})
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("it took %v", took)
		}
		if r.Count(driver.Failed) == 0 || !hasTopic(r, "time") {
			t.Errorf("%+v", r.Checks)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begun := time.Now()
		Examine(ctx, deaf{memstore.New(memstore.Options{})},
			Options{TTL: 10 * time.Second, Drift: 0.1, Window: 6 * time.Second, Tries: 5})
		if took := time.Since(begun); took > 7*time.Second {
			t.Errorf("interrupted after a second, it went on for %v", took-time.Second)
		}
	})
}
