package core

// A claim, from its entry to its end:
//
//	phase     event                    next phase
//	out       Stand                    entering
//	entering  Entered                  waiting; leading if it is held
//	waiting   Woken                    leading
//	either    Lost                     entering, under a new ID
//	          Rejected                 done; leaving if it may be in the line
//	          GiveUp                   leaving
//	          LeaseEnding, if Closed   leaving: the lease lives until all work has stopped
//	          LeaseEnding, LeaseOver   done; the owner may enter another claim under the next lease
//	leading   Ask, LeaseEnding         stopping
//	          GiveUp                   leaving
//	          Lost, LeaseOver          ended
//	stopping  GiveUp                   leaving
//	          Lost, LeaseOver          ended
//	ended     GiveUp                   done
//	leaving   Left, Missing, LeaseOver done; also Lost, but not during a hand-over
//
// While the store has the claim, the order is: the context ends, the work returns, the right ends,
// the claim is given up. If the store has lost the claim, another may lead already: then context
// and right end at once. A claim with a successor is handed over to it. If the store refuses
// that, the claim is released.

// ClaimPhase is how far a claim has come. The phases follow each other; a claim may skip some.
type ClaimPhase uint8

const (
	Out      ClaimPhase = iota // it has not entered yet
	Entering                   // a call that enters it is under way, or is due
	Waiting                    // it is in the line, and not known to be held
	Leading                    // the context and the right live
	Stopping                   // the context has ended, the right lives, and the work stops
	Ended                      // the right has ended, since the store has lost the claim; work may still run
	Leaving                    // the right has ended, and the claim is being released or handed over
	Done                       // the store has no claim, and the owner does nothing more for it
)

// GivenUp reports whether the owner has given the claim up, or is done with it: Leaving or Done.
func (p ClaimPhase) GivenUp() bool { return p >= Leaving }

// String returns the phase as one word.
func (p ClaimPhase) String() string {
	return [...]string{"out", "entering", "waiting", "leading", "stopping", "ended", "leaving", "done"}[p]
}

// ClaimEventKind is what happened to a claim.
type ClaimEventKind int

const (
	Stand       ClaimEventKind = iota // the owner wants a place in the line
	Entered                           // the store has the claim; Held says whether it is first
	Woken                             // it is first now
	Lost                              // the store has lost it, and we did not remove it
	Failed                            // the outcome of the call under way is unknown: it may have happened
	Rejected                          // the store will not have it: refused, or taken
	Ask                               // somebody asks us to give it up; Cause is Resigned, or Transferred to Successor
	GiveUp                            // the owner gives it up: no work runs under it any more
	Left                              // the store has confirmed the release, or the hand-over
	NoSuccessor                       // the store will not hand over, as when the successor has left the line
	Missing                           // a hand-over found the claim gone: an earlier try of it may have succeeded
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

// Action is what the owner does next: a call on the store, but for Nothing, Lead and Finish.
type Action int

const (
	Nothing  Action = iota
	Enter           // enter the line
	Await           // wait until held
	Lead            // a term begins
	Leave           // release
	HandOver        // transfer to the successor
	Finish          // the claim is over
)

// ClaimOrder is what to do after an event.
type ClaimOrder struct {
	Do        Action
	NewID     bool  // Enter under a new claim ID
	Tries     int   // > 0: the same call failed so many times; pause before it is made again
	Stop      bool  // end the term's context
	EndRight  bool  // from now on Check says no; before any Leave
	Free      bool  // the store has the claim no more: another claim of this process may enter
	NextLease bool  // the lease ended before the claim led: the owner may enter another claim under the next lease
	Cause     Cause // why, for Stop, EndRight and Finish
	Successor uint64
}

// Outcome is what became of a hand-over.
type Outcome uint8

const (
	Undecided     Outcome = iota
	Handed                // the store has confirmed it
	SuccessorGone         // the store refused it, as after NoSuccessor: the claim was released
	ClaimMissing          // the claim was gone: an earlier try of the hand-over may have succeeded
)

// Claim decides what becomes of one claim under one lease.
type Claim struct {
	phase     ClaimPhase
	cause     Cause
	askCause  Cause   // of an Ask that came before the news that the claim is held
	outcome   Outcome // of the hand-over
	tries     int     // of the present call
	successor uint64
}

// Phase is how far the claim has come.
func (c *Claim) Phase() ClaimPhase { return c.phase }

// Cause is why the claim's term is ending or has ended.
func (c *Claim) Cause() Cause { return c.cause }

// Successor is the token of the claim to hand over to, 0 if there is none.
func (c *Claim) Successor() uint64 { return c.successor }

// Outcome is what has become of the hand-over so far.
func (c *Claim) Outcome() Outcome { return c.outcome }

// EndsByAsk reports whether an Ask in this phase is why the term ends: while it waits or leads.
func (c *Claim) EndsByAsk() bool { return c.phase <= Leading }

// TakesSuccessor reports whether the successor of an Ask in this phase counts: while the claim
// waits or leads, and while its work stops, if no successor was named before.
func (c *Claim) TakesSuccessor() bool {
	return c.phase <= Leading || c.phase == Stopping && c.successor == 0
}

// Step takes one event. An event that does not fit the phase changes nothing: answers may come
// late.
func (c *Claim) Step(e ClaimEvent) ClaimOrder {
	switch c.phase {
	case Out:
		if e.Kind == Stand {
			return c.enterAnew()
		}
	case Entering, Waiting:
		return c.stepStanding(e)
	case Leading:
		return c.stepLeading(e)
	case Stopping:
		return c.stepStopping(e)
	case Ended:
		if e.Kind == GiveUp {
			return c.finish(c.cause)
		}
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
		// Under a new ID: a release of the old one may still be under way. A claim that is lost
		// each time it enters has probably lost its lease. It pauses until the session hears that.
		tries := 0
		if c.phase == Entering {
			tries = c.tries + 1
		}
		o := c.enterAnew()
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
			return c.leave() // it stands, or an earlier try may have entered it: it would block the line
		}
		return c.finish(None)
	case Ask:
		c.askCause, c.successor = e.Cause, e.Successor // the news that the claim is held is still to come
	case GiveUp:
		return c.leave()
	case LeaseEnding, LeaseOver:
		if e.Kind == LeaseEnding && e.Cause == Closed {
			return c.leave() // else it would come first meanwhile, and nobody would lead
		}
		o := c.finish(e.Cause)
		o.NextLease = true
		return o
	}
	return ClaimOrder{}
}

