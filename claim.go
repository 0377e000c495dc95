package primacy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// claim is one claim under one lease. It takes events and carries out what core.Claim orders, as
// far as that needs no store: it ends contexts and rights, and gives its seat back. Its executor
// makes the calls on the store.
type claim struct {
	l *lease
	seat
	*claimSpec // all claims of an Elections have the same one
	executor   executor

	mu     sync.Mutex
	free   chan struct{} // closed when freed is set; made when somebody waits for that
	quiet  chan struct{} // closed when freed is set and no work runs; made when somebody waits for that
	core   core.Claim
	place  driver.Place
	term   *Term
	values context.Context // of the campaign, for the term's context
	freed  bool            // the claim does not stand any more
	*claimRest
}

// claimRest is what a claim needs once it leads, or once somebody asked for it. Ten thousand claims
// that only wait do without: makeRoomLocked allocates it.
type claimRest struct {
	shares     []*Term         // the terms of all in this process who hold a lock under this claim
	request    *driver.Request // asks for the claim: it ends the term, or has ended it
	why        error           // the cause of the caller's own context, if that ended the term
	working    int             // calls of a candidate's work, or of a lock's Do, that run
	last       error           // what the store said to the last call that failed
	won        time.Time       // by the wall clock
	contextEnd time.Duration   // when the term's context ended, by uptime
	rightOver  bool            // Check says no for good
	words      string          // why the term ended, as Term.Explain was told
	failed     bool            // the work failed, as Term.Explain was told
	to         string          // the ID of the session that is to get the claim
	said       []byte          // the value proclaimed last
	record     termRecording
	handOvers  handOverRequests
}

// claimSpec is what a claim is for.
type claimSpec struct {
	seat
	slots    int  // as in driver.Claim
	try      bool // the claim is made only if it holds at once
	lock     bool // the claim's terms are a lock's
	turnBits uint // how many bits of a term's token lockToken adds to the claim's
	priority int  // a request with a smaller one is not heard
	value    []byte
	watched  []observer
	began    time.Duration // when the campaign began, by uptime
	// press asks leaders to hand over while the claim waits; may be nil.
	press func(context.Context, *claim)
	// exchange makes the claim and gives another one up in one call; may be nil. Where it answers
	// ErrRefused the claim is made by itself.
	exchange func(context.Context, driver.Claim) (driver.Place, error)
	// onEvent tells a lock's queue what became of its claim; may be nil.
	onEvent func(core.QueueEventKind)
}

// executor makes the calls on the store that a claim orders: a campaign does so for one claim, the
// workers of an Elections for many. The caller holds the claim's lock.
type executor interface {
	// carryLocked makes the call of an order that news led to, not an answer to the executor.
	carryLocked(o core.ClaimOrder)
	// releaseLocked begins to give the claim up, or to hand it over.
	releaseLocked(o core.ClaimOrder)
	// refusedLocked is called when the store will not have the claim, now or when asked again.
	refusedLocked(err error)
	// wonLocked is called when the claim leads. It returns when the campaign began, by uptime.
	wonLocked() time.Duration
	// endedLocked is called when the term's context has ended.
	endedLocked(cause core.Cause)
	// leaveSeatLocked lets the next claim of this process stand for the seat.
	leaveSeatLocked()
	// freedLocked is called when the claim does not stand any more. Was is the phase before. With
	// again the executor keeps the seat and makes a claim under the next lease.
	freedLocked(was core.ClaimPhase, again bool)
}

// observer watches claims and decides nothing: statistics, events, history, the log. The caller
// holds the claim's lock.
type observer interface {
	begunLocked(c *claim, began time.Duration)
	steppedLocked(c *claim, s step)
}

// step is one step of a claim that leads or has led.
type step struct {
	event      core.ClaimEventKind
	was        core.ClaimPhase // the phase before it
	order      core.ClaimOrder
	rightEnded bool // the right ended in this step
}

// makeRoomLocked allocates claimRest. The caller holds mu, as for all methods that end in Locked.
func (c *claim) makeRoomLocked() {
	if c.claimRest == nil {
		c.claimRest = &claimRest{}
	}
}

// take keeps the place that the store has answered with. It returns the store's error, or what is
// wrong with the place.
func (c *claim) take(asked, got driver.Place, err error) error {
	if err == nil && !c.fits(asked, got) {
		err = fmt.Errorf("%s answered with the place %+v for the claim %s", c.l.s.store.Caps().Store, got, asked.ID)
	}
	if err == nil && c.place.ID == asked.ID {
		c.place = got // also if the answer came too late: then the place is released by its token
	}
	return err
}

