package primacy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// lease is one lease of a session, from grant to end. It has two goroutines: beat sets the deadline
// and has the only timer; watch takes the store's news of the claims. A term keeps the pointer to
// its lease, so it never sees the deadline of a later lease.
type lease struct {
	s            *Session
	stored       driver.Lease
	timing       core.Timing
	deadline     atomic.Int64 // on the boot clock; 0 after Gone or Close. One that has passed stays
	lastDeadline atomic.Int64 // the last deadline that was not 0
	held         atomic.Int64 // how many claims have a right
	leftOut      atomic.Bool  // the renewal that was due last was left out, since nothing was held
	renewing     atomic.Bool  // a call of Renew has not returned
	stalls       stalls
	newsErr      atomic.Pointer[error] // what the last call of News failed with; nil: it told news
	newsBegan    atomic.Int64          // when the present call of News began, by uptime
	events       chan core.LeaseEvent
	ctx          context.Context // ends when the lease is over
	cancel       context.CancelFunc
	core         *core.Lease // only beat uses it

	mu           sync.Mutex
	endCause     core.Cause          // why the lease is ending; None: it takes new claims
	claims       map[seat]*claim     // the last of each seat, until it is freed
	stillWorking map[*claim]struct{} // freed claims: work still runs under them, or they are about to call forget
	moved        chan struct{}       // closed and made anew when the deadline moves or the lease is over
}

// newLease returns a lease that the store has granted in answer to a call made at asked.
func newLease(s *Session, stored driver.Lease, asked core.Time) *lease {
	timing := s.o.timing(stored.TTL())
	timing.HalfIdle = timing.HalfIdle && !s.store.Caps().ChainedRenew
	c := core.NewLease(timing, asked)
	ctx, cancel := context.WithCancel(context.Background())
	l := &lease{
		s: s, stored: stored, core: c, timing: timing, ctx: ctx, cancel: cancel,
		events: make(chan core.LeaseEvent, 4), moved: make(chan struct{}),
		claims: map[seat]*claim{}, stillWorking: map[*claim]struct{}{},
	}
	l.stalls.clock, l.stalls.timing = s.clock, timing
	l.deadline.Store(int64(c.Deadline()))
	l.lastDeadline.Store(int64(c.Deadline()))
	l.stalls.wakeBy.Store(int64(c.Deadline()))
	return l
}

func (l *lease) start() {
	l.s.log.log(slog.LevelDebug, "lease granted", "lease", l.stored.ID(), "ttl", l.timing.TTL)
	go l.beat()
	go l.watch()
}

// alive says whether new claims and terms may begin under this lease.
func (l *lease) alive() bool {
	return l.cause() == core.None && l.s.clock() < core.Time(l.deadline.Load())-l.timing.Grace
}

// cause is why the lease is ending, None while it is not.
func (l *lease) cause() core.Cause {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.endCause
}

// overCause is why the lease is over. The clock may say so before beat has seen it: then the lease
// has expired.
func (l *lease) overCause() core.Cause { return cmp.Or(l.cause(), core.Expired) }

// beat renews the lease and ends it in time. It makes no call itself, so no store client holds it
// up. It reads the clock at least once a second, since timers stand still in suspend. core.Lease
// says what is due: a renewal, the end of all contexts, the end of all rights.
func (l *lease) beat() {
	defer l.drop()
	defer l.cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	e := core.LeaseEvent{Kind: core.Tick}
	for {
		now := l.s.clock()
		l.stalls.woke(now)
		e.Idle = l.held.Load() == 0
		o := l.core.Step(now, e)
		l.leftOut.Store(l.core.LeftOut())
		if e.Kind == core.Accepted && l.core.Phase() == core.Alive { // else the answer came too late
			l.stalls.overslept.Store(0)
		}
		l.carryOut(now, o)
		if l.core.Phase() == core.Over {
			return
		}
		from := l.s.clock()
		wait := min(time.Second, max(0, o.Wake-from))
		l.stalls.wakeBy.Store(int64(from + wait))
		timer.Reset(wait)
		select {
		case e = <-l.events:
		case <-timer.C:
			e = core.LeaseEvent{Kind: core.Tick}
		}
	}
}