func (c *Claim) stepLeading(e ClaimEvent) ClaimOrder {
	switch e.Kind {
	case Lost:
		return c.stopAndEnd(Deposed)
	case LeaseOver:
		return c.stopAndEnd(e.Cause)
	case LeaseEnding:
		return c.stop(e.Cause)
	case Ask:
		c.successor = e.Successor
		return c.stop(e.Cause)
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
		return c.end(Deposed)
	case LeaseOver:
		return c.end(e.Cause)
	case Ask:
		if c.TakesSuccessor() {
			c.successor = e.Successor
		}
	case GiveUp:
		return c.beginLeaving(e.Successor, false)
	}
	return ClaimOrder{}
}

// beginLeaving begins to give up a claim that has led. With stop the context has not ended yet.
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
	if c.successor != 0 && c.outcome == Undecided {
		return ClaimOrder{Do: HandOver, Successor: c.successor, Tries: c.tries}
	}
	return ClaimOrder{Do: Leave, Tries: c.tries}
}

func (c *Claim) stepLeaving(e ClaimEvent) ClaimOrder {
	handing := c.leaveOrder().Do == HandOver
	switch e.Kind {
	case Left:
		if handing {
			c.outcome = Handed
		}
		return c.finish(c.cause)
	case NoSuccessor:
		if handing {
			c.outcome, c.tries = SuccessorGone, 0
			return c.leaveOrder()
		}
	case Missing:
		if handing {
			c.outcome = ClaimMissing
		}
		return c.finish(c.cause)
	case Lost:
		if handing {
			break // the hand-over under way may have removed it: its answer tells
		}
		return c.finish(c.cause)
	case LeaseOver:
		return c.finish(c.cause)
	case Failed:
		// It may still stand. It would block the line, so the call is repeated until the store has
		// confirmed it.
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

// enterAnew enters the line under a new claim ID.
func (c *Claim) enterAnew() ClaimOrder {
	c.phase, c.tries, c.askCause, c.successor = Entering, 0, None, 0
	return ClaimOrder{Do: Enter, NewID: true}
}

// lead begins the term, and its end too if that was asked for already.
func (c *Claim) lead() ClaimOrder {
	c.phase, c.tries = Leading, 0
	o := ClaimOrder{Do: Lead}
	if c.askCause != None {
		o.Stop, o.Cause = true, c.askCause
		c.phase, c.cause = Stopping, c.askCause
	}
	return o
}

// stop ends the context, and leaves the right until the work has returned.
func (c *Claim) stop(cause Cause) ClaimOrder {
	c.phase, c.cause = Stopping, cause
	return ClaimOrder{Stop: true, Cause: cause}
}

// end ends the right of a claim that the store has lost. Cause is why the right ends; c.cause stays
// why the context ended.
func (c *Claim) end(cause Cause) ClaimOrder {
	c.phase = Ended
	return ClaimOrder{EndRight: true, Free: true, Cause: cause}
}

// stopAndEnd ends context and right in one step.
func (c *Claim) stopAndEnd(cause Cause) ClaimOrder {
	c.cause = cause
	o := c.end(cause)
	o.Stop = true
	return o
}

func (c *Claim) finish(cause Cause) ClaimOrder {
	c.phase, c.cause = Done, cause
	return ClaimOrder{Do: Finish, Free: true, Cause: cause}
}