// fits says whether got is what was asked for. A term under another place would be a second leader.
func (c *claim) fits(asked, got driver.Place) bool {
	return got.ID == asked.ID && got.Name == asked.Name && got.Seat == asked.Seat && got.Slots == asked.Slots &&
		(!got.Held || got.Token != 0 || c.l.s.store.Caps().Token == driver.TokenNone) && got.Token>>(64-c.turnBits) == 0
}

// heldNow takes the news that the place is held.
func (c *claim) heldNow(p driver.Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case p.ID != c.place.ID || c.core.Phase() != core.Waiting || c.values.Err() != nil:
		// A claim whose campaign was given up leaves, and never leads.
	case !p.Held || !c.fits(c.place, p):
		c.executor.carryLocked(c.stepLocked(core.ClaimEvent{Kind: core.Failed})) // it is followed again
	default:
		c.place = p
		c.executor.carryLocked(c.stepLocked(core.ClaimEvent{Kind: core.Woken}))
	}
}

// refused takes the store's final answer that it tells nothing about the place with that ID, or
// with id "" about any place. A claim that waits gives up: it would never learn that it leads.
func (c *claim) refused(id string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.core.Phase() != core.Waiting || id != "" && id != c.place.ID {
		return
	}
	c.executor.refusedLocked(err)
	c.executor.carryLocked(c.stepLocked(core.ClaimEvent{Kind: core.Rejected}))
}

