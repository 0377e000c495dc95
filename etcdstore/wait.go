package etcdstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// Wait implements [driver.Lease], which is about to lose it: who waits follows his place and
// listens to News.
func (l *lease) Wait(ctx context.Context, p driver.Place) (driver.Place, error) {
	what := verb("wait for", p.Name)
	p, err := l.seats.known(p)
	if err != nil {
		return p, err
	}
	for {
		st, err := l.look(ctx, what, p)
		switch {
		case errors.Is(err, driver.ErrRefused):
			return p, err
		case err == nil && !st.stands:
			return p, placeGone("wait for", p.Name)
		case err == nil && st.held:
			l.show(p, st)
			p.Held = true
			return p, nil
		}
		if _, err := l.pause(ctx, nil, etcdwire.Again); err != nil {
			return p, fmt.Errorf("etcd: %s: %w", what, err)
		}
	}
}
