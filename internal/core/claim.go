package core

// A claim, from standing to its end. Every word on an arrow is an event; the orders are in the
// code.
//
//	 out ── Stand ──▶ entering ── Entered ──▶ waiting ── Woken ──▶ leading ── Lost, Ask, lease ends ──▶ stopping
//	                   ▲  │  └───── Entered, held ────────────────▲  │                                     │
//	                   │  │                    │                     │                                     │
//	                   └──┼──────── Lost ──────┘                     │                                     │
//	                      │ GiveUp             │ GiveUp              │ GiveUp: the work is gone            │ GiveUp
//	                      ▼                    ▼                     ▼                                     ▼
//	                   leaving ◀───────────────┴─────────────────────┴──────────────────────────────── (if it stands)
//	                      └── Left, Missing, lease over ──▶ done
//
// The order is always the same: the context ends, the work returns, the right ends, and only then
// the claim is given up. With a successor it is handed over instead of released, until the store
// has said how that ended; if the successor stands no more, it is released after all.

// ClaimPhase is where a claim stands.
type ClaimPhase uint8

const (
	Out ClaimPhase = iota
	Entering
	Waiting
	Leading
	Stopping
	Leaving
	Done
)

// String returns the phase as one word.
func (p ClaimPhase) String() string {
	return [...]string{"out", "entering", "waiting", "leading", "stopping", "leaving", "done"}[p]
}

// ClaimEventKind is what happened to a claim.
type ClaimEventKind int

const (
	Stand       ClaimEventKind = iota // the owner wants a place in the line
	Entered                           // the store has the claim; Held says whether it is first
	Woken                             // it is first now
	Lost                              // it is no longer in the store, and we did not remove it
	Failed                            // the outcome of the call under way is unknown
	Rejected                          // the store will not have it: refused, or taken
	Ask                               // somebody asks us to give it up; Cause says how
	GiveUp                            // the owner gives it up: nothing acts under it any more
	Left                              // the store has confirmed the release, or the hand-over
	NoSuccessor                       // the store will not hand over, and the claim stands: the successor does not
	Missing                           // a hand-over found the claim gone: an earlier try may have done it
	LeaseEnding                       // the lease's soft end has come; Cause says why
	LeaseOver                         // the lease is over; Cause says why
)

// ClaimEvent is something that happened to a claim.
type ClaimEvent struct {
	Kind      ClaimEventKind
	Held      bool
	Cause     Cause
	Successor uint64 // for Ask and GiveUp: the token of the claim to hand over to; 0: whoever is next
}

// Action is a call on the store, or the end of the story.
type Action int

const (
	Nothing  Action = iota
	Enter           // enter the line
	Await           // wait until held
	Lead            // a term begins
	Leave           // release
	HandOver        // transfer to the successor
	Finish          // nothing is left to do
)

// ClaimOrder is what to do after an event.
type ClaimOrder struct {
	Do        Action
	Fresh     bool  // Enter under a new claim ID
	Tries     int   // > 0: the same call failed so many times; pause before it is made again
	Stop      bool  // end the term's context
	EndRight  bool  // from now on Check says no; before any Leave
	Free      bool  // nothing of this claim stands any more: another claim of this process may enter
	Cause     Cause // why, for Stop, EndRight and Finish
	Successor uint64
}

// Fate is what became of a hand-over.
type Fate uint8

const (
	Undecided     Fate = iota
	Handed             // the store has confirmed it
	SuccessorGone      // the successor stood no more: the claim was released
	Vanished           // the claim was gone
)

// Claim decides what becomes of one claim under one lease.
type Claim struct {
	phase     ClaimPhase
	cause     Cause
	askCause  Cause // asked for before it was known to be held
	gone      bool  // the store has it no more
	fate      Fate
	tries     int
	successor uint64
}

// Phase is where the claim stands.
func (c *Claim) Phase() ClaimPhase { return c.phase }

// Cause is why the claim's term is ending or has ended.
func (c *Claim) Cause() Cause { return c.cause }

// Successor is the token of the claim to hand over to, 0 if there is none.
func (c *Claim) Successor() uint64 { return c.successor }

// Fate is what has become of the hand-over so far.
func (c *Claim) Fate() Fate { return c.fate }

// Step takes one event. An event that does not fit the phase changes nothing: answers may come
// late.
func (c *Claim) Step(e ClaimEvent) ClaimOrder {
	switch c.phase {
	case Out:
		if e.Kind == Stand {
			return c.enter(true)
		}
	case Entering, Waiting:
		return c.stepStanding(e)
	case Leading:
		return c.stepLeading(e)
	case Stopping:
		return c.stepStopping(e)
	case Leaving:
		return c.stepLeaving(e)
	}
	return ClaimOrder{}
}

