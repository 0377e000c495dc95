package registerstore

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/primacy-go/primacy/driver"
)

// me returns the lease as verbs see it.
func (l *lease) me() self {
	return self{lease: l.id, owner: l.owner, spent: l.isSpent, spend: l.spend}
}

func (l *lease) isSpent(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spent.Has(id)
}

// spend keeps an ID from entering again, and forgets its place: what becomes of it is the owner's
// doing.
func (l *lease) spend(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spendLocked(id)
}

func (l *lease) spendLocked(id string) {
	if l.ended {
		return // none can enter any more
	}
	l.spent.Add(id)
	for name, ids := range l.names {
		if ids[id] != nil {
			l.forgetLocked(name, id)
			return
		}
	}
}

// forgetLocked forgets a place, and what was to be told of it.
func (l *lease) forgetLocked(name, id string) {
	if st, a := l.names[name][id], l.heeds[name]; st != nil && st.follows && a != nil {
		a.passOn(l.id)
	}
	delete(l.names[name], id)
	l.news = slices.DeleteFunc(l.news, func(n driver.News) bool { return n.Place.ID == id && !n.Gone })
	if len(l.names[name]) > 0 {
		return
	}
	delete(l.names, name)
	if a := l.heeds[name]; a != nil {
		a.stop()
		delete(l.heeds, name)
	}
}

// keep takes note of places that stand in a document.
func (l *lease) keep(d *document, places []driver.Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	for _, p := range places {
		if l.spent.Has(p.ID) { // released meanwhile
			continue
		}
		if l.names[p.Name] == nil {
			l.names[p.Name] = map[string]*standing{}
		}
		if l.names[p.Name][p.ID] == nil {
			l.names[p.Name][p.ID] = &standing{place: p, seq: d.Seq}
		}
		l.mark(p.Name)
	}
}

// lost says whether a place that stood is known not to stand in d any more.
func (l *lease) lost(d *document, id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.names[string(d.Name)][id]
	return st != nil && d.Seq >= st.seq && d.find(l.id, st.place) < 0
}

// enters begins a call that may enter claims with those IDs. Done ends it with the call's answer.
func (l *lease) enters(ids ...string) (done func(err error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if l.doubts[id] == nil && !l.ended {
			l.doubts[id] = &doubt{}
		}
		if b := l.doubts[id]; b != nil {
			b.flights++
		}
	}
	return func(err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, id := range ids {
			if b := l.doubts[id]; b != nil {
				b.flights--
				switch {
				case err == nil:
					b.unknown = false // a write that was carried out, or found to be, leaves no earlier one under way
				case !driver.IsFinal(err):
					b.unknown = true // and a final answer says nothing of the writes of earlier calls
				}
				if b.flights == 0 && !b.unknown {
					delete(l.doubts, id)
				}
			}
		}
	}
}

// doubted says whether a claim with that ID may be about to enter.
func (l *lease) doubted(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.doubts[id]
	return b != nil && (b.flights > 0 || b.unknown)
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
// does not and was removed. Over the others vigil is kept for a while: nobody may wait behind them,
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
			l.s.passBy(name, id)
		}
	}
	return false, driver.ErrTaken
}

// Wait implements [driver.Lease].
func (l *lease) Wait(ctx context.Context, p driver.Place) (driver.Place, error) {
	a := l.s.attend(p.Name, nil)
	defer a.stop()
	d, _, err := l.s.read(ctx, p.Name)
	for {
		if err == nil && l.over() {
			err = l.goneErr("wait for " + strconv.Quote(p.Name))
		}
		if err != nil {
			return driver.Place{}, err
		}
		i := d.find(l.id, p)
		if i < 0 {
			return driver.Place{}, l.goneErr("wait for " + strconv.Quote(p.Name))
		}
		if d.held(i) {
			// After the document was read: a lease that lives now lived then.
			if err := l.check(ctx); err != nil {
				return driver.Place{}, err
			}
			return d.place(i), nil
		}
		// Its own lease too: nobody else may be waiting for the end of that.
		a.guard(i-1, append(d.watched(i), l.id)...)
		if d, err = a.next(ctx, d, l.gone); ctx.Err() != nil {
			a.passOn(l.id)
		}
	}
}