// takeRequest takes a request to give the claim up.
func (c *claim) takeRequest(id string, r driver.Request) {
	if r.Priority != 0 && !core.Yields(c.priority, r.Priority) {
		return
	}
	if r.To == "" {
		c.notify(id, core.ClaimEvent{Kind: core.Ask, Cause: core.Resigned}, &r)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.makeRoomLocked()
	c.handOvers.addLocked(c, handOverRequest{id, r})
}

// answeredLocked takes the answer to the call that entered the claim.
func (c *claim) answeredLocked(got driver.Place, err error) core.ClaimOrder {
	if err == nil {
		return c.stepLocked(core.ClaimEvent{Kind: core.Entered, Held: got.Held})
	}
	e := failed(err)
	if e.Kind == core.Rejected {
		c.executor.refusedLocked(err)
	}
	return c.stepLocked(e)
}

// failed returns the event that a call's error stands for.
func failed(err error) core.ClaimEvent {
	switch {
	case errors.Is(err, driver.ErrGone):
		return core.ClaimEvent{Kind: core.Lost}
	case isFinal(err):
		return core.ClaimEvent{Kind: core.Rejected}
	}
	return core.ClaimEvent{Kind: core.Failed}
}

// notify takes an event that came from outside, with the request that caused it, or nil. With an id
// it counts only if the claim still has that ID.
func (c *claim) notify(id string, e core.ClaimEvent, r *driver.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id != "" && id != c.place.ID {
		return
	}
	if r != nil && c.core.Phase() <= core.Leading {
		c.makeRoomLocked()
		c.request = r
	}
	if r != nil && (c.core.Phase() < core.Leading || c.core.Phase() <= core.Stopping && c.core.Successor() == 0) {
		c.makeRoomLocked()
		c.to = r.To
	}
	o := c.stepLocked(e)
	if o.Do == core.Nothing || c.core.Phase() == core.Leaving {
		return
	}
	c.executor.carryLocked(o)
}

// step takes one event and returns the call to make on the store.
func (c *claim) step(e core.ClaimEvent) core.ClaimOrder {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stepLocked(e)
}

// stepLocked takes one event and carries out what needs no store. The promise depends on this
// order: nobody learns that the claim is free, in this process or by a call on the store, before
// Check says no.
//
// The usual end takes two steps. LeaseEnding or Ask ends the context, so that the work stops;
// GiveUp says that it has stopped, and ends the right.
//
// One step ends both where the claim is known to be gone (Lost, LeaseOver), or where its owner
// resigns without having been asked (GiveUp while leading). Then the right ends first. A claim that
// is gone may have a successor that leads already, so Check must say no at once; after a GiveUp no
// work runs that the context could still reach.
func (c *claim) stepLocked(e core.ClaimEvent) core.ClaimOrder {
	s := step{event: e.Kind, was: c.core.Phase()}
	o := c.core.Step(e)
	s.order = o
	if o.Fresh {
		c.refreshLocked()
	}
	if o.Do == core.Lead {
		c.leadLocked()
	}
	if o.EndRight {
		s.rightEnded = c.endRightLocked(o.Cause)
	}
	if o.Stop {
		for _, t := range c.termsLocked() {
			t.endContext(c.endedErrorLocked(t.token, o.Cause))
		}
		c.contextEnd = c.l.s.uptime()
		c.executor.endedLocked(o.Cause)
	}
	if c.term != nil {
		for _, w := range c.watched {
			w.steppedLocked(c, s)
		}
	}
	if o.Free && !c.freed {
		c.freeLocked(s)
	}
	return o
}

// refreshLocked gives the claim a new ID: news of the old one is not for the new one.
func (c *claim) refreshLocked() {
	c.place = driver.Place{Name: c.name, Seat: c.id, Slots: c.slots, ID: rand.Text()}
	if c.claimRest != nil {
		c.request, c.to = nil, ""
	}
}

// leadLocked begins the claim's term.
func (c *claim) leadLocked() {
	c.makeRoomLocked()
	c.term = newTerm(c, c.values, Token(c.place.Token<<c.turnBits))
	c.won = time.Now().Round(0)
	began := c.executor.wonLocked()
	for _, w := range c.watched {
		w.begunLocked(c, began)
	}
}

// endRightLocked makes Check of all terms say no. First says that no earlier step did.
func (c *claim) endRightLocked(cause core.Cause) (first bool) {
	for _, t := range c.termsLocked() {
		t.endRight(c.endedErrorLocked(t.token, cause))
		t.watchOverrunLocked()
	}
	first = !c.rightOver
	c.rightOver = true
	return first
}

// freeLocked says that the claim does not stand any more. It gives the seat back first: a campaign
// that begins because released has returned must find the seat free.
func (c *claim) freeLocked(s step) {
	c.freed = true
	again := (s.was == core.Entering || s.was == core.Waiting) && s.order.Cause != core.None // its lease ended
	if !again {
		c.executor.leaveSeatLocked()
	}
	if c.free != nil {
		close(c.free)
	}
	c.executor.freedLocked(s.was, again)
	c.settleLocked()
}

// termsLocked returns the claim's own term and the terms of all who hold a lock under it.
func (c *claim) termsLocked() []*Term { return append(c.shares[:len(c.shares):len(c.shares)], c.term) }

// endedErrorLocked returns the error that a term of the claim ends with.
func (c *claim) endedErrorLocked(token Token, cause core.Cause) *EndedError {
	e := &EndedError{Name: c.name, Token: token, Cause: causeError(cause), lock: c.lock}
	if c.why != nil && cause == core.Resigned {
		e.Cause = c.why
	}
	if c.request != nil && (cause == core.Resigned || cause == core.Transferred) {
		e.By, e.Reason = c.request.By, c.request.Reason
	}
	return e
}

// release gives the claim up, or hands it over, and repeats it until the store has confirmed it or
// the lease is over.
func (c *claim) release(o core.ClaimOrder) {
	for o.Do == core.Leave || o.Do == core.HandOver {
		if pause(c.l.ctx, o.Tries) != nil {
			c.step(core.ClaimEvent{Kind: core.LeaseOver})
			return
		}
		ctx, cancel := context.WithTimeout(c.l.ctx, c.l.timing.Attempt)
		c.mu.Lock()
		p := c.leavingPlaceLocked()
		c.mu.Unlock()
		e := core.ClaimEvent{Kind: core.Left}
		if o.Do == core.HandOver {
			e.Kind = c.handOver(ctx, p, o)
		} else if err := c.l.dl.Release(ctx, p); err != nil && !errors.Is(err, driver.ErrGone) {
			e.Kind = core.Failed
			c.l.s.log.log(slog.LevelDebug, "release failed", "election", c.name, "try", o.Tries, "err", err)
		}
		cancel()
		o = c.step(e)
	}
}

// handOver asks the store once to hand the claim over, and says what came of it.
func (c *claim) handOver(ctx context.Context, p driver.Place, o core.ClaimOrder) core.ClaimEventKind {
	tr, ok := c.l.dl.(driver.Transferer)
	err := driver.ErrRefused
	if ok {
		err = tr.Transfer(ctx, p, o.Successor)
	}
	c.mu.Lock()
	c.last = err
	ev := Event{Name: c.name, Token: c.term.token, Lease: c.l.dl.ID(), To: c.to}
	c.mu.Unlock()
	switch {
	case err == nil:
		c.l.s.log.log(slog.LevelInfo, "handed over",
			"election", c.name, "token", c.place.Token, "successor", o.Successor)
		ev.Kind = HandedOver
		c.l.s.readers.event(ev)
		return core.Left
	case errors.Is(err, driver.ErrGone):
		return core.Missing
	case errors.Is(err, driver.ErrNoSuccessor), isFinal(err):
		ev.Kind, ev.Cause = NotHandedOver, err
		c.l.s.readers.event(ev)
		c.l.s.log.log(slog.LevelWarn, "not handed over but released",
			"election", c.name, "token", c.place.Token, "successor", o.Successor, "err", err)
		return core.NoSuccessor
	}
	c.l.s.log.log(slog.LevelDebug, "hand-over failed", "election", c.name, "try", o.Tries, "err", err)
	return core.Failed
}

// released waits until the claim does not stand any more. What says in an error who waits.
func (c *claim) released(ctx context.Context, what string) error {
	free := c.until(&c.free, func() bool { return c.freed })
	if free == nil {
		return nil // whatever ctx says
	}
	select {
	case <-free:
		return nil
	case <-ctx.Done():
		return unreachable(ctx, what+" (it goes on in the background)", nil)
	}
}

// until returns *ch, made if it is nil, or nil if come says that what it would be closed for has
// come. It calls come with mu held.
func (c *claim) until(ch *chan struct{}, come func() bool) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if come() {
		return nil
	}
	if *ch == nil {
		*ch = make(chan struct{})
	}
	return *ch
}

