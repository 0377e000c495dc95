package primacy

import (
	"context"
	"sync"
	"testing"

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