// carryOut carries out an order of core. It stores the cause and the deadline before it tells the
// claims: Check must say no by then, with that cause. If Session.Close has ended the terms'
// contexts before, the claims keep the cause Closed.
func (l *lease) carryOut(now core.Time, o core.LeaseOrder) {
	cause := l.setEnding(o.Stop)
	if d := int64(l.core.Deadline()); d != l.deadline.Load() || o.EndRight {
		l.deadline.Store(d)
		if d != 0 {
			l.lastDeadline.Store(d)
		}
		l.mu.Lock()
		close(l.moved)
		l.moved = make(chan struct{})
		l.mu.Unlock()
	}
	if o.Stop != core.None {
		l.notifyClaims(core.ClaimEvent{Kind: core.LeaseEnding, Cause: cause})
		if o.Stop != core.Closed {
			l.s.log.log(slog.LevelWarn, "lease ending",
				"lease", l.stored.ID(), "cause", o.Stop.String(), "misses", l.core.Misses())
		}
		if cause != core.Closed { // else Session.Close has ended the contexts
			l.s.readers.publish(Event{Kind: LeaseLost, Lease: l.stored.ID(), Cause: causeError(o.Stop)})
		}
	}
	if o.EndRight {
		l.notifyClaims(core.ClaimEvent{Kind: core.LeaseOver, Cause: cause})
	}
	if o.Renew {
		go l.renew(now)
	}
}

// renew sends one renewal. It sends none while the store's client has not come back from an earlier
// one; if that goes on, the lease ends.
func (l *lease) renew(asked core.Time) {
	e := core.LeaseEvent{Kind: core.Unknown, Asked: asked} // no answer, or an error that is not final
	sent := l.s.uptime()
	err, cancelled := context.DeadlineExceeded, false // the result if none is sent
	if l.renewing.CompareAndSwap(false, true) {
		ctx, cancel := context.WithTimeout(l.ctx, l.timing.Attempt)
		err = l.stored.Renew(ctx)
		cancel()
		cancelled = err != nil && l.ctx.Err() != nil
		l.renewing.Store(false)
		switch {
		case err == nil:
			e.Kind = core.Accepted
		case errors.Is(err, driver.ErrGone):
			e.Kind = core.Gone
		default:
			l.s.log.log(slog.LevelDebug, "renewal failed", "lease", l.stored.ID(), "err", err)
		}
	}
	took := l.s.uptime() - sent
	if !cancelled { // else the lease's own end cancelled it, which says nothing of the store
		l.countRenewal(err, took)
	}
	l.post(e)
	if !cancelled {
		l.s.outages.answered(l.s.clock(), l.timing.TTL, l.timing.Attempt, took, err)
	}
}

func (l *lease) countRenewal(err error, took time.Duration) {
	ev := Event{Kind: Renewed, Lease: l.stored.ID(), Took: took, Cause: err}
	switch {
	case err == nil:
		l.s.stats.renewals.Add(1)
	case errors.Is(err, context.DeadlineExceeded):
		ev.Kind = RenewalMissed
		l.s.stats.late.Add(1)
	default:
		ev.Kind = RenewalMissed
		l.s.stats.otherMisses.Add(1)
	}
	l.s.readers.publish(ev)
}

func (l *lease) post(e core.LeaseEvent) {
	select {
	case l.events <- e:
	case <-l.ctx.Done():
	}
}

// watch takes the store's news of the lease's claims.
func (l *lease) watch() {
	for try := 1; ; {
		l.newsBegan.Store(int64(l.s.uptime()))
		news, err := l.stored.News(l.ctx)
		switch {
		case l.ctx.Err() != nil:
			return
		case errors.Is(err, driver.ErrGone):
			l.post(core.LeaseEvent{Kind: core.Gone})
			return
		case err != nil:
			l.newsErr.Store(&err)
			if isRefusal(err) {
				for _, c := range l.standingClaims() {
					c.refused("", err)
				}
			}
			if pause(l.ctx, try) != nil {
				return
			}
			try++
			continue
		}
		l.newsErr.Store(nil)
		try = 1
		for _, n := range news {
			l.deliver(n)
		}
	}
}

// lastNewsError returns what the last call of News failed with. It returns nil if the present call
// has lasted for a while: the store has nothing to tell, and does not fail any more.
func (l *lease) lastNewsError() error {
	err := l.newsErr.Load()
	if err == nil || l.s.uptime()-time.Duration(l.newsBegan.Load()) > l.timing.Attempt {
		return nil
	}
	return *err
}

