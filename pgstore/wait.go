package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// waiter is what calls of Wait need to know of a claim.
type waiter struct {
	calls int
	fresh bool          // it came to hold, and no Wait was told
	moved chan struct{} // closed when it comes to hold or is gone
	seen  chan struct{} // closed after the next answer of the server about it
}

func newWaiter(held bool) waiter {
	w := waiter{moved: make(chan struct{}), seen: make(chan struct{})}
	if held {
		close(w.moved)
	}
	return w
}

func (w *waiter) holds() {
	w.fresh = true
	close(w.moved)
}

func (w *waiter) gone(held bool) {
	if !held {
		close(w.moved)
	}
	w.looked()
}

func (w *waiter) looked() {
	close(w.seen)
	w.seen = make(chan struct{})
}

// Wait implements [driver.Lease]. The notification that ends it was sent by the commit in which the
// place came to hold.
func (l *lease) Wait(ctx context.Context, p driver.Place) (driver.Place, error) {
	if err := ctx.Err(); err != nil {
		return driver.Place{}, err
	}
	st, err := l.find(ctx, p)
	if err != nil {
		return driver.Place{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	st.waiter.calls++
	defer func() { st.waiter.calls--; st.lookLaterLocked() }()
	seen := make(chan struct{})
	close(seen)
	if st.place.Held && !st.waiter.fresh { // known for long: it may have gone since
		seen = st.waiter.seen
		l.due[st] = true
		l.wakeLookerLocked()
	} else if !st.place.Held {
		st.beginWaitingLocked()
	}
	for _, ch := range []func() <-chan struct{}{func() <-chan struct{} { return st.waiter.moved }, func() <-chan struct{} { return seen }} {
		if err := l.pause(ctx, ch()); err != nil {
			return driver.Place{}, err
		}
	}
	if st.gone || l.isOver {
		return driver.Place{}, fmt.Errorf("claim %s on %s does not stand: %w", p.ID, p.Name, driver.ErrGone)
	}
	st.waiter.fresh = false
	return st.place, nil
}

// pause gives the mutex up until ch is closed or there is a reason not to wait for it.
func (l *lease) pause(ctx context.Context, ch <-chan struct{}) error {
	l.mu.Unlock()
	defer l.mu.Lock()
	select {
	case <-ch:
		return nil
	case <-l.over:
		return driver.ErrGone
	case <-ctx.Done():
		return ctx.Err()
	case <-l.s.ctx.Done():
		return errClosed
	}
}

// find returns the claim of a place. One that was entered by a call whose answer was lost is asked
// for.
func (l *lease) find(ctx context.Context, p driver.Place) (*ownClaim, error) {
	missing := fmt.Errorf("claim %s on %s does not stand: %w", p.ID, p.Name, driver.ErrGone)
	l.mu.Lock()
	st, spent := l.claims[storeutil.SeatAt(p)], l.ids.spent.Has(p.ID) || l.isOver
	l.mu.Unlock()
	if st != nil && st.place.ID == p.ID && (p.Token == 0 || p.Token == st.place.Token) {
		return st, nil
	}
	if err := fit(p.Name, p.Seat, p.ID); err != nil || spent {
		return nil, missing
	}
	found := driver.Place{Name: p.Name, Seat: p.Seat, ID: p.ID}
	err := l.s.do(ctx, "wait", "SELECT token, slots FROM {S}.claims WHERE lease = $1::text AND name = $2::text AND seat = $3::text AND id = $4::text AND $5::bigint IN (0, token)",
		[]any{l.id, p.Name, p.Seat, p.ID, int64(p.Token)}, func(r pgx.Rows) error { return r.Scan(&found.Token, &found.Slots) })
	if err != nil {
		return nil, err
	}
	if found.Token == 0 {
		return nil, missing
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isOver || l.ids.spent.Has(p.ID) {
		return nil, missing
	}
	st = l.enterLocked(found, 0, 0) // whether it holds is for a look to say: a plain read proves nothing of a standby
	if st.place.ID != p.ID {
		return nil, missing
	}
	return st, nil
}
