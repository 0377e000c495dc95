package redlockstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// claim is one claim of a lease. While it waits nothing of it stands on the servers: it tries again
// and again.
type claim struct {
	l *lease
	driver.Claim
	turn chan struct{} // a lock: tries of a claim are made one at a time
	gone chan struct{} // closed when it was given up or lost

	// The lease's lock guards what follows. cur changes only while the claim is not held, by who
	// has its turn.
	held, out bool
	answered  bool // a call of Claim has returned it
	followed  bool // News is to tell that it holds
	pursued   bool // a goroutine tries for it, because it was followed
	updates   int
	cur       *attempt
}

func (c *claim) place() driver.Place {
	return driver.Place{Name: c.Name, Seat: c.Seat, ID: c.ID, Held: c.held}
}

// Claim enters claims and tries once, on all servers at once, to hold them.
func (l *lease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	if err := driver.CheckClaims(claims...); err != nil {
		return nil, err
	}
	for _, want := range claims {
		if want.Slots != 0 {
			return nil, fmt.Errorf("%s: a majority of Redis servers has no shared claims: %w",
				want.Name, driver.ErrRefused)
		}
		if l.s.cfg.Plain && (strings.HasPrefix(want.Name, l.s.mark("")) || strings.HasPrefix(want.Name, l.s.revoked(""))) {
			return nil, fmt.Errorf("%s is a key of ours, not a name: it would end a lease, or keep one from claiming: %w",
				want.Name, driver.ErrRefused)
		}
	}
	if err := ctx.Err(); err != nil || len(claims) == 0 {
		return nil, err
	}
	all, old, err := l.prepare(claims)
	if err != nil {
		return nil, err
	}
	if err := l.awaitOff(ctx, "claim", old); err != nil {
		return nil, err
	}
	done, err := takeTurns(ctx, all)
	if err != nil {
		return nil, err
	}
	defer done()
	got := l.settle(ctx, all)
	for n := 0; n < 4 && slices.ContainsFunc(got, func(o outcome) bool { return o.split }); n++ {
		_ = storeutil.Sleep(ctx, rand.N(2*time.Millisecond<<n)) // what follows says how ctx ended
		got = l.settle(ctx, all)
	}
	return l.answer(ctx, all, got)
}

// prepare finds or makes the claims. What stands on their seats under other IDs is given up, and
// returned.
func (l *lease) prepare(claims []driver.Claim) (all []*claim, old []*attempt, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.overLocked(boottime.Now()) {
		return nil, nil, fmt.Errorf("claim: %w", driver.ErrGone)
	}
	for _, want := range claims {
		if l.spent.Has(want.ID) {
			return nil, nil, fmt.Errorf("claim %s on %s was given up: %w", want.ID, want.Name, driver.ErrGone)
		}
	}
	for _, want := range claims {
		at := storeutil.SeatOf(want)
		c := l.claims[at]
		if c != nil && c.ID != want.ID {
			c.removeLocked()
			c = nil
		}
		if c == nil {
			want.Value = bytes.Clone(want.Value)
			c = &claim{l: l, Claim: want, turn: make(chan struct{}, 1), gone: make(chan struct{})}
			l.claims[at] = c
		}
		all = append(all, c)
	}
	// An earlier claim of a name may hold it still, for a moment, or an earlier try of the same.
	old = l.leavingLocked(func(c *claim) bool {
		return slices.ContainsFunc(all, func(o *claim) bool { return o.Name == c.Name && o.Seat == c.Seat })
	})
	return all, old, nil
}

// takeTurns waits until no other call tries for any of the claims. In one order, so that two calls
// never wait for each other.
func takeTurns(ctx context.Context, all []*claim) (done func(), err error) {
	sorted := slices.SortedFunc(slices.Values(all), func(a, b *claim) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Seat, b.Seat))
	})
	var taken []*claim
	done = func() {
		for _, c := range taken {
			<-c.turn
		}
	}
	for _, c := range sorted {
		select {
		case c.turn <- struct{}{}:
			taken = append(taken, c)
		case <-ctx.Done():
			done()
			return nil, ctx.Err()
		}
	}
	return done, nil
}

// outcome is what came of one claim's try.
type outcome struct {
	held  bool
	split bool          // nobody has a majority: those who try get into each other's way
	free  time.Duration // after which so many keys in the way have expired that it may hold; 0: not known
	err   error
}

