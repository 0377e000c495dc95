package cron

// attempt decides, step by step, about one attempt at one instant. It is pure: it says what to do
// next, its caller does that and says what came of it.
//
//	   ┌─ held: who has it? ─┐
//	   ▼                     │
//	stClaim ─ ours ─▶ stBegin ─ added ─▶ stRun ─ nothing is left of it ▶ stEnd ▶ stLeave ▶ stOver
//	   │                │ another's                               another's │
//	   │ decided        ▼                                                   ▼
//	   ▼             stLeave: duplicate suppressed     stLate: lost was said ─▶ stLeave
//	stOver           unknown, and the claim is over: stLeave (found lost)
//
// What makes it safe, in this order: the claim is held BEFORE the beginning is appended, and the
// command starts only if the claim, looked at after that, has been held all the while. So whoever
// holds the claim later and finds a beginning without an end knows that its runner never runs
// again, however long it was paused, and that whatever it still has under way says nothing but what
// is true. The append alone decides who runs; the claim only tells the living from the dead.
type attempt struct {
	id       ID
	forbid   bool
	replace  bool
	mustRun  bool // what catches up or is tried again waits for its turn: it is never recorded as overlap
	state    state
	tries    int // at the claim
	seen     int // how often the same other run was seen to hold it
	asked    bool
	declared bool // the end is another's: it was declared lost
}

type state int

const (
	stClaim state = iota
	stLook        // the claim is held by another: see who
	stSkip
	stAsk
	stPause
	stBegin
	stBeginAgain // the answer to the append was lost: ask again, if the claim is still held
	stRun
	stEnd
	stEndAgain
	stLate
	stLeave
	stBack // a run of the job under another definition has not ended: the claim is given back meanwhile
	stOver
)

// step is what the caller is to do next.
type step int

const (
	doClaim step = iota // try to take the claim. Then: ours, held, unknown, or full: there is no room for a command
	doLook              // read the journal. Then: decided, other (an older run holds the claim), nobody or unknown
	doSkip              // append that it is not run, as overlap. Then: added, other or unknown
	doAsk               // ask the older run to end. Then: anything, or held by a pause: nothing was asked
	doPause             // wait a moment. Then: done, or shut if the process is to end
	// append the beginning. Then: added (or found to be ours), other, unknown, or held: a run under
	// another claim has not ended
	doBegin
	doCheck // wait a moment and look whether the claim is still held. Then: ours or held
	// if the claim is held, run the command until nothing of it is left. Then: done, with the
	// verdict
	doRun
	doEnd     // append the end. Then: added, other or unknown
	doLate    // append what is to be said though another has declared it lost. Then: anything
	doLeave   // give the claim up, or let it go. Then: anything
	doNothing // it is over
)

// event is what came of a step.
type event int

const (
	evUnknown event = iota
	evOurs
	evHeld
	evDecided
	evOther
	evNobody
	evAdded
	evDone
	evShut
	evFull
)

const (
	maxTries = 20 // at a claim that others hold; then the next look at the schedule tries again
	sure     = 2  // so often in a row an older run is seen to hold the claim before an instant is given up as overlap
)

// next returns what to do in the present state.
func (a *attempt) next() step {
	return map[state]step{stClaim: doClaim, stLook: doLook, stSkip: doSkip, stAsk: doAsk, stPause: doPause,
		stBegin: doBegin, stBeginAgain: doCheck, stRun: doRun,
		stEnd: doEnd, stEndAgain: doPause, stLate: doLate, stLeave: doLeave, stBack: doLeave,
		stOver: doNothing}[a.state]
}

// take takes in what came of the step.
func (a *attempt) take(e event) {
	switch a.state {
	case stClaim:
		a.claimed(e)
	case stLook:
		a.looked(e)
	case stAsk:
		if a.asked, a.state = true, stPause; e == evHeld {
			a.state = stOver
		}
	case stPause:
		a.state = stClaim
		if a.tries++; a.tries > maxTries || e == evShut {
			a.state = stOver
		}
	case stSkip:
		a.state = stOver // unknown: the next look at the schedule sees it, or tries again
	case stBegin:
		a.began(e)
	case stBeginAgain:
		a.state = stLeave
		if e == evOurs {
			a.state = stBegin
		}
	case stRun:
		a.state = stEnd
	case stEnd:
		a.ended(e)
	case stEndAgain:
		a.state = stEnd
		if e == evShut {
			a.state = stLeave
		}
	case stLate:
		a.state = stLeave
	case stBack:
		a.state = stLook
	case stLeave:
		a.state = stOver
	}
}

func (a *attempt) claimed(e event) {
	switch e {
	case evOurs:
		a.state = stBegin
	case evHeld:
		a.state = stLook
	case evFull: // the next look at the schedule tries again
		a.state = stOver
	default:
		a.state = stPause
	}
}

func (a *attempt) looked(e event) {
	if e != evOther {
		a.seen = 0
	}
	switch {
	case e == evDecided:
		a.state = stOver
	case e == evOther && a.replace && !a.mustRun && !a.asked:
		a.state = stAsk
	case e == evOther && a.forbid && !a.mustRun:
		if a.seen++; a.seen >= sure {
			a.state = stSkip
			return
		}
		a.state = stPause
	default:
		a.state = stPause
	}
}

func (a *attempt) began(e event) {
	switch e {
	case evAdded:
		a.state = stRun
	case evOther:
		a.state = stLeave
	case evHeld:
		a.state = stBack
	default:
		a.state = stBeginAgain
	}
}

func (a *attempt) ended(e event) {
	switch e {
	case evAdded:
		a.state = stLeave
	case evOther:
		a.declared, a.state = true, stLate
	default:
		a.state = stEndAgain
	}
}
