package registerstore

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// me returns the lease as verbs see it.
func (l *lease) me() self {
	return self{lease: l.id, owner: l.owner, spent: l.isSpent, spend: l.spend}
}

// Claim implements [driver.Lease]. Claims on one name are entered together, those on several one by
// one: if one is not to be, the others are given up again.
func (l *lease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	if err := driver.CheckClaims(claims...); err != nil {
		return nil, err
	}
	places := make([]driver.Place, len(claims))
	undo := make([]bool, len(claims)) // it entered, or may have
	groups := groupBy(len(claims), func(i int) string { return claims[i].Name })
	err := l.alive(ctx, func() error {
		return together(len(groups), func(g int) error {
			var some []driver.Claim
			for _, i := range groups[g] {
				some = append(some, claims[i])
			}
			got, err := l.enter(ctx, some)
			for n, i := range groups[g] {
				if undo[i] = err == nil || !driver.IsFinal(err); err == nil {
					places[i] = got[n]
				}
			}
			return err
		})
	})
	if err == nil {
		return places, nil
	}
	if len(groups) > 1 && driver.IsFinal(err) && !l.over() {
		var entered []driver.Place // by claim ID, for the caller believes that none stands
		for i, c := range claims {
			if undo[i] {
				entered = append(entered, driver.Place{Name: c.Name, Seat: c.Seat, ID: c.ID})
			}
		}
		if err := l.Release(ctx, entered...); err != nil {
			return nil, err
		}
	}
	return nil, err
}

// groupBy returns the indexes below n, those with the same key together, in the order in which keys
// come first.
func groupBy(n int, key func(i int) string) (groups [][]int) {
	at := map[string]int{}
	for i := range n {
		k := key(i)
		if _, ok := at[k]; !ok {
			at[k] = len(groups)
			groups = append(groups, nil)
		}
		groups[at[k]] = append(groups[at[k]], i)
	}
	return groups
}

// enter enters claims on one name.
func (l *lease) enter(ctx context.Context, claims []driver.Claim) ([]driver.Place, error) {
	var ids []string
	for _, c := range claims {
		ids = append(ids, c.ID)
	}
	done := l.enters(ids...)
	name, try := claims[0].Name, slices.ContainsFunc(claims, func(c driver.Claim) bool { return c.Try })
	for {
		var places []driver.Place
		d, err := l.s.step(ctx, name, func(d *document) (_ bool, err error) {
			for _, id := range ids {
				if l.lost(d, id) {
					return false, l.goneErr("claim " + strconv.Quote(name))
				}
			}
			places, err = d.enter(l.me(), claims)
			return false, err
		})
		if errors.Is(err, driver.ErrTaken) && try {
			var over bool
			if over, err = l.takenBy(ctx, name, d); over {
				continue
			}
		}
		if done(err); err != nil {
			return nil, err
		}
		l.keep(d, places)
		return places, nil
	}
}

// takenBy looks whether those who stand in the way of a Try live: it reports true if one of them
// does not and was removed. The others are watched for a while: nobody may wait behind them,
// and who tries again and again finds them dead after hardly more than the ttl.
func (l *lease) takenBy(ctx context.Context, name string, d *document) (over bool, err error) {
	leases := append(followed(d.Claims), leasesOf(d.Claims[:d.holding()])...) // one slot of many may be a dead holder's
	slices.Sort(leases)
	leases = slices.Compact(leases)
	ended, err := l.s.endedOf(ctx, leases, map[string]bool{})
	if err != nil {
		return false, err
	}
	if len(ended) > 0 {
		_, err := l.s.purge(ctx, name, ended...)
		return err == nil, err
	}
	for _, id := range leases {
		if id != l.id {
			l.s.watchBriefly(name, id)
		}
	}
	return false, driver.ErrTaken
}

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

// record leaves the records of places that were given up in their journals. These are registers of
// their own, so it is another step: a process that dies between the two leaves none, and one that
// cannot be kept, or not soon, holds up nothing. It is written to the end also where the caller has
// gone.
func (l *lease) record(ctx context.Context, places ...driver.Place) error {
	by := map[string][]driver.Record{}
	for _, p := range places {
		if p.Record != nil && driver.CheckRecord(p.Journal, *p.Record) == nil {
			by[p.Journal] = append(by[p.Journal], driver.Record{Key: p.Record.Key, Value: bytes.Clone(p.Record.Value)})
		}
	}
	if len(by) == 0 {
		return nil
	}
	var names []string
	for name := range by {
		names = append(names, name)
	}
	done := make(chan struct{})
	l.s.spawnOr(func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordPatience)
		defer cancel()
		_ = together(len(names), func(i int) error {
			for l.s.journalStore.leaveAll(ctx, names[i], by[names[i]]) != nil && storeutil.Sleep(ctx, jitter(recordPatience/20)) == nil {
			}
			return nil
		})
	})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return l.s.wrap("leave a record", ctx.Err())
	}
}
