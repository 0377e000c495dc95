package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// check refuses what the keys cannot keep: a seat stands between other words.
func check(claims ...driver.Claim) error {
	if err := driver.CheckClaims(claims...); err != nil {
		return err
	}
	for _, c := range claims {
		const fit = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
		if len(c.Seat) > 16 || strings.Trim(c.Seat, fit) != "" {
			return fmt.Errorf("the seat %q of a claim on %q is not at most 16 letters and digits: %w",
				c.Seat, c.Name, driver.ErrRefused)
		}
	}
	return nil
}

// Claim implements [driver.Lease].
func (l *lease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	if err := check(claims...); err != nil || len(claims) == 0 {
		return nil, err
	}
	mine, err := l.beginClaim(claims)
	if err != nil {
		return nil, err
	}
	sc := claimScript
	if mayBeRefused(claims) {
		sc = tryScript
	}
	var places []driver.Place
	var final error
	_, err = l.ask(ctx, l.s.calls, sc, true, func(args []any) []any {
		args = append(args, len(claims))
		for i, c := range claims {
			args = append(args, c.Name, c.Seat, c.Slots, mine[i].n, c.ID, c.Value, c.Try)
		}
		return args
	}, func(got reply) { places, final = l.answeredLocked(claims, mine, got) })
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.enteredNothingLocked(mine, true)
		return nil, err
	}
	return places, final
}

// mayBeRefused says whether the answer to a Claim may be that nothing has entered. The store does
// not repeat such a Claim by itself: that answer would hide that the first call may still enter.
func mayBeRefused(claims []driver.Claim) bool {
	return slices.ContainsFunc(claims, func(c driver.Claim) bool { return c.Try || c.Slots != 0 })
}

// answeredLocked notes the answer to a Claim. The caller holds mu.
func (l *lease) answeredLocked(claims []driver.Claim, mine []*ownClaim, got reply) ([]driver.Place, error) {
	switch got.str(0) {
	case "OK":
		return l.enteredLocked(mine, got), nil
	case "TAKEN":
		l.enteredNothingLocked(mine, false)
		if ms := got.num(2); ms > 0 {
			return nil, fmt.Errorf("redis: the server started or took over: "+
				"nobody is granted a place for another %v: %w", got.ms(2), driver.ErrTaken)
		}
		return nil, driver.ErrTaken
	case "MISFIT":
		l.enteredNothingLocked(mine, false)
		c := claims[got.num(2)-1]
		return nil, driver.Misfit(c.Name, int(got.num(3)), c.Slots)
	case "GONE":
		l.enteredNothingLocked(mine, false)
		l.syncer.laterLocked() // if it stood once, its end has to become news
		return nil, fmt.Errorf("a claim of the call was given up: %w", driver.ErrGone)
	}
	l.enteredNothingLocked(mine, true)
	return nil, l.s.unexpected("claim", got)
}

// beginClaim notes that a call is to enter claims.
func (l *lease) beginClaim(claims []driver.Claim) ([]*ownClaim, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return nil, driver.ErrGone
	}
	for _, want := range claims {
		if l.spent.Has(want.ID) || l.releasing[want.ID] > 0 && l.claims[want.ID] == nil {
			return nil, fmt.Errorf("claim %s on %s was given up: %w", want.ID, want.Name, driver.ErrGone)
		}
	}
	l.inflight++
	mine := make([]*ownClaim, len(claims))
	for i, want := range claims {
		c := l.claims[want.ID]
		if c == nil {
			c = &ownClaim{l: l, name: want.Name, seat: want.Seat, slots: want.Slots, id: want.ID}
			c.n = l.numbers.next()
			l.claims[want.ID] = c
		}
		c.entering++
		mine[i] = c
	}
	return mine, nil
}

