package primacy

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/primacy-go/primacy/driver"
)

type namedLease struct{ driver.Lease }

func (namedLease) ID() string { return "l" }

// Who shows the misses that were not late as a counter takes one figure from the other: that must
// never go back.
func TestMissesWithoutLateOnesNeverGoBack(t *testing.T) {
	s := &Session{}
	l := &lease{s: s, stored: namedLease{}}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 200_000 {
				l.countRenewal(context.DeadlineExceeded, 0)
			}
		})
	}
	wg.Go(func() {
		for st := s.Stats(); st.Late < 400_000; st = s.Stats() {
			if st.Misses != st.Late {
				t.Errorf("%d misses, %d late: all were late", st.Misses, st.Late)
				return
			}
		}
	})
	wg.Wait()
	l.countRenewal(context.Canceled, 0)
	if st := s.Stats(); st.Misses != st.Late+1 || st.Renewals != 0 {
		t.Errorf("%+v", st)
	}
}

// The end of a lease cancels a renewal that is under way. The store has missed nothing.
func TestARenewalThatTheEndCancelledIsNoMiss(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		asked := make(chan struct{}, 1)
		s := b.session("a", &renewing{Store: b.store, renew: func(ctx context.Context, l driver.Lease) error {
			select {
			case asked <- struct{}{}:
			default:
			}
			<-ctx.Done()
			return ctx.Err()
		}}, Options{})
		wantNil(t, "Resign", b.lead(s, "n").Resign(context.Background()))
		<-asked
		wantNil(t, "Close", s.Close(context.Background()))
		synctest.Wait()
		if st := s.Stats(); st.Misses != 0 {
			t.Errorf("%+v, want no miss", st)
		}
	})
}
