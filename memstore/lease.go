package memstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// lease is a lease with its claims, at most one for each seat.
type lease struct {
	store *Store
	owner string
	id    string
	ttl   time.Duration

	timer  *time.Timer
	ends   time.Time // on the caller's clock; a timer that fires earlier was overtaken by a renewal
	ended  bool
	claims map[storeutil.Seat]*claim
	spent  storeutil.SpentIDs // claim IDs that may not enter again: released, replaced or removed
	news   []driver.News      // not told yet
	told   chan struct{}      // closed when there is news or the lease ends
}

var (
	_ driver.Exchanger  = (*lease)(nil)
	_ driver.Transferer = (*lease)(nil)
	_ driver.LeaseTimer = (*lease)(nil)
)

func (l *lease) ID() string { return l.id }

func (l *lease) TTL() time.Duration { return l.ttl }

// Renew starts the ttl afresh. It never revives a lease.
func (l *lease) Renew(ctx context.Context) error {
	return l.do(ctx, func() error {
		l.start()
		return nil
	})
}

// Claim enters all claims or, with an error, none.
func (l *lease) Claim(ctx context.Context, claims ...driver.Claim) (places []driver.Place, err error) {
	if err := driver.CheckClaims(claims...); err != nil {
		return nil, err
	}
	err = l.do(ctx, func() error {
		// A Claim that was under way when its ID was released arrives here. It must not enter:
		// nobody would ever release it again.
		for _, want := range claims {
			if l.spent.Has(want.ID) {
				return fmt.Errorf("claim %s on %s was given up: %w", want.ID, want.Name, driver.ErrGone)
			}
		}
		for _, want := range claims {
			own := l.claims[storeutil.SeatOf(want)]
			if own != nil && own.id == want.ID && own.slots != want.Slots {
				return fmt.Errorf("claim %s on %s stands with %d slots, not %d: %w", want.ID, want.Name, own.slots,
					want.Slots, driver.ErrRefused)
			}
			if n := l.store.line(want.Name).misfit(want.Slots, own); n != 0 {
				return driver.Misfit(want.Name, n, want.Slots)
			}
		}
		for _, want := range claims {
			l.displace(want)
		}
		for _, want := range claims {
			if want.Try && !l.free(want) {
				l.leave(claims)
				return driver.ErrTaken
			}
		}
		for _, want := range claims {
			if l.claims[storeutil.SeatOf(want)] == nil {
				l.store.enter(l, want)
			}
			places = append(places, l.claims[storeutil.SeatOf(want)].place())
		}
		for i, want := range claims {
			if want.Try && !places[i].Held { // for want of those that entered with it
				places = nil
				l.leave(claims)
				return driver.ErrTaken
			}
		}
		return nil
	})
	return places, err
}

// Update replaces the value that observers see.
func (l *lease) Update(ctx context.Context, p driver.Place, value []byte) error {
	return l.do(ctx, func() error {
		c := l.find(p)
		if c == nil {
			return driver.ErrGone
		}
		c.value = bytes.Clone(value)
		l.store.touch(c.line)
		return nil
	})
}

// Release gives places up.
func (l *lease) Release(ctx context.Context, places ...driver.Place) error {
	return l.store.do(ctx, l.owner, func() error {
		if l.ended {
			return nil // and no Claim can enter any more
		}
		for _, p := range places {
			l.drop(p)
		}
		return nil
	})
}

// drop gives one place up.
func (l *lease) drop(p driver.Place) {
	if c := l.find(p); c != nil {
		l.store.remove(c)
		l.store.leave(p)
	} else if c = l.claims[storeutil.SeatAt(p)]; c == nil || c.id != p.ID {
		l.spent.Add(p.ID) // nothing stands yet, but the Claim may still be on its way
	}
}

// Follow has News tell when places are held.
func (l *lease) Follow(places ...driver.Place) {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	for _, p := range places {
		if c := l.find(p); c != nil { // else News has told, or its owner released it
			c.follows = true
			c.tellHeld()
		}
	}
}

// tellHeld tells, once, that a claim which is followed has come to hold.
func (c *claim) tellHeld() {
	if c.follows && c.held {
		c.follows = false
		c.lease.tell(driver.News{Place: c.place(), Held: true})
	}
}

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

