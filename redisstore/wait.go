package redisstore

import (
	"context"
	"time"

	"github.com/primacy-go/primacy/driver"
)

const (
	// poll is after how long a place that waits is looked at whatever was pushed: a push may be lost.
	poll = 2 * time.Second
	// pollWanted is the same for a place that holds and is followed.
	pollWanted = 5 * time.Second
)

// Wait blocks until the place is held: by a push that says so, or by a look of the vigil.
func (l *lease) Wait(ctx context.Context, p driver.Place) (driver.Place, error) {
	first := true
	for {
		l.mu.Lock()
		c := l.claims[p.ID]
		if l.gone || c == nil || !c.entered || p.Token != 0 && c.token != p.Token {
			l.mu.Unlock()
			return driver.Place{}, driver.ErrGone
		}
		if c.held && (c.fresh || !first) {
			c.fresh = false
			held := c.place()
			l.mu.Unlock()
			return held, nil
		}
		if c.held {
			l.mu.Unlock()
			return l.stillHeld(ctx, c)
		}
		if first {
			first = false
			c.waits++
			defer func() {
				l.mu.Lock()
				c.waits--
				l.mu.Unlock()
			}()
			l.vigil(c)
		}
		moved := c.moved
		l.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return driver.Place{}, ctx.Err()
		case <-l.s.ctx.Done():
			return driver.Place{}, errClosed
		}
	}
}

// stillHeld reads how a place stands that was known to hold before Wait was called.
func (l *lease) stillHeld(ctx context.Context, c *claim) (driver.Place, error) {
	held := driver.Place{}
	err := l.about(ctx, lookScript, []*claim{c}, func(got reply) {
		if uint64(got.num(3)) == c.token && got.num(4) == 1 && l.claims[c.id] == c {
			held = c.place()
		} else {
			l.later()
		}
	})
	if err == nil && !held.Held {
		err = driver.ErrGone
	}
	return held, err
}

// Follow has News tell what becomes of places.
func (l *lease) Follow(places ...driver.Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range places {
		c := l.claims[p.ID]
		switch {
		case c == nil || !c.entered || p.Token != 0 && c.token != p.Token: // News has told, or its owner released it
			continue
		case p.Held:
			c.wants, c.at = true, time.Now()
		case c.held:
			l.tell(driver.News{Place: c.place(), Held: true})
			continue
		default:
			c.follows = true
		}
		l.vigil(c)
	}
}

// vigil makes sure that somebody looks at c in time. The caller has the mutex.
func (l *lease) vigil(c *claim) {
	if !l.watched {
		l.watched = true
		l.s.spawn(l.watch)
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// due returns the claims that are to be looked at now, those that wait and those that hold, and when the next one is. Nobody is
// watched any more when there is none.
func (l *lease) due() (waiting, holding []*claim, next time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, c := range l.claims {
		watched := !c.held && (c.waits > 0 || c.follows) || c.wants
		if !watched || !c.entered {
			continue
		}
		ok = true
		switch {
		case !l.doubt && c.at.After(now):
			if next.IsZero() || c.at.Before(next) {
				next = c.at
			}
		case c.held:
			holding = append(holding, c)
		default:
			waiting = append(waiting, c)
		}
	}
	l.doubt = false
	ok = ok && !l.gone
	l.watched = ok
	return waiting, holding, next, ok
}

// watch looks at places that are waited for, at the holder's expiry or after poll, until there are none.
func (l *lease) watch() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		waiting, holding, next, ok := l.due()
		if !ok {
			return
		}
		if len(waiting)+len(holding) > 0 {
			l.look(waiting)
			l.want(holding)
			continue
		}
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-l.wake:
		case <-l.over:
			return
		case <-l.s.ctx.Done():
			return
		}
	}
}

// some is how many claims are looked at in one script, so that none takes long.
const some = 500

// look asks how claims that wait stand.
func (l *lease) look(claims []*claim) {
	for len(claims) > 0 {
		part := claims[:min(some, len(claims))]
		claims = claims[len(part):]
		if l.soon(lookScript, part, func(got reply) { l.looked(part, got) }) != nil {
			l.again(part)
			return
		}
	}
}

// looked notes how claims stand. The caller has the mutex.
func (l *lease) looked(part []*claim, got reply) {
	missing := got.str(2) != l.changes
	// A session that waits for very many names looks at them less often: each look takes the server some µs.
	rest := time.Duration(len(l.claims)) * 10 * time.Millisecond
	for i, c := range part {
		if l.claims[c.id] != c || !c.entered {
			continue
		}
		if uint64(got.num(3+3*i)) != c.token {
			missing, c.at = true, time.Now().Add(poll)
			continue
		}
		l.seen(c, got.num(4+3*i) == 1, got.ms(5+3*i))
		if rest > poll && got.ms(5+3*i) > poll {
			c.at = time.Now().Add(min(rest, got.ms(5+3*i)))
		}
	}
	if missing {
		l.later()
	}
}

// want asks whether others wait behind claims that hold.
func (l *lease) want(claims []*claim) {
	for len(claims) > 0 {
		part := claims[:min(some, len(claims))]
		claims = claims[len(part):]
		err := l.soon(followScript, part, func(got reply) {
			for i, c := range part {
				c.at = time.Now().Add(pollWanted)
				if got.num(3+i) == 1 {
					l.wanted(c)
				}
			}
		})
		if err != nil {
			l.again(part)
			return
		}
	}
}

// wanted tells, once, that another waits behind a claim. The caller has the mutex.
func (l *lease) wanted(c *claim) {
	if c.wants && l.claims[c.id] == c {
		c.wants = false
		l.tell(driver.News{Place: c.place(), Wanted: true})
	}
}

// soon is about for what nobody waits for.
func (l *lease) soon(sc *script, part []*claim, take func(reply)) error {
	ctx, cancel := context.WithTimeout(l.s.ctx, callLimit)
	defer cancel()
	return l.about(ctx, sc, part, take)
}

// about runs a script that takes name, seat and ID of claims.
func (l *lease) about(ctx context.Context, sc *script, part []*claim, take func(reply)) error {
	_, err := l.ask(ctx, l.s.calls, sc, false, func() []any {
		args := []any{len(part)}
		for _, c := range part {
			args = append(args, c.name, c.seat, c.id)
		}
		return args
	}, take)
	return err
}

// again has claims looked at a little later, after a failure.
func (l *lease) again(claims []*claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range claims {
		c.at = time.Now().Add(200 * time.Millisecond)
	}
}
