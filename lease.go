package primacy

import (
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

// lease is one lease of a session, from grant to end. It has two goroutines however many claims it
// carries: beat, which owns the deadline and the only timer, and watch, which hears what happened
// to the claims. A term keeps the pointer to its lease, so that it never sees the deadline of a
// later one.
type lease struct {
	s         *Session
	dl        driver.Lease
	timing    core.Timing
	deadline  atomic.Int64 // on the boot clock; 0 once the right is over before its time
	trusted   atomic.Int64 // the last deadline that was not 0: the store keeps the lease at least so long
	renewing  atomic.Bool
	newsErr   atomic.Pointer[error] // what the store said to the last call of News; nil: it told news
	newsBegan atomic.Int64          // by uptime, the call of News that is under way
	events    chan core.LeaseEvent
	ctx       context.Context // ends when the lease is over
	stop      context.CancelFunc
	core      *core.Lease // beat's alone

	mu     sync.Mutex
	ending core.Cause          // not None: takes no new claims
	claims map[seat]*claim     // that stand
	busy   map[*claim]struct{} // of which nothing stands any more, but whose work runs
	moved  chan struct{}       // closed and made anew when the deadline moves or the lease is over
}

func newLease(s *Session, dl driver.Lease, c *core.Lease) *lease {
	ctx, stop := context.WithCancel(context.Background())
	l := &lease{
		s: s, dl: dl, core: c, timing: s.o.timing(dl.TTL()), ctx: ctx, stop: stop,
		events: make(chan core.LeaseEvent, 4), claims: map[seat]*claim{}, busy: map[*claim]struct{}{}, moved: make(chan struct{}),
	}
	l.deadline.Store(int64(c.Deadline()))
	l.trusted.Store(int64(c.Deadline()))
	return l
}

func (l *lease) start() {
	l.s.log.log(slog.LevelDebug, "lease granted", "lease", l.dl.ID(), "ttl", l.timing.TTL)
	go l.beat()
	go l.watch()
}

// alive says whether new claims and terms may begin: the contexts under this lease have not ended.
func (l *lease) alive() bool {
	return l.cause() == core.None && l.s.clock() < core.Time(l.deadline.Load())-l.timing.Grace
}

// cause is why the lease is ending, None while it is not.
func (l *lease) cause() core.Cause {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ending
}

// beat renews the lease and ends it in time, whatever the store client is doing: every call runs
// beside it.
//
// It looks at the clock once a second at least: timers stand still in suspend, and would be late by
// as much after it.
func (l *lease) beat() {
	defer l.finish()
	timer := time.NewTimer(0)
	defer timer.Stop()
	e := core.LeaseEvent{Kind: core.Tick}
	for {
		now := l.s.clock()
		o := l.core.Step(now, e)
		l.carryOut(now, o)
		if l.core.Phase() == core.Over {
			return
		}
		timer.Reset(min(time.Second, max(0, o.Wake-l.s.clock())))
		select {
		case e = <-l.events:
		case <-timer.C:
			e = core.LeaseEvent{Kind: core.Tick}
		}
	}
}

func (l *lease) carryOut(now core.Time, o core.LeaseOrder) {
	l.mu.Lock()
	if l.ending == core.None {
		l.ending = o.End // before the deadline moves, so that a Check in between knows the cause
	}
	l.mu.Unlock()
	if d := int64(l.core.Deadline()); d != l.deadline.Load() || o.Over {
		l.deadline.Store(d) // first: Check must say no before anybody is told
		if d != 0 {
			l.trusted.Store(d)
		}
		l.mu.Lock()
		close(l.moved)
		l.moved = make(chan struct{})
		l.mu.Unlock()
	}
	if o.End != core.None {
		l.end(o.End)
		l.s.log.log(slog.LevelWarn, "lease ending", "lease", l.dl.ID(), "cause", o.End.String(), "misses", l.core.Misses())
		l.s.readers.event(Event{Kind: LeaseLost, Lease: l.dl.ID(), Cause: causeError(o.End)})
	}
	if o.Over {
		l.notifyClaims(core.ClaimEvent{Kind: core.LeaseOver, Cause: l.cause()})
	}
	if o.Renew {
		go l.renew(now)
	}
}

// renew sends one renewal. A store client that ignores its context keeps renewing set: then no
// other is sent, and the lease ends.
func (l *lease) renew(asked core.Time) {
	e := core.LeaseEvent{Kind: core.Unknown, Asked: asked}
	sent := l.s.uptime()
	err := context.DeadlineExceeded // of the one that is still under way
	if l.renewing.CompareAndSwap(false, true) {
		ctx, cancel := context.WithTimeout(l.ctx, l.timing.Attempt)
		err = l.dl.Renew(ctx)
		cancel()
		l.renewing.Store(false)
		switch {
		case err == nil:
			e.Kind = core.Accepted
		case errors.Is(err, driver.ErrGone):
			e.Kind = core.Gone
		default:
			l.s.log.log(slog.LevelDebug, "renewal failed", "lease", l.dl.ID(), "err", err)
		}
	}
	l.countRenewal(err, l.s.uptime()-sent)
	l.post(e)
}

func (l *lease) countRenewal(err error, took time.Duration) {
	ev := Event{Kind: Renewed, Lease: l.dl.ID(), Took: took, Cause: err}
	switch {
	case err == nil:
		l.s.stats.renewals.Add(1)
	case errors.Is(err, context.DeadlineExceeded):
		ev.Kind = RenewalMissed
		l.s.stats.late.Add(1)
	default:
		ev.Kind = RenewalMissed
		l.s.stats.failed.Add(1)
	}
	l.s.readers.event(ev)
}

func (l *lease) post(e core.LeaseEvent) {
	select {
	case l.events <- e:
	case <-l.ctx.Done():
	}
}

// watch hears what happened to the claims that their owner did not do.
func (l *lease) watch() {
	for try := 1; ; {
		l.newsBegan.Store(int64(time.Since(l.s.born)))
		news, err := l.dl.News(l.ctx)
		switch {
		case l.ctx.Err() != nil:
			return
		case errors.Is(err, driver.ErrGone):
			l.post(core.LeaseEvent{Kind: core.Gone})
			return
		case err != nil:
			l.newsErr.Store(&err)
			if isFinal(err) {
				for _, c := range l.standing() {
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

// newsError returns what the store said when it was asked for news last, nil if it has told some
// since. A call that has lasted is a sign of health.
func (l *lease) newsError() error {
	err := l.newsErr.Load()
	if err == nil || l.s.uptime()-time.Duration(l.newsBegan.Load()) > l.timing.Attempt {
		return nil
	}
	return *err
}

func (l *lease) deliver(n driver.News) {
	l.mu.Lock()
	c := l.claims[seat{n.Place.Name, n.Place.Seat}]
	l.mu.Unlock()
	if c == nil {
		return
	}
	switch {
	case n.Gone:
		c.notify(n.Place.ID, core.ClaimEvent{Kind: core.Lost}, nil)
	case n.Held:
		c.heldNow(n.Place)
	case n.Refused != nil:
		c.refused(n.Place.ID, n.Refused)
	case n.Request != nil:
		c.takeRequest(n.Place.ID, *n.Request)
	}
}

// join takes a claim in, unless the lease is ending: each claim that joined hears of the end.
func (l *lease) join(c *claim) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending != core.None {
		return false
	}
	if old := l.claims[c.seat]; old != nil {
		l.busy[old] = struct{}{} // it has left the seat, and is about to say whether its work runs
	}
	l.claims[c.seat] = c
	return true
}

// forget drops a claim of which nothing stands any more, and with quiet none of whose work runs
// either.
func (l *lease) forget(c *claim, quiet bool) {
	l.mu.Lock()
	if l.claims[c.seat] == c {
		delete(l.claims, c.seat)
	}
	if quiet {
		delete(l.busy, c)
	} else {
		l.busy[c] = struct{}{}
	}
	l.mu.Unlock()
	l.drop()
}

// finish ends what belongs to the lease.
func (l *lease) finish() {
	l.stop()
	l.drop()
}

// drop lets the session forget a lease that is over and under which nothing runs.
func (l *lease) drop() {
	l.mu.Lock()
	idle := len(l.claims)+len(l.busy) == 0
	l.mu.Unlock()
	if idle && l.ctx.Err() != nil {
		l.s.mu.Lock()
		delete(l.s.leases, l)
		l.s.mu.Unlock()
	}
}

// end refuses new claims and ends the contexts of all terms.
func (l *lease) end(cause core.Cause) {
	l.mu.Lock()
	if l.ending == core.None {
		l.ending = cause
	}
	l.mu.Unlock()
	l.notifyClaims(core.ClaimEvent{Kind: core.LeaseEnding, Cause: cause})
}

// notifyClaims tells all claims, one after the other and without holding the lock: a claim's lock
// comes before the lease's.
func (l *lease) notifyClaims(e core.ClaimEvent) {
	for _, c := range l.standing() {
		c.notify("", e, nil)
	}
}

func (l *lease) standing() []*claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*claim, 0, len(l.claims))
	for _, c := range l.claims {
		all = append(all, c)
	}
	return all
}

// close waits until no claim stands and no work runs, and only then ends the lease in the store.
func (l *lease) close(ctx context.Context) error {
	l.mu.Lock()
	busy := slices.AppendSeq(slices.Collect(maps.Keys(l.busy)), maps.Values(l.claims))
	l.mu.Unlock()
	for _, c := range busy {
		quiet := c.untilQuiet()
		if quiet == nil {
			continue // whatever ctx says
		}
		select {
		case <-quiet:
		case <-ctx.Done():
			l.post(core.LeaseEvent{Kind: core.Close})
			return fmt.Errorf("primacy: close: %s (%w); its lease is left to run out", c.pendingWhat(), context.Cause(ctx))
		}
	}
	if l.ctx.Err() != nil || l.s.clock() >= core.Time(l.deadline.Load()) {
		return nil // over by itself: the store ends it in its own time
	}
	l.post(core.LeaseEvent{Kind: core.Close})
	err := l.s.retry(ctx, "close the lease", func(ctx context.Context) error { return l.dl.Close(ctx) })
	if errors.Is(err, driver.ErrGone) {
		return nil
	}
	return err
}

// abandon closes a lease that nobody will use.
func (l *lease) abandon() {
	defer l.stop()
	ctx, cancel := context.WithTimeout(l.ctx, l.timing.TTL)
	defer cancel()
	_ = l.dl.Close(ctx) // if it fails the lease runs out by itself; it carries nothing
}
