package pgstore_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/pgstore"
)

const rounds = 40

// TestMeasure prints how long hand-overs and take-overs take, with PRIMACY_MEASURE=1.
func TestMeasure(t *testing.T) {
	if os.Getenv("PRIMACY_MEASURE") == "" {
		t.Skip("set PRIMACY_MEASURE=1")
	}
	srv := pgtest.Start(t, pgtest.Options{NoFsync: os.Getenv("PRIMACY_MEASURE") == "nofsync"})
	a, b := opened(t, pgstore.Config{DSN: srv.URL()}), opened(t, pgstore.Config{DSN: srv.URL()})
	for _, w := range a.Caps().Warnings {
		t.Log("warning: ", w)
	}
	quantiles := func(what string, all []time.Duration) {
		slices.Sort(all)
		t.Logf("%s: %d times, p10 %v, p50 %v, p90 %v, p99 %v, max %v", what, len(all), all[len(all)/10], all[len(all)/2], all[len(all)*9/10], all[len(all)*99/100], all[len(all)-1])
	}
	leases := []driver.Lease{granted(t, a, steady), granted(t, b, steady)}
	const name = "measured"
	p := entered(t, leases[0], name)
	variants := []struct {
		stood time.Duration
		bytes int
	}{{2 * time.Millisecond, 0}, {25 * time.Millisecond, 0}, {2 * time.Millisecond, 200}, {25 * time.Millisecond, 200}}
	clean := make([][]time.Duration, len(variants))
	for i := range len(variants) * 4 * rounds { // in turns: the machine is not always the same
		v := variants[i/2%len(variants)]
		next := leases[(i+1)%2]
		q := entered(t, next, name)
		done := make(chan time.Time, 1)
		go func() {
			held, err := drivertest.Await(t.Context(), next, q)
			if err != nil || !held.Held {
				t.Errorf("Wait = %+v, %v", held, err)
			}
			done <- time.Now()
		}()
		time.Sleep(v.stood)
		if v.bytes > 0 {
			p.Journal, p.Record = name, &driver.Record{Key: fmt.Sprintf("%020d", p.Token), Value: make([]byte, v.bytes)}
		}
		begun := time.Now()
		if err := leases[i%2].Release(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		clean[i/2%len(variants)] = append(clean[i/2%len(variants)], (<-done).Sub(begun))
		p = q
	}
	for i, v := range variants {
		quantiles(fmt.Sprintf("clean hand-over, the next has stood %v, a record of %d bytes", v.stood, v.bytes), clean[i])
	}
	var crash []time.Duration
	for range rounds {
		n := "crash" + time.Now().String()
		begun := time.Now()
		l, err := a.Grant(t.Context(), "dies", 500*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		entered(t, l, n)
		if _, err := drivertest.Await(t.Context(), leases[1], entered(t, leases[1], n)); err != nil {
			t.Fatal(err)
		}
		crash = append(crash, time.Since(begun)-500*time.Millisecond)
	}
	quantiles("take-over after a crash, beyond the TTL counted from before the Grant", crash)
}