// deliver brings one piece of news to the claim that has the seat.
func (l *lease) deliver(n driver.News) {
	l.mu.Lock()
	c := l.claims[seat{n.Place.Name, n.Place.Seat}]
	l.mu.Unlock()
	if c == nil {
		return
	}
	switch {
	case n.Gone:
		e := core.ClaimEvent{Kind: core.Lost}
		if core.WhyGone(l.s.clock(), core.Time(l.deadline.Load())) == core.Expired {
			// The deadline has passed, and beat has not seen it yet: the process was frozen. The
			// store ended the lease by itself: nobody deposed the claim.
			e = core.ClaimEvent{Kind: core.LeaseOver, Cause: l.overCause()}
		}
		c.notify(n.Place.ID, e, nil)
	case n.Held:
		c.heldNow(n.Place)
	case n.Refused != nil:
		c.refused(n.Place.ID, n.Refused)
	case n.Request != nil:
		c.takeRequest(n.Place.ID, *n.Request)
	}
}

// join adds a claim, unless the lease is ending: such a claim would not be told of the end.
func (l *lease) join(c *claim) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.endCause != core.None {
		return false
	}
	if old := l.claims[c.seat]; old != nil {
		// Old has given its seat back, and is about to call forget. Close must find it until then.
		l.stillWorking[old] = struct{}{}
	}
	l.claims[c.seat] = c
	return true
}

// forget drops a claim that is freed. If it is not idle, work still runs under it: then close goes
// on waiting for it.
func (l *lease) forget(c *claim, idle bool) {
	l.mu.Lock()
	if l.claims[c.seat] == c {
		delete(l.claims, c.seat)
	}
	if idle {
		delete(l.stillWorking, c)
	} else {
		l.stillWorking[c] = struct{}{}
	}
	l.mu.Unlock()
	l.drop()
}

// drop has the session forget the lease, if the lease is over and nothing runs under it.
func (l *lease) drop() {
	l.mu.Lock()
	idle := len(l.claims)+len(l.stillWorking) == 0
	l.mu.Unlock()
	if idle && l.ctx.Err() != nil {
		l.s.mu.Lock()
		delete(l.s.leases, l)
		l.s.mu.Unlock()
	}
}

// end is for Session.Close. It refuses new claims, and then ends the contexts of all terms. Beat
// goes on renewing the lease until close, so that the work has its time to stop.
func (l *lease) end(cause core.Cause) {
	l.notifyClaims(core.ClaimEvent{Kind: core.LeaseEnding, Cause: l.setEnding(cause)})
}

// setEnding keeps the first cause that is not None, and returns it: the lease is ending for it.
func (l *lease) setEnding(cause core.Cause) core.Cause {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endCause = cmp.Or(l.endCause, cause)
	return l.endCause
}

// notifyClaims tells all claims, one after the other. It does not hold the lease's lock, which
// comes after a claim's.
func (l *lease) notifyClaims(e core.ClaimEvent) {
	for _, c := range l.standingClaims() {
		c.notify("", e, nil)
	}
}

func (l *lease) standingClaims() []*claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*claim, 0, len(l.claims))
	for _, c := range l.claims {
		all = append(all, c)
	}
	return all
}

// close waits until all claims are idle, and then ends the lease in the store.
func (l *lease) close(ctx context.Context) error {
	l.mu.Lock()
	busy := slices.AppendSeq(slices.Collect(maps.Keys(l.stillWorking)), maps.Values(l.claims))
	l.mu.Unlock()
	for _, c := range busy {
		if c.currentTerm() == nil {
			continue // it never led, and never will: it may go with the lease, if the store does not release it
		}
		idle := c.idle()
		if idle == nil {
			continue // also if ctx has ended
		}
		select {
		case <-idle:
		case <-ctx.Done():
			l.post(core.LeaseEvent{Kind: core.Close}) // every right here ends; the store's lease runs out
			return fmt.Errorf("primacy: close: %s (%w); its lease is left to run out", c.pendingWhat(), context.Cause(ctx))
		}
	}
	if l.ctx.Err() != nil || l.s.clock() >= core.Time(l.deadline.Load()) {
		return nil // the store ends it by itself
	}
	l.post(core.LeaseEvent{Kind: core.Close})
	err := l.s.retry(ctx, "close the lease", func(ctx context.Context) error { return l.stored.Close(ctx) })
	if errors.Is(err, driver.ErrGone) {
		return nil
	}
	return err
}

// abandon closes a lease that nobody will use.
func (l *lease) abandon() {
	defer l.cancel()
	ctx, cancel := context.WithTimeout(l.ctx, l.timing.TTL)
	defer cancel()
	_ = l.stored.Close(ctx) // if this fails the lease runs out by itself: it has no claims
}
