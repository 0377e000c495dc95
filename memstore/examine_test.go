package memstore_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

func TestLeftRunsOnTheStoresClock(t *testing.T) {
	for _, rate := range []float64{1, 1.05, 0.9} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New(memstore.Options{Rate: rate})
			l, err := s.Grant(t.Context(), "a", time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			left := func() time.Duration {
				d, _, err := l.(driver.LeaseTimer).Left(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			before := left()
			time.Sleep(10 * time.Second)
			if got := (before - left()).Seconds() / 10; got < rate-1e-6 || got > rate+1e-6 {
				t.Errorf("at rate %v the lease runs down at %v", rate, got)
			}
			if err := l.Renew(t.Context()); err != nil || left() < time.Minute-time.Microsecond {
				t.Errorf("after a renewal, %v, %v is left", err, left())
			}
			time.Sleep(2 * time.Minute)
			if _, _, err := l.(driver.LeaseTimer).Left(t.Context()); !errors.Is(err, driver.ErrGone) {
				t.Errorf("Left of a lease that has ended: %v, want ErrGone", err)
			}
		})
	}
}

func TestByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		s := memstore.New(memstore.Options{})
		places := map[string]driver.Place{}
		leases := map[string]driver.Lease{}
		for _, who := range []string{"run-1", "run-2", "other"} {
			l, err := s.Grant(ctx, who, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			p, err := l.Claim(ctx, driver.Claim{Name: "n", ID: who})
			if err != nil {
				t.Fatal(err)
			}
			leases[who], places[who] = l, p[0]
		}
		ids, err := s.Leases(ctx, "run-")
		want := []string{leases["run-1"].ID(), leases["run-2"].ID()}
		slices.Sort(want)
		if err != nil || !slices.Equal(ids, want) {
			t.Errorf("Leases = %q, %v, want %q", ids, err, want)
		}
		for range 2 { // the second time it is gone
			if err := s.RemoveClaim(ctx, "n", places["run-1"].Token); err != nil {
				t.Error(err)
			}
			if err := s.Revoke(ctx, leases["run-2"].ID()); err != nil {
				t.Error(err)
			}
		}
		if line, err := s.Line(ctx, "n"); err != nil || line.Holder == nil || line.Holder.Owner != "other" || len(line.Waiters) > 0 {
			t.Errorf("the line is %+v, %v, want only the other", line, err)
		}
		if err := leases["run-1"].Renew(ctx); err != nil {
			t.Errorf("the lease of a removed claim: %v", err)
		}
		if err := leases["run-2"].Renew(ctx); !errors.Is(err, driver.ErrGone) {
			t.Errorf("an ended lease: %v, want ErrGone", err)
		}
		if f := s.Examine(context.Background(), "n"); len(f) != 1 || f[0].Level != driver.Fine || f[0].Found == "" {
			t.Errorf("findings %+v", f)
		}
	})
}

// Whoever watches sees how much is left of another's lease.
func TestRemaining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		s := memstore.New(memstore.Options{})
		l, err := s.Grant(ctx, "a", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Claim(ctx, driver.Claim{Name: "n", ID: "1"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		got, err := s.Remaining(ctx, l.ID(), "nosuch")
		if r := got[l.ID()]; err != nil || len(got) != 1 || r.TTL != time.Minute || r.Left != 40*time.Second {
			t.Errorf("after 20 s: %+v, %v", got, err)
		}
		time.Sleep(41 * time.Second)
		if got, err := s.Remaining(ctx, l.ID()); err != nil || len(got) != 0 {
			t.Errorf("a lease that has ended: %+v, %v", got, err)
		}
	})
}
