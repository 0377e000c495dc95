package registerstore

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/primacy-go/primacy/driver"
)

// Update implements [driver.Lease].
func (l *lease) Update(ctx context.Context, p driver.Place, value []byte) error {
	return l.alive(ctx, func() error {
		_, err := l.s.step(ctx, p.Name, func(d *document) (bool, error) { return false, d.update(l.me(), p, value) })
		return err
	})
}

// Release implements [driver.Lease].
func (l *lease) Release(ctx context.Context, places ...driver.Place) error {
	if l.over() {
		return ctx.Err() // and no Claim can enter any more
	}
	groups := groupBy(len(places), func(i int) string { return places[i].Name })
	return together(len(groups), func(g int) error {
		var some []driver.Place
		for _, i := range groups[g] {
			some = append(some, places[i])
		}
		return l.release(ctx, some)
	})
}

// release gives places of one name up.
func (l *lease) release(ctx context.Context, places []driver.Place) error {
	for _, p := range places {
		l.leave(p)
	}
	gone, mark := make([]bool, len(places)), newMark()
	d, err := l.s.stepAs(ctx, mark, places[0].Name, func(d *document) (force bool, err error) {
		for i, p := range places {
			gone[i] = d.drop(l.me(), p)
			// A write that would enter the claim may be on its way: it must find another version.
			force = force || !gone[i] && l.doubted(p.ID)
		}
		return force, nil
	})
	if err != nil {
		for i, p := range places {
			l.may(mark, p, gone[i])
		}
		return err
	}
	for i, p := range places {
		gone[i] = l.did(d, p) || gone[i]
		l.left(d, p)
		if !gone[i] {
			places[i].Record = nil
		}
	}
	return l.record(ctx, places...)
}

// leave takes note that a place is being given up: its ID must not enter any more, and that it goes
// is no news.
func (l *lease) leave(p driver.Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	st := l.names[p.Name][p.ID]
	if st != nil && p.Token != 0 && st.place.Token != p.Token {
		return // another term's
	}
	l.spent.Add(p.ID)
	if st != nil {
		st.leaving = true
	}
}

// may takes note that a write under mark may have given up a place that has a record to leave, if
// it stood.
func (l *lease) may(mark string, p driver.Place, stood bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if stood && !l.ended {
		l.marks[p.ID] = append(l.marks[p.ID], mark)
	}
}

// did says whether such a write was carried out, and forgets about it.
func (l *lease) did(d *document, p driver.Place) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	marks := l.marks[p.ID]
	delete(l.marks, p.ID)
	return slices.ContainsFunc(marks, func(m string) bool { return slices.Contains(d.Marks, m) })
}

// stay takes that back: the place was not given up.
func (l *lease) stay(p driver.Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.spent.Remove(p.ID)
	if st := l.names[p.Name][p.ID]; st != nil {
		st.leaving = false
		l.mark(p.Name)
	}
}

// left takes note that a place does not stand in d, unless it does under another token.
func (l *lease) left(d *document, p driver.Place) {
	if d.find(l.id, driver.Place{Seat: p.Seat, ID: p.ID}) >= 0 {
		l.stay(p)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.spent.Add(p.ID)
	if b := l.doubts[p.ID]; b != nil {
		if b.unknown = false; b.flights == 0 {
			delete(l.doubts, p.ID)
		}
	}
	if l.names[p.Name][p.ID] != nil {
		l.forgetLocked(p.Name, p.ID)
	}
}

// Exchange implements [driver.Exchanger].
func (l *lease) Exchange(ctx context.Context, p driver.Place, want driver.Claim) (place driver.Place, err error) {
	if err := driver.CheckExchange(p, want); err != nil {
		return place, err
	}
	var stood bool
	err = l.alive(ctx, func() error {
		done := l.enters(want.ID)
		wasSpent := l.isSpent(p.ID)
		l.leave(p)
		mark := newMark()
		d, err := l.s.stepAs(ctx, mark, p.Name, func(d *document) (_ bool, err error) {
			if l.lost(d, want.ID) {
				return false, l.goneErr("exchange " + strconv.Quote(p.Name))
			}
			place, stood, err = d.exchange(l.me(), p, want)
			return !stood && l.doubted(p.ID), err
		})
		done(err)
		switch {
		case err == nil:
			l.left(d, p)
			l.keep(d, []driver.Place{place})
		case driver.IsFinal(err) && !wasSpent:
			l.stay(p)
		case !driver.IsFinal(err):
			l.may(mark, p, stood)
		}
		return err
	})
	if err != nil {
		return driver.Place{}, err
	}
	if stood {
		return place, l.record(ctx, p)
	}
	return place, nil
}

// Transfer implements [driver.Transferer].
func (l *lease) Transfer(ctx context.Context, p driver.Place, heir uint64) error {
	err := l.alive(ctx, func() error {
		if err := l.heirLives(ctx, p.Name, heir); err != nil {
			return err
		}
		wasSpent, mark := l.isSpent(p.ID), newMark()
		l.leave(p)
		d, err := l.s.stepAs(ctx, mark, p.Name, func(d *document) (bool, error) { return false, d.transfer(l.me(), p, heir) })
		switch {
		case err != nil && !driver.IsFinal(err):
			l.may(mark, p, true)
		case errors.Is(err, driver.ErrGone) && l.did(d, p):
			l.left(d, p)
			err = nil // by an earlier call
		case err == nil:
			l.left(d, p)
		case errors.Is(err, driver.ErrGone) && !wasSpent:
			l.stay(p) // it was not given up here: News tells of it
		case driver.IsFinal(err) && !errors.Is(err, driver.ErrGone):
			l.stay(p)
		}
		return err
	})
	if err != nil {
		return err
	}
	return l.record(ctx, p)
}

// heirLives removes the claim of an heir whose lease has ended, so that nobody hands over to the
// dead.
func (l *lease) heirLives(ctx context.Context, name string, heir uint64) error {
	d, _, err := l.s.read(ctx, name)
	if err != nil {
		return err
	}
	for _, c := range d.Claims {
		if c.Token != heir || c.Lease == l.id {
			continue
		}
		st, err := l.s.leaseNow(ctx, c.Lease)
		if err != nil {
			return err
		}
		if st.over() {
			_, err = l.s.purge(ctx, name, c.Lease)
		}
		return err
	}
	return nil
}