// settleLocked has the lease forget a claim that does not stand any more, and says so to whoever
// waits until no work runs either.
func (c *claim) settleLocked() {
	quiet := c.isQuietLocked()
	if quiet && c.quiet != nil {
		close(c.quiet)
	}
	c.l.forget(c, quiet)
}

// untilQuiet returns what is closed when isQuietLocked; nil if it is so already.
func (c *claim) untilQuiet() <-chan struct{} { return c.until(&c.quiet, c.isQuietLocked) }

// isQuietLocked says whether the claim does not stand any more and no work runs under it.
func (c *claim) isQuietLocked() bool { return c.freed && (c.claimRest == nil || c.working == 0) }

// pendingWhat says what Session.Close still waits for.
func (c *claim) pendingWhat() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.core.Phase() == core.Leaving {
		return "the store has not confirmed the release of " + c.name
	}
	return "the work under " + c.name + " has not stopped"
}

// givenUp says whether the claim is being given up, or was.
func (c *claim) givenUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.Phase() > core.Stopping
}

// giveUp begins to give the claim up; released waits until that is done. The work under it has
// stopped.
func (c *claim) giveUp() { c.giveUpTo(0, "") }

// giveUpTo is giveUp in favour of the claim with the token successor, of the session with the ID
// to. With successor 0 the oldest claim that waits leads next.
func (c *claim) giveUpTo(successor uint64, to string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if successor != 0 && c.core.Phase() <= core.Stopping {
		c.to = to
	}
	o := c.stepLocked(core.ClaimEvent{Kind: core.GiveUp, Successor: successor})
	if o.Do == core.Leave || o.Do == core.HandOver {
		c.executor.releaseLocked(o)
	}
}

// leavingPlaceLocked returns the place for the call that gives it up, with the record of the term's
// end if that call is to carry it.
func (c *claim) leavingPlaceLocked() driver.Place {
	p := c.place
	if c.claimRest != nil {
		p.Record, p.Journal = c.record.carried, c.record.journal
	}
	return p
}

// unconfirmedLocked says whether the claim was to be handed over and nobody knows whether it was.
// If the successor had gone it is known: the claim was released.
func (c *claim) unconfirmedLocked() bool {
	return c.core.Phase() == core.Done && c.core.Successor() != 0 &&
		(c.core.Fate() == core.Undecided || c.core.Fate() == core.Vanished)
}

// reasonLocked returns in a word why the claim's term ended.
func (c *claim) reasonLocked(cause core.Cause) Reason {
	r := ReasonOf(causeError(cause))
	if r == Resigned && c.failed && c.request == nil {
		return Failed
	}
	return r
}

// textLocked returns why the term ended, in the words of whoever ended it.
func (c *claim) textLocked(cause core.Cause) string {
	switch {
	case c.request != nil && (cause == core.Resigned || cause == core.Transferred):
		return c.request.Reason
	case c.words != "":
		return c.words
	case c.why != nil && cause == core.Resigned && !errors.Is(c.why, context.Canceled):
		return c.why.Error()
	}
	return ""
}

// handOverRequest is a request to hand the claim with that ID over to a named candidate.
type handOverRequest struct {
	id string
	r  driver.Request
}

// maxHandOverRequests bounds the requests that wait; further ones are dropped.
const maxHandOverRequests = 16

// handOverRequests are the requests to hand a claim over to a named candidate. Each needs a look at
// the line in the store. That is taken on a goroutine of its own, since the lease's news must not
// wait for it. The claim's lock guards it.
type handOverRequests struct {
	waiting []handOverRequest
	running bool // next is asked until nothing waits
}