func (c *Claim) stepStanding(e ClaimEvent) ClaimOrder {
	switch e.Kind {
	case Entered:
		if c.phase == Waiting {
			break
		}
		if e.Held {
			return c.lead()
		}
		c.phase, c.tries = Waiting, 0
		return ClaimOrder{Do: Await}
	case Woken:
		if c.phase == Waiting {
			return c.lead()
		}
	case Lost:
		// Not the same claim again: a straggling release may still be under way for the old ID.
		// Lost while entering, again and again, it is rather the lease that is gone; until the
		// session hears of that the store is not to be hammered.
		tries := 0
		if c.phase == Entering {
			tries = c.tries + 1
		}
		o := c.enter(true)
		o.Tries, c.tries = tries, tries
		return o
	case Failed:
		c.tries++
		if c.phase == Waiting {
			return ClaimOrder{Do: Await, Tries: c.tries}
		}
		return ClaimOrder{Do: Enter, Tries: c.tries}
	case Rejected:
		if c.phase == Waiting || c.tries > 0 {
			return c.leave() // it stands, or an earlier try may have entered it: left there, it would block the line
		}
		return c.finish(None)
	case Ask:
		c.askCause, c.successor = e.Cause, e.Successor // it overtook the news that the claim is held
	case GiveUp:
		return c.leave()
	case LeaseEnding, LeaseOver:
		return c.finish(e.Cause) // the claim ends with its lease
	}
	return ClaimOrder{}
}

func (c *Claim) stepLeading(e ClaimEvent) ClaimOrder {
	switch e.Kind {
	case Lost:
		return c.stop(Deposed, true)
	case LeaseOver:
		return c.stop(e.Cause, true)
	case LeaseEnding:
		return c.stop(e.Cause, false)
	case Ask:
		c.successor = e.Successor
		return c.stop(e.Cause, false)
	case GiveUp:
		if c.cause = Resigned; e.Successor != 0 {
			c.cause = Transferred
		}
		return c.beginLeaving(e.Successor, true)
	}
	return ClaimOrder{}
}

func (c *Claim) stepStopping(e ClaimEvent) ClaimOrder {
	switch e.Kind {
	case Lost:
		c.gone = true
		return ClaimOrder{EndRight: true, Free: true, Cause: Deposed}
	case LeaseOver:
		c.gone = true
		return ClaimOrder{EndRight: true, Free: true, Cause: e.Cause}
	case Ask:
		if c.successor == 0 { // who asked first counts, as for the cause
			c.successor = e.Successor
		}
	case GiveUp:
		if c.gone {
			return c.finish(c.cause)
		}
		return c.beginLeaving(e.Successor, false)
	}
	return ClaimOrder{}
}

// beginLeaving begins to give up a claim that has led.
func (c *Claim) beginLeaving(successor uint64, stop bool) ClaimOrder {
	c.phase, c.tries = Leaving, 0
	if successor != 0 {
		c.successor = successor
	}
	o := c.leaveOrder()
	o.Stop, o.EndRight, o.Cause = stop, true, c.cause
	return o
}

// leaveOrder is the call that gives the claim up.
func (c *Claim) leaveOrder() ClaimOrder {
	if c.successor != 0 && c.fate == Undecided {
		return ClaimOrder{Do: HandOver, Successor: c.successor, Tries: c.tries}
	}
	return ClaimOrder{Do: Leave, Tries: c.tries}
}

func (c *Claim) stepLeaving(e ClaimEvent) ClaimOrder {
	handing := c.leaveOrder().Do == HandOver
	switch e.Kind {
	case Left:
		if handing {
			c.fate = Handed
		}
		return c.finish(c.cause)
	case NoSuccessor:
		if handing {
			c.fate, c.tries = SuccessorGone, 0
			return c.leaveOrder()
		}
	case Missing:
		if handing {
			c.fate = Vanished
		}
		return c.finish(c.cause)
	case Lost:
		if handing {
			break // it may be our own doing: the answer tells
		}
		return c.finish(c.cause)
	case LeaseOver:
		return c.finish(c.cause)
	case Failed:
		// It may stand or not. Nothing is forgotten until the store has confirmed it, or a ghost
		// would block the line.
		c.tries++
		return c.leaveOrder()
	}
	return ClaimOrder{}
}

// leave gives up a claim that never led: it has nothing to hand over.
func (c *Claim) leave() ClaimOrder {
	c.phase, c.cause, c.tries, c.successor = Leaving, Resigned, 0, 0
	return ClaimOrder{Do: Leave}
}

func (c *Claim) enter(fresh bool) ClaimOrder {
	c.phase, c.tries, c.askCause, c.successor = Entering, 0, None, 0
	return ClaimOrder{Do: Enter, Fresh: fresh}
}

func (c *Claim) lead() ClaimOrder {
	c.phase, c.tries = Leading, 0
	o := ClaimOrder{Do: Lead}
	if c.askCause != None {
		o.Stop, o.Cause = true, c.askCause
		c.phase, c.cause = Stopping, c.askCause
	}
	return o
}

// stop ends the context; with gone nothing stands any more, and the right is over at once.
func (c *Claim) stop(cause Cause, gone bool) ClaimOrder {
	c.phase, c.cause, c.gone = Stopping, cause, gone
	return ClaimOrder{Stop: true, EndRight: gone, Free: gone, Cause: cause}
}

func (c *Claim) finish(cause Cause) ClaimOrder {
	c.phase, c.cause = Done, cause
	return ClaimOrder{Do: Finish, Free: true, Cause: cause}
}