// enteredNothingLocked notes that a call entered nothing, or that its outcome is unknown. The
// caller holds mu.
func (l *lease) enteredNothingLocked(mine []*ownClaim, unknown bool) {
	defer l.claimEndedLocked()
	for _, c := range mine {
		c.entering--
		c.doubt = c.doubt || unknown
		if !c.doubt && !c.entered && c.entering == 0 && l.claims[c.id] == c {
			delete(l.claims, c.id)
			l.numbers.settle(c.n)
		}
	}
}

// claimEndedLocked notes that a call of Claim is over. The caller holds mu.
func (l *lease) claimEndedLocked() {
	if l.inflight--; l.inflight == 0 {
		clear(l.early)
	}
}

// enteredLocked notes the places that a call found in the line, and returns them. The caller holds
// mu.
func (l *lease) enteredLocked(mine []*ownClaim, got reply) []driver.Place {
	defer l.claimEndedLocked()
	var places []driver.Place
	for i, c := range mine {
		c.entering--
		p := driver.Place{Name: c.name, Seat: c.seat, Slots: c.slots, ID: c.id, Token: uint64(got.num(3 + 3*i))}
		epoch, pushed := l.early[p.Token]
		p.Held = got.num(4+3*i) == 1 || pushed && epoch == l.epoch
		delete(l.early, p.Token)
		places = append(places, p)
		if l.claims[c.id] != c { // released meanwhile
			continue
		}
		l.numbers.settle(c.n)
		c.doubt, c.entered, c.token = false, true, p.Token
		l.tokens[c.token] = c
		c.seenLocked(p.Held, got.ms(5+3*i))
		if c.stale {
			c.stale, c.at = false, time.Now()
		}
	}
	l.displacedLocked(mine)
	if got.str(2) != l.changes {
		l.syncer.laterLocked()
	}
	return places
}

// displacedLocked forgets the claims that the lease had on the seats of those that entered: the
// call has removed them. The caller holds mu.
func (l *lease) displacedLocked(mine []*ownClaim) {
	if len(l.claims) == len(mine) {
		return
	}
	at := make(map[storeutil.Seat]*ownClaim, len(mine))
	for _, c := range mine {
		at[storeutil.Seat{Name: c.name, Seat: c.seat}] = c
	}
	for _, c := range l.claims {
		o := at[storeutil.Seat{Name: c.name, Seat: c.seat}]
		if o != nil && o != c && c.entered && c.entering == 0 && c.token < o.token {
			c.forgetLocked()
		}
	}
}

// Update implements [driver.Lease].
func (l *lease) Update(ctx context.Context, p driver.Place, value []byte) error {
	got, err := l.ask(ctx, l.s.calls, updateScript, false, func(args []any) []any {
		return append(args, p.Name, p.Seat, p.Token, p.ID, value)
	}, nil)
	if err == nil && got.str(0) == "GONE" {
		return driver.ErrGone
	}
	return err
}

// Release implements [driver.Lease].
func (l *lease) Release(ctx context.Context, places ...driver.Place) error {
	if len(places) == 0 {
		return nil
	}
	n := l.beginRelease(places)
	defer l.endRelease(places)
	_, err := l.ask(ctx, l.s.calls, releaseScript, false, func(args []any) []any {
		args = append(args, len(places))
		for i, p := range places {
			args = dropped(args, p, n[i])
		}
		return args
	}, func(reply) { l.releasedLocked(places) })
	if errors.Is(err, driver.ErrGone) {
		return nil // and no Claim can enter any more
	}
	return err
}

// dropped appends the arguments of a script for a place to be given up.
func dropped(args []any, p driver.Place, n uint64) []any {
	journal, key, value := "", "", []byte(nil)
	if p.Record != nil && driver.CheckRecord(p.Journal, *p.Record) == nil {
		journal, key, value = p.Journal, p.Record.Key, p.Record.Value
	}
	return append(args, p.Name, p.Seat, strconv.FormatUint(p.Token, 10), n, p.ID, journal, key, value)
}

