package memstore

import (
	"context"
	"fmt"

	"github.com/primacy-go/primacy/driver"
)

var _ driver.Transferer = (*lease)(nil)

// Transfer hands the name of p to the claim with the token heir, in one step.
func (l *lease) Transfer(ctx context.Context, p driver.Place, heir uint64) error {
	return l.do(ctx, func() error {
		own := l.find(p)
		if own == nil {
			return driver.ErrGone
		}
		if own.slots != 0 || !own.held {
			return fmt.Errorf("%s under token %d is not held alone: %w", p.Name, p.Token, driver.ErrRefused)
		}
		ln, at := own.line, 0
		for i, c := range ln.claims {
			if i > 0 && c.token == heir && c.slots == 0 {
				at = i
			}
		}
		if at == 0 {
			return driver.ErrNoSuccessor
		}
		if ln.claims[at].lease == l {
			return fmt.Errorf("%s: the heir's claim is of the same lease: %w", p.Name, driver.ErrRefused)
		}
		// Those between first: the last to go is the one that holds, so that nobody but the heir
		// comes to hold.
		for range at - 1 {
			l.store.depose(ln.claims[1])
		}
		l.store.remove(own)
		l.store.leave(p)
		return nil
	})
}

// depose removes a claim and tells its owner.
func (s *Store) depose(c *claim) {
	gone := c.place()
	s.remove(c)
	c.lease.tell(driver.News{Place: gone, Gone: true})
}
