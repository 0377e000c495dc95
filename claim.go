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

// claim is one claim under one lease. It does at once what core.Claim orders and what needs no
// store: it ends contexts and rights and frees the name. Calls on the store are its owner's to
// make.
type claim struct {
	l *lease
	seat
	*claimSpec // shared by all claims of an Elections
	owner      owner

	mu     sync.Mutex
	free   chan struct{} // closed when nothing of this claim stands any more; made when somebody waits for that
	quiet  chan struct{} // closed when, besides, no work of a candidate runs under it; likewise
	core   core.Claim
	place  driver.Place
	term   *Term
	values context.Context // of the campaign, for the term's context
	freed  bool            // free is closed
	*claimRest
}

// claimRest is what a claim needs once something has happened to it. One of many that only wait
// does without: see makeRoomLocked.
type claimRest struct {
	shares    []*Term // of those in this process who hold a lock under this claim
	request   *driver.Request
	why       error         // the cause of the owner's own context, where that ended the term
	working   int           // how much work of a candidate or a lock's Do runs under the claim
	last      error         // what the store said to the last call that failed
	won       time.Time     // by the wall clock
	stopping  time.Duration // by uptime, since when the context has ended
	rightOver bool          // Check says no for good
	words     string        // of the owner, why it ended
	failed    bool          // the work has
	to        string        // ID of the session to hand it over to
	said      []byte        // the value proclaimed last
	record    termRecording
	handOvers handOverRequests
}

// claimSpec is what a claim is for.
type claimSpec struct {
	seat
	slots    int  // as in driver.Claim
	try      bool // only if it holds at once
	lock     bool // its terms are a lock's
	turnBits uint // of a term's token, behind the claim's: see lockToken
	priority int  // requests with a smaller one are not heard
	// press asks leaders to hand over while the claim waits; may be nil.
	press    func(context.Context, *claim)
	value    []byte
	watched  []observer
	began    time.Duration                                             // of the campaign, by uptime
	exchange func(context.Context, driver.Claim) (driver.Place, error) // see campaign
	// onEvent tells a lock's queue what became of its claim; may be nil.
	onEvent func(core.QueueEventKind)
}

// owner had a claim made, and makes the calls on the store that it orders: a campaign, the queue of
// a lock, or Elections. The caller holds the claim's lock.
type owner interface {
	// carryLocked makes the call of an order that did not come from the owner's own call: news led
	// to it.
	carryLocked(o core.ClaimOrder)
	// releaseLocked begins to give the claim up, or to hand it over.
	releaseLocked(o core.ClaimOrder)
	// refusedLocked is called when the store will not have the claim, now or when asked again.
	refusedLocked(err error)
	// wonLocked is called when the claim leads. It returns since when the name has been stood for,
	// by uptime.
	wonLocked() time.Duration
	// endedLocked is called when the term's context has ended.
	endedLocked(cause core.Cause)
	// leaveSeatLocked lets the next claim of this process stand for the seat.
	leaveSeatLocked()
	// freedLocked is called when nothing of the claim stands any more. With again the name keeps
	// its seat and stands under the next lease.
	freedLocked(was core.ClaimPhase, again bool)
}

// observer watches claims and decides nothing: statistics, events, history, the log. The caller
// holds the claim's lock.
type observer interface {
	begunLocked(c *claim, began time.Duration)
	steppedLocked(c *claim, s step)
}

// step is one step of a claim that has led.
type step struct {
	event      core.ClaimEventKind
	was        core.ClaimPhase // before it
	order      core.ClaimOrder
	rightEnded bool // the right has ended in this step
}

// makeRoomLocked allocates what a claim does without while it only waits: ten thousand may. The
// caller holds mu.
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
		c.place = got // also when it came too late: then it is released by its token
	}
	return err
}

// fits says whether a place is what was asked for. A term made of another place would be a second
// leader's.
func (c *claim) fits(asked, got driver.Place) bool {
	return got.ID == asked.ID && got.Name == asked.Name && got.Seat == asked.Seat && got.Slots == asked.Slots &&
		(!got.Held || got.Token != 0 || c.l.s.store.Caps().Token == driver.TokenNone) && got.Token>>(64-c.turnBits) == 0
}

// heldNow takes the news that the place is held.
func (c *claim) heldNow(p driver.Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case p.ID != c.place.ID || c.core.Phase() != core.Waiting || c.values.Err() != nil: // whose campaign was given up leaves, and never leads
	case !p.Held || !c.fits(c.place, p):
		c.owner.carryLocked(c.stepLocked(core.ClaimEvent{Kind: core.Failed})) // it is followed again, after a pause
	default:
		c.place = p
		c.owner.carryLocked(c.stepLocked(core.ClaimEvent{Kind: core.Woken}))
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
	c.owner.refusedLocked(err)
	c.owner.carryLocked(c.stepLocked(core.ClaimEvent{Kind: core.Rejected}))
}

// takeRequest takes the request of somebody who wants the claim given up.
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
		c.owner.refusedLocked(err)
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

// notify takes an event that came from outside, with the request behind it if there is one. With an
// id it counts only if the claim still has that ID.
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
	c.owner.carryLocked(o)
}

// step takes one event and returns the call to make on the store.
func (c *claim) step(e core.ClaimEvent) core.ClaimOrder {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stepLocked(e)
}

// stepLocked takes one event and does at once what needs no store. The order counts for the promise
// that the right ends before the claim is given up: nobody learns that the claim is free, in this
// process or by a call on the store, before Check says no.
//
// Where one step ends the right and the context, the right comes first. Nothing of the claim may
// stand in the store then, so another may lead already: no instant is lost before Check says no.
// Work that is only asked to stop keeps its right until it has stopped: those are two steps, and
// there the context ends first.
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
			t.stopWork(c.endedErrorLocked(t.token, o.Cause))
		}
		c.stopping = c.l.s.uptime()
		c.owner.endedLocked(o.Cause)
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
	began := c.owner.wonLocked()
	for _, w := range c.watched {
		w.begunLocked(c, began)
	}
}