// beginRelease notes that places are being given up, and returns their numbers. These count as
// settled from now on: a Claim of theirs may not enter any more. Where the lease does not know the
// claim, none may begin before the release is answered either: it would have a number of its own,
// which the release does not forbid, and come to the server after it.
func (l *lease) beginRelease(places []driver.Place) []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]uint64, len(places))
	for i, p := range places {
		if c := l.claims[p.ID]; c != nil {
			all[i] = c.n
		} else {
			all[i] = l.numbers.next()
		}
		l.numbers.settle(all[i])
		l.releasing[p.ID]++
	}
	return all
}

// endRelease notes that a call which gives places up is over.
func (l *lease) endRelease(places []driver.Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range places {
		if l.releasing[p.ID]--; l.releasing[p.ID] == 0 {
			delete(l.releasing, p.ID)
		}
	}
}

// releasedLocked forgets places that were given up. The caller holds mu.
func (l *lease) releasedLocked(places []driver.Place) {
	for _, p := range places {
		if c := l.claims[p.ID]; c == nil {
			l.spent.Add(p.ID)
		} else if p.Token == 0 || c.token == 0 || c.token == p.Token {
			c.forgetLocked()
		}
	}
}

// Exchange implements [driver.Exchanger].
func (l *lease) Exchange(ctx context.Context, p driver.Place, want driver.Claim) (driver.Place, error) {
	if err := driver.CheckExchange(p, want); err != nil {
		return driver.Place{}, err
	}
	if err := check(want); err != nil {
		return driver.Place{}, err
	}
	mine, err := l.beginClaim([]driver.Claim{want})
	if err != nil {
		return driver.Place{}, err
	}
	n := l.beginRelease([]driver.Place{p})
	defer func() { l.endRelease([]driver.Place{p}) }()
	var places []driver.Place
	got, err := l.ask(ctx, l.s.calls, exchangeScript, true, func(args []any) []any {
		return append(dropped(args, p, n[0]), want.Name, want.Seat, mine[0].n, want.ID, want.Value)
	}, func(got reply) {
		if got.str(0) == "OK" {
			l.releasedLocked([]driver.Place{p})
			places = l.enteredLocked(mine, got)
		} else {
			l.enteredNothingLocked(mine, got.str(0) != "GONE")
		}
	})
	switch {
	case err != nil:
		l.mu.Lock()
		defer l.mu.Unlock() // before endRelease, which was deferred earlier
		l.enteredNothingLocked(mine, true)
		return driver.Place{}, err
	case len(places) > 0:
		return places[0], nil
	case got.str(0) == "GONE":
		return driver.Place{}, fmt.Errorf("claim %s on %s was given up: %w", want.ID, want.Name, driver.ErrGone)
	}
	return driver.Place{}, l.s.unexpected("exchange", got)
}

// Transfer implements [driver.Transferer].
func (l *lease) Transfer(ctx context.Context, p driver.Place, successor uint64) error {
	n := l.beginRelease([]driver.Place{p})
	defer func() { l.endRelease([]driver.Place{p}) }()
	got, err := l.ask(ctx, l.s.calls, transferScript, false, func(args []any) []any {
		return append(dropped(args, p, n[0]), strconv.FormatUint(successor, 10))
	}, func(got reply) {
		if got.str(0) == "OK" {
			l.releasedLocked([]driver.Place{p})
		}
	})
	if err != nil {
		return err
	}
	switch got.str(0) {
	case "OK":
		return nil
	case "GONE":
		return driver.ErrGone
	case "NOHEIR":
		return driver.ErrNoSuccessor
	case "REFUSED":
		return fmt.Errorf("%s under token %d is not held alone: %w", p.Name, p.Token, driver.ErrRefused)
	case "SAME":
		return fmt.Errorf("%s: the successor's claim is of the same lease: %w", p.Name, driver.ErrRefused)
	}
	return l.s.unexpected("transfer", got)
}