// Transfer hands the name of p to the claim with the token successor, in one step.
func (l *lease) Transfer(ctx context.Context, p driver.Place, successor uint64) error {
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
			if i > 0 && c.token == successor && c.slots == 0 {
				at = i
			}
		}
		if at == 0 {
			return driver.ErrNoSuccessor
		}
		if ln.claims[at].lease == l {
			return fmt.Errorf("%s: the successor's claim is of the same lease: %w", p.Name, driver.ErrRefused)
		}
		// Those between first: the last to go is the one that holds, so that nobody but the
		// successor comes to hold.
		for range at - 1 {
			l.store.depose(ln.claims[1])
		}
		l.store.remove(own)
		l.store.leave(p)
		return nil
	})
}

// News returns what others did to the lease's places since the last call, or blocks until there is
// something.
func (l *lease) News(ctx context.Context) (news []driver.News, err error) {
	err = l.store.until(ctx, l.owner, func() (<-chan struct{}, error) {
		if l.ended {
			return nil, driver.ErrGone
		}
		if len(l.news) == 0 {
			return l.told, nil
		}
		news, l.news = l.news, nil
		return nil, nil
	})
	return news, err
}

// Close ends the lease at once.
func (l *lease) Close(ctx context.Context) error {
	return l.store.do(ctx, l.owner, func() error {
		l.end()
		return nil
	})
}

// do runs f as one step of the store if the lease lives.
func (l *lease) do(ctx context.Context, f func() error) error {
	return l.store.do(ctx, l.owner, func() error {
		if l.ended {
			return driver.ErrGone
		}
		return f()
	})
}

// start starts the ttl, afresh if it runs. The store's clock counts ttl while the caller's counts
// ttl / Rate.
func (l *lease) start() {
	d := time.Duration(float64(l.ttl) / l.store.opts.Rate)
	// Before the timer: the timer must not find that it came too early, for it comes only once.
	l.ends = time.Now().Add(d)
	if l.timer == nil {
		l.timer = time.AfterFunc(d, l.expire)
	} else {
		l.timer.Reset(d)
	}
}

// expire ends the lease if no renewal won the race against the timer.
func (l *lease) expire() {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if !time.Now().Before(l.ends) {
		l.end()
	}
}

// end ends the lease and removes its claims, in order of their seats so that a run with a faked
// clock repeats exactly.
func (l *lease) end() {
	if l.ended {
		return
	}
	l.ended = true
	l.timer.Stop()
	for _, at := range slices.SortedFunc(maps.Keys(l.claims), func(a, b storeutil.Seat) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Seat, b.Seat))
	}) {
		l.store.remove(l.claims[at])
	}
	l.news, l.spent = nil, storeutil.SpentIDs{}
	close(l.told)
}

// displace removes the claim that the lease has on the seat under another ID. To take its place up
// instead would hand the new claim a term that is being resigned.
func (l *lease) displace(want driver.Claim) {
	if c := l.claims[storeutil.SeatOf(want)]; c != nil && c.id != want.ID {
		l.store.remove(c)
	}
}

// free says whether the claim holds already, or would at once.
func (l *lease) free(want driver.Claim) bool {
	if c := l.claims[storeutil.SeatOf(want)]; c != nil {
		return c.held
	}
	ln := l.store.line(want.Name)
	return ln.free(want.Slots, len(ln.claims))
}

// leave removes all claims on the names, for a Try that failed: its caller believes that it has
// none.
func (l *lease) leave(claims []driver.Claim) {
	for _, want := range claims {
		if c := l.claims[storeutil.SeatOf(want)]; c != nil {
			l.store.remove(c)
		}
	}
}

// find returns the claim of the place if it still stands: under its claim ID, and under its token
// if the caller knows it.
func (l *lease) find(p driver.Place) *claim {
	c := l.claims[storeutil.SeatAt(p)] // none once the lease has ended
	if c == nil || c.id != p.ID || p.Token != 0 && c.token != p.Token {
		return nil
	}
	return c
}

// forget drops a claim that was removed, with all requests for it: a late one must not reach the
// next term.
func (l *lease) forget(c *claim) {
	delete(l.claims, storeutil.Seat{Name: c.line.name, Seat: c.seat})
	if l.ended {
		return
	}
	l.spent.Add(c.id)
	l.news = slices.DeleteFunc(l.news, func(n driver.News) bool { return n.Place.Token == c.token })
}

// tell keeps a piece of news for News and wakes it.
func (l *lease) tell(n driver.News) {
	l.news = append(l.news, n)
	close(l.told)
	l.told = make(chan struct{})
}
