package redisstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

const (
	// pollWaiting is after how long a place that waits is looked at whatever was pushed: a push may
	// be lost.
	pollWaiting = 2 * time.Second
	// perLook is how many claims are looked at in one script, so that none takes long.
	perLook = 500
	// askAgain is the pause after a question that failed.
	askAgain = 200 * time.Millisecond
)

// poller looks at the followed claims of a lease: when the holder's lease may end, and every few
// seconds. The lease's mu guards all that changes.
type poller struct {
	l       *lease
	wake    chan struct{} // has the times looked at again
	running bool
	all     bool // everything is to be looked at now
}

// wakeLocked makes sure that run looks in time. It is called when a claim is followed. The caller
// holds the lease's mu.
func (p *poller) wakeLocked() {
	if !p.running {
		p.running = true
		p.l.s.spawn(p.run)
		return
	}
	storeutil.Signal(p.wake)
}

// lookAtAllLocked has every followed claim looked at. The caller holds the lease's mu.
func (p *poller) lookAtAllLocked() {
	p.all = true
	storeutil.Signal(p.wake)
}

// run looks until no claim is followed any more.
func (p *poller) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		claims, next, ok := p.due()
		if !ok {
			return
		}
		if len(claims) > 0 {
			p.look(claims)
			continue
		}
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-p.wake:
		case <-p.l.over:
			return
		case <-p.l.s.ctx.Done():
			return
		}
	}
}

// due returns the claims that are to be looked at now, and when the next one is. Without any (ok is
// false) run ends.
func (p *poller) due() (claims []*ownClaim, next time.Time, ok bool) {
	l := p.l
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, c := range l.claims {
		switch {
		case !c.followed || !c.entered:
			continue
		case p.all || !c.at.After(now):
			claims = append(claims, c)
		case next.IsZero() || c.at.Before(next):
			next = c.at
		}
		ok = true
	}
	p.all = false
	ok = ok && !l.gone
	p.running = ok
	return claims, next, ok
}

// look asks the server about claims, some in each call. After a failure they are looked at again a
// little later.
func (p *poller) look(claims []*ownClaim) {
	for part := range slices.Chunk(claims, perLook) {
		ctx, cancel := context.WithTimeout(p.l.s.ctx, callLimit)
		_, err := p.l.ask(ctx, p.l.s.calls, lookScript, false, func(args []any) []any {
			args = append(args, len(part))
			for _, c := range part {
				args = append(args, c.name, c.seat, c.id)
			}
			return args
		}, func(got reply) { p.lookedLocked(part, got) })
		cancel()
		if err != nil {
			p.l.mu.Lock()
			defer p.l.mu.Unlock()
			for _, c := range part {
				c.at = time.Now().Add(askAgain)
			}
			return
		}
	}
}

// lookedLocked notes how claims that waited stand. The caller holds the lease's mu.
func (p *poller) lookedLocked(part []*ownClaim, got reply) {
	l := p.l
	missing := got.str(2) != l.changes
	// A session that waits for very many names looks at them less often: each look takes the server
	// some µs.
	rest := time.Duration(len(l.claims)) * 10 * time.Millisecond
	for i, c := range part {
		at := 3 + 3*i
		switch {
		case l.claims[c.id] != c || !c.entered:
		case uint64(got.num(at)) != c.token:
			missing, c.at = true, time.Now().Add(pollWaiting)
		case got.num(at+1) < 0:
			c.unreadableLocked(l.s.wrap(l.s.ctx, lookScript.name, refusal(got.str(at+2))))
		default:
			c.seenLocked(got.num(at+1) == 1, got.ms(at+2))
			if rest > pollWaiting && got.ms(at+2) > pollWaiting {
				c.at = time.Now().Add(min(rest, got.ms(at+2)))
			}
		}
	}
	if missing {
		l.syncer.laterLocked()
	}
}

// unreadableLocked notes that the server could not say of the claim alone how it stands. What it
// refuses for good becomes news, and the claim is not followed any more. The caller holds the
// lease's mu.
func (c *ownClaim) unreadableLocked(err error) {
	if c.at = time.Now().Add(askAgain); c.followed && errors.Is(err, driver.ErrRefused) {
		c.followed = false
		c.l.addNewsLocked(driver.News{Place: c.place(), Refused: err})
	}
}