// endRightLocked makes Check of all terms say no. It says whether this is the first time.
func (c *claim) endRightLocked(cause core.Cause) (first bool) {
	for _, t := range c.termsLocked() {
		t.endRight(c.endedErrorLocked(t.token, cause))
		t.watchOverrunLocked()
	}
	first = !c.rightOver
	c.rightOver = true
	return first
}

// freeLocked says that nothing of the claim stands any more. The seat comes first: a campaign that
// begins because released has returned must find it free.
func (c *claim) freeLocked(s step) {
	c.freed = true
	again := (s.was == core.Entering || s.was == core.Waiting) && s.order.Cause != core.None // the name is stood for under the next lease
	if !again {
		c.owner.leaveSeatLocked()
	}
	if c.free != nil {
		close(c.free)
	}
	c.owner.freedLocked(s.was, again)
	c.settleLocked()
}

// termsLocked returns the claim's own term and those of the holders of a lock under it.
func (c *claim) termsLocked() []*Term { return append(c.shares[:len(c.shares):len(c.shares)], c.term) }

// endedErrorLocked returns the error with which a term of the claim ends. The caller holds mu.
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
	to := c.to
	c.mu.Unlock()
	switch {
	case err == nil:
		c.l.s.log.log(slog.LevelInfo, "handed over",
			"election", c.name, "token", c.place.Token, "successor", o.Successor)
		c.l.s.readers.event(Event{Kind: HandedOver, Name: c.name, Token: Token(c.place.Token), Lease: c.l.dl.ID(), To: to})
		return core.Left
	case errors.Is(err, driver.ErrGone):
		return core.Missing
	case errors.Is(err, driver.ErrNoSuccessor), isFinal(err):
		c.l.s.readers.event(Event{Kind: NotHandedOver, Name: c.name, Token: Token(c.place.Token), Lease: c.l.dl.ID(), To: to, Cause: err})
		c.l.s.log.log(slog.LevelWarn, "not handed over but released", "election", c.name, "token", c.place.Token, "successor", o.Successor, "err", err)
		return core.NoSuccessor
	}
	c.l.s.log.log(slog.LevelDebug, "hand-over failed", "election", c.name, "try", o.Tries, "err", err)
	return core.Failed
}

// released waits until nothing of the claim stands.
func (c *claim) released(ctx context.Context) error { return c.freeAfter(ctx, "resign "+c.name) }

func (c *claim) freeAfter(ctx context.Context, what string) error {
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

// until returns what *ch is closed by, or nil if come says that this has happened. Come is called
// with the claim's lock held.
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

// settleLocked says that nothing of the claim stands any more, and that it is quiet if no work runs
// either.
func (c *claim) settleLocked() {
	quiet := c.isQuietLocked()
	if quiet && c.quiet != nil {
		close(c.quiet)
	}
	c.l.forget(c, quiet)
}

// untilQuiet returns nil if nothing of the claim stands and no work runs under it.
func (c *claim) untilQuiet() <-chan struct{} {
	return c.until(&c.quiet, c.isQuietLocked)
}

// isQuietLocked says whether nothing of the claim stands and no work runs under it.
func (c *claim) isQuietLocked() bool { return c.freed && (c.claimRest == nil || c.working == 0) }

// pendingWhat says what a Close still waits for.
func (c *claim) pendingWhat() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.core.Phase() == core.Leaving {
		return "the store has not confirmed the release of " + c.name
	}
	return "the work under " + c.name + " has not stopped"
}

// givenUp says whether the owner has resigned.
func (c *claim) givenUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.Phase() > core.Stopping
}

// giveUp gives the claim up in the background: released waits for the end. The caller's work has
// stopped.
func (c *claim) giveUp() { c.giveUpTo(0, "") }

// giveUpTo gives the claim up. A successor other than 0 is the token of the claim to hand it over
// to, and to the ID of that one's session.
func (c *claim) giveUpTo(successor uint64, to string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if successor != 0 && c.core.Phase() <= core.Stopping {
		c.to = to
	}
	o := c.stepLocked(core.ClaimEvent{Kind: core.GiveUp, Successor: successor})
	if o.Do == core.Leave || o.Do == core.HandOver {
		c.owner.releaseLocked(o)
	}
}

// leavingPlaceLocked returns the place for the call that gives it up, with the record that travels
// with that call. The caller holds mu.
func (c *claim) leavingPlaceLocked() driver.Place {
	p := c.place
	if c.claimRest != nil && c.record.withRelease {
		r := c.record.end // a copy: what is under way is not changed
		p.Record, p.Journal = &r, c.record.journal
	}
	return p
}

// unconfirmedLocked says whether the claim was to be handed over and nobody knows whether it was.
// Where the successor had gone it is known: the claim was released. The caller holds mu.
func (c *claim) unconfirmedLocked() bool {
	return c.core.Phase() == core.Done && c.core.Successor() != 0 && (c.core.Fate() == core.Undecided || c.core.Fate() == core.Vanished)
}

// reasonLocked returns in a word why the claim's term ended. The caller holds mu.
func (c *claim) reasonLocked(cause core.Cause) Reason {
	r := ReasonOf(causeError(cause))
	if r == Resigned && c.failed && c.request == nil {
		return Failed
	}
	return r
}

// textLocked returns why the term ended, in the words of whoever ended it. The caller holds mu.
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

// handOverRequest is a request that came for the claim with that ID.
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
