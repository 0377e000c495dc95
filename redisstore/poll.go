package redisstore

import (
	"context"
	"time"

	"github.com/primacy-go/primacy/internal/storeutil"
)

const (
	// pollWaiting is after how long a place that waits is looked at whatever was pushed: a push may
	// be lost.
	pollWaiting = 2 * time.Second
	// pollHolding is the same for a place that holds and is followed.
	pollHolding = 5 * time.Second
	// perLook is how many claims are looked at in one script, so that none takes long.
	perLook = 500
)

// poller looks at the claims of a lease that somebody waits for, when the holder's lease may end
// and every few seconds. The lease's mutex guards what changes.
type poller struct {
	l       *lease
	wake    chan struct{} // has the times looked at again
	running bool
	all     bool // everything is to be looked at now
}

// wakeLocked makes sure that somebody looks in time. It is called when a claim is waited for. The
// caller holds the lease's mu.
func (p *poller) wakeLocked() {
	if !p.running {
		p.running = true
		p.l.s.spawn(p.run)
		return
	}
	storeutil.Signal(p.wake)
}

// lookAtAllLocked has every claim looked at that somebody waits for. The caller holds the lease's
// mu.
func (p *poller) lookAtAllLocked() {
	p.all = true
	storeutil.Signal(p.wake)
}

// run looks until nobody waits any more.
func (p *poller) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		waiting, holding, next, ok := p.due()
		if !ok {
			return
		}
		if len(waiting)+len(holding) > 0 {
			p.inParts(lookScript, waiting, p.lookedLocked)
			p.inParts(followScript, holding, p.wantedLocked)
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

// due returns the claims that are to be looked at now, those that wait and those that hold, and
// when the next one is. Without any (ok is false) the poller stops.
func (p *poller) due() (waiting, holding []*ownClaim, next time.Time, ok bool) {
	l := p.l
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, c := range l.claims {
		watched := !c.held && c.followed || c.wanted
		if !watched || !c.entered {
			continue
		}
		ok = true
		switch {
		case !p.all && c.at.After(now):
			if next.IsZero() || c.at.Before(next) {
				next = c.at
			}
		case c.held:
			holding = append(holding, c)
		default:
			waiting = append(waiting, c)
		}
	}
	p.all = false
	ok = ok && !l.gone
	p.running = ok
	return waiting, holding, next, ok
}

// inParts asks the server about claims, some in each call. After a failure they are looked at again
// a little later.
func (p *poller) inParts(sc *script, claims []*ownClaim, note func([]*ownClaim, reply)) {
	for len(claims) > 0 {
		part := claims[:min(perLook, len(claims))]
		claims = claims[len(part):]
		ctx, cancel := context.WithTimeout(p.l.s.ctx, callLimit)
		_, err := p.l.ask(ctx, p.l.s.calls, sc, false, func() []any {
			args := []any{len(part)}
			for _, c := range part {
				args = append(args, c.name, c.seat, c.id)
			}
			return args
		}, func(got reply) { note(part, got) })
		cancel()
		if err != nil {
			p.l.mu.Lock()
			defer p.l.mu.Unlock()
			for _, c := range part {
				c.at = time.Now().Add(200 * time.Millisecond)
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
		if l.claims[c.id] != c || !c.entered {
			continue
		}
		if uint64(got.num(3+3*i)) != c.token {
			missing, c.at = true, time.Now().Add(pollWaiting)
			continue
		}
		c.seenLocked(got.num(4+3*i) == 1, got.ms(5+3*i))
		if rest > pollWaiting && got.ms(5+3*i) > pollWaiting {
			c.at = time.Now().Add(min(rest, got.ms(5+3*i)))
		}
	}
	if missing {
		l.syncer.laterLocked()
	}
}

// wantedLocked notes whether others wait behind claims that hold. The caller holds the lease's mu.
func (p *poller) wantedLocked(part []*ownClaim, got reply) {
	for i, c := range part {
		c.at = time.Now().Add(pollHolding)
		if got.num(3+i) == 1 {
			c.wantedLocked()
		}
	}
}
