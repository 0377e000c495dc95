package memstore

import (
	"context"
	"fmt"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

var (
	_ driver.Exchanger = (*lease)(nil)
)

// Exchange gives p up and enters want, in one step.
func (l *lease) Exchange(ctx context.Context, p driver.Place, want driver.Claim) (place driver.Place, err error) {
	if err := driver.CheckExchange(p, want); err != nil {
		return place, err
	}
	err = l.do(ctx, func() error {
		if l.spent.Has(want.ID) {
			return fmt.Errorf("claim %s on %s was given up: %w", want.ID, want.Name, driver.ErrGone)
		}
		l.drop(p)
		l.displace(want)
		if l.claims[storeutil.SeatOf(want)] == nil {
			l.store.enter(l, want)
		}
		place = l.claims[storeutil.SeatOf(want)].place()
		return nil
	})
	return place, err
}

// Revoke ends the lease of that ID.
func (s *Store) Revoke(ctx context.Context, id string) error {
	return s.do(ctx, "", func() error {
		for _, ln := range s.lines { // a lease without a claim runs out by itself: nobody waits for its end
			for _, c := range ln.claims {
				if c.lease.id == id {
					c.lease.end()
					return nil
				}
			}
		}
		return nil
	})
}
