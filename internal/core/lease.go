package core

// A lease, from grant to end:
//
//	            Accepted: deadline = asked + ttl − drift
//	               ┌──┐
//	 NewLease ──▶ alive ── deadline − grace ──▶ ending ── deadline ──▶ over
//	               └──────── Gone, Close ─────────┴────────────────────▶ over
//
// Ending: the terms' contexts have ended, their right lasts until the deadline so that the work can
// stop in order. There is no way back: a reply that comes later revives nothing.

// LeasePhase is where a lease stands.
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
	Unknown                        // the renewal asked for at Asked has an unknown outcome
	Gone                           // the store says that the lease is no more
	Close                          // the owner closes it
)

// LeaseEvent is something that happened to a lease. Asked is the clock's reading before the renewal
// was sent; it also tells an answer to the renewal in flight from one that was given up.
type LeaseEvent struct {
	Kind  LeaseEventKind
	Asked Time
}

// LeaseOrder is what to do after an event.
type LeaseOrder struct {
	Renew bool  // send a renewal, limited to Timing.Attempt; its Asked is the now of this step, read before the call
	End   Cause // not None: end the contexts of all terms, for this cause
	Over  bool  // the right of all terms is over
	Wake  Time  // send a Tick at this time at the latest
}

// Lease decides until when a lease may be trusted and when it is renewed.
type Lease struct {
	timing   Timing
	phase    LeasePhase
	cause    Cause
	deadline Time
	next     Time // when the next renewal is due
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

// SoftEnd is the instant at which the contexts of the terms end unless a renewal is accepted
// before.
func (l *Lease) SoftEnd() Time { return l.deadline - l.timing.Grace }

// Phase is where the lease stands as of the last step.
func (l *Lease) Phase() LeasePhase { return l.phase }

// Misses counts the renewals without an answer since the last accepted one.
func (l *Lease) Misses() int { return l.misses }

// Step takes one event. Time comes first: what the clock says is over stays over, whatever the
// event brings.
func (l *Lease) Step(now Time, e LeaseEvent) LeaseOrder {
	var o LeaseOrder
	l.passTime(now, &o)
	switch e.Kind {
	case Accepted, Unknown:
		l.answered(now, e)
	case Gone:
		// Before the deadline the store cannot have ended it by itself: somebody revoked it.
		cause := Deposed
		if now >= l.deadline {
			cause = Expired
		}
		l.finish(cause, &o)
	case Close:
		l.finish(Closed, &o)
	}
	if l.phase == Alive && !l.inFlight && now >= l.next {
		l.inFlight, l.asked, o.Renew = true, now, true
	}
	o.Wake = l.wake()
	return o
}

func (l *Lease) passTime(now Time, o *LeaseOrder) {
	if l.phase == Alive && now >= l.SoftEnd() {
		l.phase, l.cause, o.End = Ending, Expired, Expired
	}
	if l.phase == Ending && now >= l.deadline {
		l.phase, o.Over = Over, true
	}
	if l.inFlight && now >= l.asked+l.timing.Attempt {
		// The store client did not come back in the time it was given: go on without it.
		l.missed(now)
	}
}

func (l *Lease) answered(now Time, e LeaseEvent) {
	if l.phase != Alive {
		return // too late: a reply revives nothing
	}
	if e.Kind == Accepted {
		// Also when it had been given up: it counts from when it was sent, so a late answer only
		// adds less.
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

func (l *Lease) missed(now Time) {
	l.inFlight = false
	l.misses++
	l.next = now + min(Pause(l.misses), l.timing.Every)
}

func (l *Lease) finish(c Cause, o *LeaseOrder) {
	if l.phase == Over {
		return
	}
	if l.phase == Alive {
		l.cause, o.End = c, c
	}
	l.phase, o.Over, l.deadline = Over, true, 0
}

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
