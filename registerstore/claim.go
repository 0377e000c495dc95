package registerstore

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// me returns the lease as verbs see it.
func (l *lease) me() self {
	return self{lease: l.id, owner: l.owner, spent: l.isSpent, spend: l.spend}
}

// Claim implements [driver.Lease]. Claims on one name are entered together, those on several names
// one by one: if one of them is refused, the others are given up again.
func (l *lease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	if err := driver.CheckClaims(claims...); err != nil {
		return nil, err
	}
	places := make([]driver.Place, len(claims))
	undo := make([]bool, len(claims)) // it entered, or may have
	groups := groupBy(claims, func(c driver.Claim) string { return c.Name })
	err := l.alive(ctx, func() error {
		return together(len(groups), func(g int) error {
			got, err := l.enter(ctx, pick(claims, groups[g]))
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

// groupBy returns the indexes of all, those with the same key together, in the order in which keys
// come first.
func groupBy[T any](all []T, key func(T) string) (groups [][]int) {
	at := map[string]int{}
	for i, one := range all {
		k := key(one)
		if _, ok := at[k]; !ok {
			at[k] = len(groups)
			groups = append(groups, nil)
		}
		groups[at[k]] = append(groups[at[k]], i)
	}
	return groups
}

// pick returns those of all that have these indexes.
func pick[T any](all []T, indexes []int) (some []T) {
	for _, i := range indexes {
		some = append(some, all[i])
	}
	return some
}

// enter enters claims on one name.
func (l *lease) enter(ctx context.Context, claims []driver.Claim) ([]driver.Place, error) {
	var ids []string
	for _, c := range claims {
		ids = append(ids, c.ID)
	}
	done := l.beginEntering(ids...)
	name, try := claims[0].Name, slices.ContainsFunc(claims, func(c driver.Claim) bool { return c.Try })
	for {
		var places []driver.Place
		d, err := l.s.step(ctx, name, func(d *document) (err error) {
			for _, id := range ids {
				if l.wasRemoved(d, id) {
					return l.goneErr("claim " + strconv.Quote(name))
				}
			}
			places, err = d.enter(l.me(), claims)
			return err
		})
		if errors.Is(err, driver.ErrTaken) && try {
			var purged bool
			if purged, err = l.purgeBefore(ctx, name, d); purged {
				continue
			}
		}
		if done(err); err != nil {
			return nil, err
		}
		l.entered(d, places...)
		return places, nil
	}
}

// purgeBefore removes those from the line who stand in the way of a Try and whose lease has ended.
// It returns true if it removed one. The others are watched for a while: nobody may wait behind
// them, and who tries again and again finds them dead after hardly more than the ttl.
func (l *lease) purgeBefore(ctx context.Context, name string, d *document) (purged bool, err error) {
	leases := append(ends(d.Claims), leasesOf(d.Claims[:d.holding()])...) // one slot of many may be a dead holder's
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
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	for _, id := range leases {
		if id != l.id {
			l.s.watchBrieflyLocked(name, id)
		}
	}
	return false, driver.ErrTaken
}

// Update implements [driver.Lease].
func (l *lease) Update(ctx context.Context, p driver.Place, value []byte) error {
	return l.alive(ctx, func() error {
		_, err := l.s.step(ctx, p.Name, func(d *document) error { return d.update(l.me(), p, value) })
		return err
	})
}

// Release implements [driver.Lease].
func (l *lease) Release(ctx context.Context, places ...driver.Place) error {
	if l.over() {
		return ctx.Err() // and no Claim can enter any more
	}
	groups := groupBy(places, func(p driver.Place) string { return p.Name })
	gone := make([][]driver.Place, len(groups))
	err := together(len(groups), func(g int) (err error) {
		gone[g], err = l.release(ctx, pick(places, groups[g]))
		return err
	})
	// Together: records that many names leave in one journal are one write, where each by itself
	// would take turns with the others for longer than recordPatience.
	if err2 := l.record(ctx, slices.Concat(gone...)...); err == nil {
		err = err2
	}
	return err
}

// release gives places of one name up. It returns them, with the records that they are to leave: of
// what did not stand there is none. With an error it returns no places.
func (l *lease) release(ctx context.Context, places []driver.Place) ([]driver.Place, error) {
	stood, mayEnter, mark := make([]bool, len(places)), make([]bool, len(places)), newMark()
	for i, p := range places {
		mayEnter[i] = l.beginRelease(p)
	}
	d, err := l.s.stepAs(ctx, mark, places[0].Name, func(d *document) (force bool, err error) {
		for i, p := range places {
			stood[i] = d.drop(l.me(), p)
			// A write that would enter the claim may be on its way: it must find another version.
			force = force || !stood[i] && mayEnter[i]
		}
		return force, nil
	})
	for i, p := range places {
		switch {
		case err == nil:
			stood[i] = l.releasedBefore(d, p) || stood[i]
			l.released(d, p)
		case stood[i]:
			l.releaseUnknown(mark, p)
		}
		if !stood[i] {
			places[i].Record = nil
		}
	}
	if err != nil {
		return nil, err
	}
	return places, nil
}

// Exchange implements [driver.Exchanger].
func (l *lease) Exchange(ctx context.Context, p driver.Place, want driver.Claim) (place driver.Place, err error) {
	if err := driver.CheckExchange(p, want); err != nil {
		return place, err
	}
	var stood bool
	err = l.alive(ctx, func() error {
		done := l.beginEntering(want.ID)
		wasSpent := l.isSpent(p.ID)
		mayEnter, mark := l.beginRelease(p), newMark()
		d, err := l.s.stepAs(ctx, mark, p.Name, func(d *document) (_ bool, err error) {
			if l.wasRemoved(d, want.ID) {
				return false, l.goneErr("exchange " + strconv.Quote(p.Name))
			}
			place, stood, err = d.exchange(l.me(), p, want)
			return !stood && mayEnter, err
		})
		done(err)
		switch {
		case err == nil:
			l.released(d, p)
			l.entered(d, place)
		case driver.IsFinal(err) && !wasSpent:
			l.releaseFailed(p)
		case !driver.IsFinal(err) && stood:
			l.releaseUnknown(mark, p)
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
func (l *lease) Transfer(ctx context.Context, p driver.Place, successor uint64) error {
	err := l.alive(ctx, func() error {
		if err := l.purgeSuccessor(ctx, p.Name, successor); err != nil {
			return err
		}
		wasSpent, mark := l.isSpent(p.ID), newMark()
		l.beginRelease(p)
		d, err := l.s.stepAs(ctx, mark, p.Name, func(d *document) (bool, error) {
			return false, d.transfer(l.me(), p, successor)
		})
		gone := errors.Is(err, driver.ErrGone)
		switch {
		case err == nil || gone && l.releasedBefore(d, p): // now, or by an earlier call
			l.released(d, p)
			return nil
		case !driver.IsFinal(err):
			l.releaseUnknown(mark, p)
		case !gone || !wasSpent:
			l.releaseFailed(p) // if it is gone, News tells of it
		}
		return err
	})
	if err != nil {
		return err
	}
	return l.record(ctx, p)
}

// purgeSuccessor removes the claim of a successor whose lease has ended, so that nobody hands over
// to the dead.
func (l *lease) purgeSuccessor(ctx context.Context, name string, successor uint64) error {
	d, _, err := l.s.read(ctx, name)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(d.Claims, func(c claim) bool { return c.Token == successor && c.Lease != l.id })
	if i < 0 {
		return nil
	}
	st, err := l.s.leaseNow(ctx, d.Claims[i].Lease)
	if err == nil && st.over() {
		_, err = l.s.purge(ctx, name, d.Claims[i].Lease)
	}
	return err
}

// recordPatience is how long a record of a place that was given up is tried to be kept.
const recordPatience = 5 * time.Second

// record leaves the records of places that were given up in their journals. These are registers of
// their own, so it is another step: a process that dies between the two leaves none, and one that
// cannot be kept, or not soon, holds up nothing. A record is written to the end also where the
// caller has gone.
func (l *lease) record(ctx context.Context, places ...driver.Place) error {
	all := map[string][]driver.Record{}
	for _, p := range places {
		if p.Record != nil && driver.CheckRecord(p.Journal, *p.Record) == nil {
			all[p.Journal] = append(all[p.Journal], driver.Record{Key: p.Record.Key, Value: bytes.Clone(p.Record.Value)})
		}
	}
	if len(all) == 0 {
		return nil
	}
	names, done := slices.Collect(maps.Keys(all)), make(chan struct{})
	l.s.spawnOr(func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordPatience)
		defer cancel()
		_ = together(len(names), func(i int) error {
			for l.s.leaveAll(ctx, names[i], all[names[i]]) != nil {
				if err := storeutil.Sleep(ctx, jitter(recordPatience/20)); err != nil {
					return err
				}
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