// answer makes the answer of a Claim. A Try that does not hold leaves nothing, and neither do those
// beside it; and who hears that nothing came of his call has nothing standing that he was not told
// of before.
func (l *lease) answer(ctx context.Context, all []*claim, got []outcome) (places []driver.Place, err error) {
	l.mu.Lock()
	for i, c := range all {
		if err == nil {
			err = got[i].err
		}
		places = append(places, c.place())
	}
	for i, c := range all {
		if err == nil && c.Try && !got[i].held {
			err = driver.ErrTaken
		}
	}
	var withdrawn []*attempt
	taken := errors.Is(err, driver.ErrTaken)
	final := taken || errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrRefused)
	for _, c := range all {
		if c.answered = c.answered || err == nil; taken || final && !c.answered {
			withdrawn = append(withdrawn, c.withdrawLocked())
		}
	}
	l.mu.Unlock()
	if err == nil {
		return places, nil
	}
	if off := l.awaitOff(ctx, "claim", withdrawn); off != nil {
		return nil, off
	}
	return nil, fmt.Errorf("claim: %w", err)
}

// withdrawLocked takes a claim out of its seat whose ID may come again, and what News has not told
// of it yet. The caller holds l.mu.
func (c *claim) withdrawLocked() *attempt {
	l := c.l
	if c.out {
		return c.cur
	}
	c.out, c.held = true, false
	close(c.gone)
	delete(l.claims, storeutil.SeatOf(c.Claim))
	l.news = slices.DeleteFunc(l.news, func(n driver.News) bool { return !n.Gone && n.Place.ID == c.ID })
	c.cur.giveUpLocked()
	return c.cur
}

// removeLocked takes a claim out for ever. The caller holds l.mu.
func (c *claim) removeLocked() {
	c.l.spent.Add(c.ID)
	c.withdrawLocked()
}

// loseLocked takes a claim out whose majority is gone, and tells its owner. The caller holds l.mu.
func (c *claim) loseLocked() {
	if c.out || c.l.ended {
		return
	}
	p := c.place()
	c.removeLocked()
	c.l.addNewsLocked(driver.News{Place: p, Gone: true})
}

// findLocked returns the claim of a place if it stands. The caller holds l.mu.
func (l *lease) findLocked(p driver.Place) *claim {
	c := l.claims[storeutil.SeatAt(p)]
	if c == nil || c.ID != p.ID || p.Token != 0 {
		return nil
	}
	return c
}

// settle tries once for each claim, or looks whether it holds still. The caller has their turns.
func (l *lease) settle(ctx context.Context, all []*claim) []outcome {
	got := make([]outcome, len(all))
	var held, rest []*claim
	l.mu.Lock()
	for _, c := range all {
		if c.held {
			held = append(held, c)
		} else {
			rest = append(rest, c)
		}
	}
	l.mu.Unlock()
	var err error
	if len(held) > 0 {
		_, err = l.prolong(ctx, held)
	}
	won := l.enter(ctx, rest)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, c := range all {
		switch j := slices.Index(rest, c); {
		case c.out && !l.ended && !l.spent.Has(c.ID): // by a call beside this one
			got[i] = outcome{err: driver.ErrTaken}
		case l.ended || c.out:
			got[i] = outcome{err: fmt.Errorf("%s: %w", c.Name, driver.ErrGone)}
		case j >= 0:
			got[i] = won[j]
		default:
			got[i] = outcome{held: err == nil, err: err}
		}
	}
	return got
}

// enter tries for claims that are not held. A try that fails is taken back. Keys that were set
// before a renewal began may end before the deadline that it gives the lease: then they are
// extended once more before the claim is said to be held.
func (l *lease) enter(ctx context.Context, all []*claim) []outcome {
	got := make([]outcome, len(all))
	tries := make([]*attempt, len(all))
	l.mu.Lock()
	for i, c := range all {
		tries[i] = c.newAttemptLocked()
	}
	l.mu.Unlock()
	for open, n := tries, 0; len(open) > 0; n++ {
		if n == 2 { // who renews all the time waits for once
			l.gate <- struct{}{}
			defer func() { <-l.gate }()
		}
		l.mu.Lock()
		renewals := l.renewals
		l.mu.Unlock()
		sent := boottime.Now()
		rounds := l.round(ctx, open)
		slow := boottime.Now()-sent > l.ttl/2 // read before and after: what is left of the ttl has to be worth it
		l.mu.Lock()
		var again []*attempt
		for j, a := range open {
			i := slices.Index(tries, a)
			got[i] = rounds[j]
			switch {
			case !got[i].held || a.c.out || l.overLocked(boottime.Now()):
				got[i].held = false
				a.giveUpLocked()
			case slow && n >= 4:
				got[i] = outcome{err: errSlow}
				a.giveUpLocked()
			case slow || l.renewals != renewals:
				again = append(again, a)
			default:
				a.c.held = true
			}
		}
		l.mu.Unlock()
		open = again
	}
	return got
}

var errSlow = errors.New("the servers answer too slowly for this ttl")
