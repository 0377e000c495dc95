package core

import "time"

// A lease, from grant to end:
//
//	            Accepted: deadline = asked + ttl − drift
//	               ┌──┐
//	 NewLease ──▶ alive ── deadline − grace ──▶ ending ── deadline ──▶ over
//	               └──────── Gone, Close ─────────┴────────────────────▶ over
//
// Ending: the terms' contexts have ended. Their right lasts until the deadline, so that the work
// can stop in order. No reply makes the lease alive again.

// LeasePhase is how far a lease has come.
type LeasePhase int

const (
	Alive LeasePhase = iota
	Ending
	Over
)

// LeaseEventKind is what happened to a lease.
type LeaseEventKind int

const (
	Tick     LeaseEventKind = iota // time has passed
	Accepted                       // the renewal asked for at Asked was accepted
	Unknown                        // the renewal asked for at Asked got no answer, or none that is final
	Gone                           // the store says that the lease is no more
	Close                          // the owner closes it
)

// LeaseEvent is something that happened to a lease.
type LeaseEvent struct {
	Kind  LeaseEventKind
	Asked Time // the clock's reading before the renewal was sent; it also says which renewal it was
	Idle  bool // nothing is held under the lease
}

// LeaseOrder is what to do after an event.
type LeaseOrder struct {
	Renew    bool  // send a renewal, limited to Timing.Attempt; its Asked is the now of this step
	Stop     Cause // not None: end the contexts of all terms, for this cause
	EndRight bool  // the right of all terms is over
	Wake     Time  // send a Tick at this time at the latest
}

// Lease decides until when a lease may be trusted and when it is renewed.
type Lease struct {
	timing   Timing
	phase    LeasePhase
	deadline Time
	next     Time // when the next renewal is due
	skipped  bool // the renewal that was due last was left out
	inFlight bool
	asked    Time // when the renewal in flight was sent
	misses   int  // renewals without an answer since the last accepted one
}

// NewLease returns a lease that was granted in answer to a call made at asked.
func NewLease(t Timing, asked Time) *Lease {
	return &Lease{timing: t, deadline: asked + t.Span(), next: asked + t.Every}
}

// Deadline is the instant from which nobody may act under this lease.
func (l *Lease) Deadline() Time { return l.deadline }

// SoftEnd is the instant at which the contexts of the terms end, if no renewal is accepted before.
func (l *Lease) SoftEnd() Time { return l.deadline - l.timing.Grace }

// Phase is how far the lease had come at the last step.
func (l *Lease) Phase() LeasePhase { return l.phase }

// Misses counts the renewals without an answer since the last accepted one.
func (l *Lease) Misses() int { return l.misses }

// Step takes one event. What is over by the clock is over, whatever the event says.
func (l *Lease) Step(now Time, e LeaseEvent) LeaseOrder {
	var o LeaseOrder
	l.passTime(now, &o)
	switch e.Kind {
	case Accepted, Unknown:
		l.answered(now, e)
	case Gone:
		l.finish(WhyGone(now, l.deadline), &o)
	case Close:
		l.finish(Closed, &o)
	}
	if l.phase == Alive && !l.inFlight && (now >= l.next || l.skipped && !e.Idle) {
		if l.skipped = e.Idle && l.maySkip(now); l.skipped {
			l.next = now + l.timing.Every
		} else {
			l.inFlight, l.asked, o.Renew = true, now, true
		}
	}
	o.Wake = l.wake()
	return o
}

// LeftOut says that the last renewal that was due was left out.
func (l *Lease) LeftOut() bool { return l.skipped }

// maySkip says whether the renewal that is due may be left out, where nothing is held: a fleet that
// stands by then asks half as much of the store. The deadline is as true as ever, only nearer. The
// next renewal must have the time of a second attempt, as every other one (see Timing.Validate).
// And it must have the time in which a store replaces a leader of its own that is frozen, or part
// of the fleet would lose its places in the lines. Who begins to hold renews at the next Tick.
func (l *Lease) maySkip(now Time) bool {
	t := l.timing
	return t.HalfIdle && !l.skipped && l.misses == 0 &&
		now+t.Every+t.Attempt+max(t.Attempt, storeElects) <= l.SoftEnd()
}

// storeElects is how long etcd takes to replace a frozen leader, at its default timing.
const storeElects = 2 * time.Second

// WhyGone says why a lease, or a claim under it, is no longer in the store. Before the deadline the
// store does not end a lease by itself, so somebody removed it.
func WhyGone(now, deadline Time) Cause {
	if now < deadline {
		return Deposed
	}
	return Expired
}

// passTime does what is due by the clock.
func (l *Lease) passTime(now Time, o *LeaseOrder) {
	if l.phase == Alive && now >= l.SoftEnd() {
		l.phase, o.Stop = Ending, Expired
	}
	if l.phase == Ending && now >= l.deadline {
		l.phase, o.EndRight = Over, true
	}
	if l.inFlight && now >= l.asked+l.timing.Attempt {
		l.missed(now) // the store's client has not come back in time: go on without it
	}
}

// answered takes the answer to a renewal.
func (l *Lease) answered(now Time, e LeaseEvent) {
	if l.phase != Alive {
		return // too late
	}
	if e.Kind == Accepted {
		// Also if it came after Attempt: the deadline counts from when the renewal was sent.
		l.deadline = max(l.deadline, e.Asked+l.timing.Span())
		l.misses = 0
		if e.Asked == l.asked {
			l.inFlight = false
		}
		if !l.inFlight {
			l.next = e.Asked + l.timing.Every
		}
		return
	}
	if l.inFlight && e.Asked == l.asked {
		l.missed(now)
	}
}

// missed counts a renewal without an answer.
func (l *Lease) missed(now Time) {
	l.inFlight = false
	l.misses++
	l.next = now + min(Pause(l.misses), l.timing.Every)
}

// finish ends the lease before its deadline, or after it if that was not seen yet.
func (l *Lease) finish(c Cause, o *LeaseOrder) {
	if l.phase == Over {
		return
	}
	if l.phase == Alive {
		o.Stop = c
	}
	l.phase, o.EndRight, l.deadline = Over, true, 0
}

// wake is when the next Tick is due.
func (l *Lease) wake() Time {
	switch l.phase {
	case Alive:
		if l.inFlight {
			return min(l.SoftEnd(), l.asked+l.timing.Attempt)
		}
		return min(l.SoftEnd(), l.next)
	case Ending:
		return l.deadline
	}
	return 0
}
