package primacy

import (
	"bytes"
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
//
//	core.ClaimPhase  context  right  in the store  freed
//	Entering         none     none   perhaps       no
//	Waiting          none     none   yes           no
//	Leading          lives    lives  yes           no
//	Stopping         ended    lives  yes           no
//	Ended            ended    ended  no            yes
//	Leaving          ended    ended  perhaps       no
//	Done             ended    ended  no            yes
//
// A claim that never led comes from Entering or Waiting to Leaving or Done, and has no context and
// no right. In Leaving and Done the claim is given up: its owner has said that no work runs, or it
// never led. It is idle once it is freed and no call of work runs under it.
type claim struct {
	l *lease
	seat
	*claimSpec // a campaigner has its own; all claims of an Elections have the same one
	executor   executor

	mu          sync.Mutex
	core        core.Claim
	place       driver.Place    // in the line: what was asked for, then the store's answer; fixed once the claim leads
	term        *Term           // nil before it leads. Who holds a lock from a queue has a term of his own: shares
	campaignCtx context.Context // its values go to the term's context; its end gives a waiting claim up
	freed       bool            // the store has the claim no more, or never had it
	// These are made when somebody waits for them.
	freedCh    chan struct{} // closed when freed is set
	idleCh     chan struct{} // closed when the claim is idle
	*termState               // see needTermStateLocked; a campaigner's is there from the start
}

// termState is what a claim needs once it leads, or once somebody asked for it. The claims of an
// Elections get theirs only then, since most of them wait.
type termState struct {
	shares         []*Term         // the terms of all in this process who hold a lock under this claim
	request        *driver.Request // somebody's request for the claim, which ends the term or has ended it
	callerCause    error           // the cause of the caller's own context, if that ended the term
	activeWork     int             // calls of work that run, under all terms of the claim
	lastErr        error           // what the store said to the last call, nil after one that succeeded
	won            time.Time       // when the term began, by the wall clock
	contextEndedAt time.Duration   // when the term's context ended, by uptime
	rightOver      bool            // the claim has ended the right; Term.expire may have made Check say no before
	explanation    string          // what Term.Explain was told last
	workFailed     bool            // the work failed, as Term.Explain was told
	successorID    string          // the ID of the session that is to get the claim
	announcements  *announcements  // in place of the campaign's value; nil: none. Set once
	shown          *announcement   // in the store's entry, or in the call that enters the claim; nil: none of these yet
	showing        bool            // show runs
	proclaimer     *Term           // whose value it shows; nil: nobody has proclaimed one
	record         termRecording   // what the history has of the term
	handOvers      handOverRequests
	untold         bool // a gate has not let the term begin: no observer has heard of it, nor will of its end
}

// claimSpec is what a claim is for.
type claimSpec struct {
	slots               int  // as in driver.Claim
	try                 bool // the claim is made only if it holds at once
	lock                bool // the claim's terms are a lock's
	turnBits            uint // how many low bits of a term's token count turns (see lockToken)
	priority            int  // a request with a priority counts only if that is larger
	value               []byte
	sharedAnnouncements *announcements // the election's, for termState.announcements; else nil
	observers           []observer
	gated               bool          // gate.begin tells the observers of a term, and not the win
	began               time.Duration // when the campaign began, by uptime
	// askToLead asks leaders to hand over while the claim waits; may be nil.
	askToLead func(context.Context, *claim)
	// enterByExchange, if not nil, is called in place of driver.Lease.Claim: it enters the claim
	// and gives the lock's previous claim up, in one call. ErrRefused says that neither was done;
	// then Claim is called.
	enterByExchange func(context.Context, driver.Claim) (driver.Place, error)
	// onEvent tells a lock's queue that its claim is ending, so that nobody gets the lock under it
	// any more, or that it is over, so that whoever had it has lost it; may be nil.
	onEvent func(core.QueueEventKind)
}

// executor makes the calls on the store that a claim orders. There are two: a campaigner makes them
// for one claim; an entrant has the workers of its Elections make them, for many claims in one
// call. The claim calls these methods while it holds its lock.
type executor interface {
	// followLocked takes an order that core gave after an event from outside: not in answer to the
	// executor's own call.
	followLocked(o core.ClaimOrder)
	// releaseLocked begins to give the claim up, or to hand it over.
	releaseLocked(o core.ClaimOrder)
	// refusedLocked is called when the store will not have the claim, now or when asked again, and
	// with ErrClosed when Session.Close gives up a claim that waits.
	refusedLocked(err error)
	// wonLocked is called when the claim leads. It returns when the campaign began, by uptime, for
	// the observers. The spec cannot tell them, since the claims of an Elections share one.
	wonLocked() time.Duration
	// contextEndedLocked is called when the term's context has ended.
	contextEndedLocked(cause core.Cause)
	// vacateSeatLocked lets the next claim of this process stand for the seat.
	vacateSeatLocked()
	// freedLocked is called when the claim is freed. Was is the phase before. With nextLease the
	// seat was kept: the executor enters another claim there, under the next lease.
	freedLocked(was core.ClaimPhase, nextLease bool)
}

// observer is told what happens to this session's claims, and decides nothing: statistics, events,
// history, the log. (It has nothing to do with Election.Observe.) The claim calls its methods while
// it holds its lock.
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

// needTermStateLocked makes the termState if there is none. The caller holds mu, as for all methods
// that end in Locked.
func (c *claim) needTermStateLocked() {
	if c.termState == nil {
		c.termState = &termState{}
	}
}

func (c *claim) currentTerm() *Term {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.term
}

// keepPlaceLocked keeps the place that the store has answered with. It returns the store's error,
// or what is wrong with the place.
func (c *claim) keepPlaceLocked(asked, got driver.Place, err error) error {
	if err == nil && !c.fits(asked, got) {
		err = fmt.Errorf("%s answered with the place %+v for the claim %s", c.l.s.store.Caps().Store, got, asked.ID)
	}
	if err == nil && c.place.ID == asked.ID {
		c.place = got // also while the claim is being given up: Release needs the token
	}
	return err
}

// fits says whether got is the place that was asked for. To lead on somebody else's place would
// make two leaders. A lock's token is its claim's, shifted left by turnBits (lockToken): the bits
// that would be lost must be 0.
func (c *claim) fits(asked, got driver.Place) bool {
	return got.ID == asked.ID && got.Name == asked.Name && got.Seat == asked.Seat && got.Slots == asked.Slots &&
		(!got.Held || got.Token != 0 || c.l.s.store.Caps().Token == driver.TokenNone) && got.Token>>(64-c.turnBits) == 0
}

// heldNow takes the news that the place is held.
func (c *claim) heldNow(p driver.Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case p.ID != c.place.ID || c.core.Phase() != core.Waiting || c.campaignCtx.Err() != nil:
		// The news is for an earlier ID of the claim, or the campaign was given up.
	case !p.Held || !c.fits(c.place, p): // core orders Await again: the store is asked to follow the place anew
		c.executor.followLocked(c.stepLocked(core.ClaimEvent{Kind: core.Failed}))
	default: // core orders Lead
		c.place = p
		c.executor.followLocked(c.stepLocked(core.ClaimEvent{Kind: core.Woken}))
	}
}

// refused takes the news that the store will tell nothing about the place with that ID; with id "",
// about no place. A claim that waits gives up, since it would never hear that it leads.
func (c *claim) refused(id string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.core.Phase() != core.Waiting || id != "" && id != c.place.ID {
		return
	}
	c.executor.refusedLocked(err)
	c.executor.followLocked(c.stepLocked(core.ClaimEvent{Kind: core.Rejected}))
}

// takeRequest takes a request to give the claim up.
func (c *claim) takeRequest(id string, r driver.Request) {
	if r.Priority != 0 && !core.GivesWay(c.priority, r.Priority) {
		return
	}
	if r.To == "" {
		c.notify(id, core.ClaimEvent{Kind: core.Ask, Cause: core.Resigned}, &r)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.needTermStateLocked()
	c.handOvers.addLocked(c, handOverRequest{id, r}) // it finds the claim of r.To in the line, and then calls notify
}

// answeredLocked takes the answer to the call that entered the claim.
func (c *claim) answeredLocked(got driver.Place, err error) core.ClaimOrder {
	e := core.ClaimEvent{Kind: core.Failed}
	switch {
	case err == nil:
		e = core.ClaimEvent{Kind: core.Entered, Held: got.Held}
	case errors.Is(err, driver.ErrGone):
		e.Kind = core.Lost
	case isRefusal(err):
		e.Kind = core.Rejected
		c.executor.refusedLocked(err)
	}
	o := c.stepLocked(e)
	if err == nil && c.termState != nil && c.announcements != nil {
		c.announcements.answered(c.shown, nil) // shown is what the call carried: campaigner.entryValue
		announcer{c}.showLocked()
	}
	return o
}

// announcer brings the announcements to the store for one claim, whose mutex guards all that it
// uses.
type announcer struct{ *claim }

// proclaim announces value for the claim while t holds it. It returns the announcements that have
// it, and its number.
func (c announcer) proclaim(t *Term, value []byte) (own *announcements, n uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := t.rightEnded.Load(); e != nil { // a lock's claim may be another holder's by now
		return nil, 0, t.endedError(e)
	}
	if c.announcements == nil { // a lock's claim, or one of an Elections
		c.announcements = newAnnouncements()
		c.shown = c.announcements.get()
	}
	n = c.announcements.proclaim(c.place.ID, value)
	c.proclaimer = t
	c.showLocked()
	return c.announcements, n, nil
}

// retract takes back what t has proclaimed last under a lock's claim, which others hold now.
func (c announcer) retract(t *Term) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proclaimer == t {
		c.proclaimer = nil
		c.announcements.proclaim("", nil)
		c.showLocked()
	}
}

// showLocked brings the last announcement to the store, if the store has the claim and not the
// announcement. One Update is under way at a time, so that no older value overtakes a newer one.
func (c announcer) showLocked() {
	if _, _, due := c.unshownLocked(); due && !c.showing {
		c.showing = true
		go c.show()
	}
}

// unshownLocked returns the last announcement, and the place to bring it to. Due says that the
// store has the claim and not the announcement.
func (c announcer) unshownLocked() (s *announcement, p driver.Place, due bool) {
	phase := c.core.Phase()
	if c.termState == nil || c.announcements == nil || c.freed || phase < core.Waiting || phase > core.Stopping {
		return nil, p, false
	}
	s = c.announcements.get()
	return s, c.place, s.n != c.shown.n
}

// show repeats Update until the store has the last announcement, or has the claim no more. It reads
// c.announcements and c.value without mu: both were set before show began, and are not set again.
func (c announcer) show() {
	for tries := 0; ; {
		_ = pause(c.l.ctx, tries) // lease.beat frees the claim before this ctx ends: then nothing is due
		c.mu.Lock()
		s, p, due := c.unshownLocked()
		if !due {
			c.showing = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		ctx, cancel := context.WithTimeout(c.l.ctx, c.l.s.callLimit)
		err := c.l.stored.Update(ctx, p, s.value(p.ID, c.value))
		cancel()
		switch tries++; {
		case err == nil:
			c.mu.Lock()
			// This comes before answered, which lets Restate return. Then its caller may resign,
			// and the history records shown.
			if tries = 0; p.ID == c.place.ID {
				c.shown = s
			}
			c.mu.Unlock()
			c.announcements.answered(s, nil)
		case errors.Is(err, driver.ErrGone):
			c.notify(p.ID, core.ClaimEvent{Kind: core.Lost}, nil)
		default:
			c.announcements.answered(s, err)
			if isRefusal(err) {
				c.keepShown(p.ID, s.n)
			}
		}
	}
}

// keepShown is called once the store has refused announcement n for the claim with that ID. By then
// the announcements have taken its value back: the last one has the number n and the value that was
// confirmed before. If the claim shows that value already, the store needs no Update. So shown gets
// the number n.
func (c announcer) keepShown(id string, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id != c.place.ID {
		return // the claim has another ID by now: shown is nil until a call enters it
	}
	last, kept := c.announcements.get(), *c.shown
	if last.n == n && bytes.Equal(last.value(id, c.value), kept.value(id, c.value)) {
		kept.n = n
		c.shown = &kept
	}
}

// notify takes an event from outside: Ask, with the request for it, or Lost, LeaseEnding or
// LeaseOver. With an id it counts only if the claim still has that ID.
func (c *claim) notify(id string, e core.ClaimEvent, r *driver.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id != "" && id != c.place.ID {
		return
	}
	if r != nil {
		c.needTermStateLocked()
		if c.core.EndsByAsk() { // it waits or leads
			c.request = r
		}
		if c.core.TakesSuccessor() { // it waits or leads; or it stops, and nobody was named before
			c.successorID = r.To
		}
	}
	if e.Kind == core.LeaseEnding && e.Cause == core.Closed && c.core.Phase() < core.Leading {
		c.executor.refusedLocked(ErrClosed) // core gives a claim that waits up: no campaign goes on
	}
	if o := c.stepLocked(e); o.Do != core.Nothing {
		c.executor.followLocked(o)
	}
}

// step takes one event and returns the call to make on the store.
func (c *claim) step(e core.ClaimEvent) core.ClaimOrder {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stepLocked(e)
}

// stepLocked takes one event and carries out what needs no store. The right ends first, the seat is
// given back last: so Check says no before anybody, in this process or at the store, can learn that
// the claim is free.
//
// If the work has to stop, the term ends in two steps. Ask or LeaseEnding ends the context. GiveUp,
// once the work has stopped, ends the right.
//
// Otherwise context and right end in one step. Lost and LeaseOver do so, since another may lead
// already. So does a GiveUp that nobody asked for: the work has returned already.
//
// Core orders Stop and EndRight only for a claim that leads or has led, so c.term is set by then.
// The executor makes the call that the order names.
func (c *claim) stepLocked(e core.ClaimEvent) core.ClaimOrder {
	s := step{event: e.Kind, was: c.core.Phase()}
	o := c.core.Step(e)
	s.order = o
	if o.NewID {
		c.newIDLocked()
	}
	if o.Do == core.Lead {
		c.leadLocked()
	}
	if o.EndRight {
		s.rightEnded = c.endRightLocked(o.Cause)
	}
	if o.Stop {
		for _, t := range c.termsLocked() {
			t.endContext(endLocked(t, o.Cause))
		}
		c.contextEndedAt = c.l.s.uptime()
		c.executor.contextEndedLocked(o.Cause)
	}
	if c.term != nil && !c.untold {
		for _, w := range c.observers {
			w.steppedLocked(c, s)
		}
	}
	if o.Free && !c.freed {
		c.freeLocked(s)
	}
	return o
}

// newIDLocked gives the claim a new ID. News for the old ID is not for this claim any more.
func (c *claim) newIDLocked() {
	c.place = driver.Place{Name: c.name, Seat: c.label, Slots: c.slots, ID: rand.Text()}
	if c.termState != nil {
		c.request, c.successorID, c.shown = nil, "", nil
	}
}

// leadLocked begins the claim's term.
func (c *claim) leadLocked() {
	c.needTermStateLocked()
	if c.l.held.Add(1) == 1 && c.l.leftOut.Load() { // beat makes up for that renewal within a second: better at once
		select {
		case c.l.events <- core.LeaseEvent{Kind: core.Tick}:
		default: // it has others to take
		}
	}
	c.term = newTerm(c, c.campaignCtx, Token(c.place.Token<<c.turnBits))
	if c.untold = c.gated; !c.untold {
		tellBegunLocked(c)
	}
}

// tellBegunLocked tells the observers that the claim's term begins.
func tellBegunLocked(c *claim) {
	c.won = time.Now().Round(0)
	began := c.executor.wonLocked()
	for _, w := range c.observers {
		w.begunLocked(c, began)
	}
}

// endRightLocked makes Check of all terms say no. First says that no earlier step did.
func (c *claim) endRightLocked(cause core.Cause) (first bool) {
	for _, t := range c.termsLocked() {
		t.endRight(endLocked(t, cause))
		t.watchOverrunLocked()
	}
	if first = !c.rightOver; first {
		c.rightOver = true
		c.l.held.Add(-1)
	}
	return first
}

// freeLocked marks the claim as freed. It gives the seat back before waitFreed returns, so that a
// campaign that begins then finds the seat free.
func (c *claim) freeLocked(s step) {
	c.freed = true
	if !s.order.NextLease {
		c.executor.vacateSeatLocked()
	}
	if c.freedCh != nil {
		close(c.freedCh)
	}
	c.executor.freedLocked(s.was, s.order.NextLease)
	c.forgetLocked()
}

// termsLocked returns the claim's own term and the terms of all who hold a lock under it.
func (c *claim) termsLocked() []*Term { return append(c.shares[:len(c.shares):len(c.shares)], c.term) }

// endedErrorLocked returns the error that a term of the claim ends with.
func (c *claim) endedErrorLocked(token Token, cause core.Cause) *EndedError {
	e := &EndedError{Name: c.name, Token: token, Cause: causeError(cause), lock: c.lock}
	if c.callerCause != nil && cause == core.Resigned {
		e.Cause = c.callerCause
	}
	if r := c.requestLocked(cause); r != nil {
		e.By, e.Reason, e.To = r.By, r.Reason, r.To
	}
	if cause == core.Expired {
		e.Reason = c.l.stalls.inWords(core.Time(c.l.lastDeadline.Load()))
	}
	return e
}

// endLocked returns what t keeps as the reason for its end: givenBack if that is all there is to
// say. The caller holds the claim's lock.
func endLocked(t *Term, cause core.Cause) *EndedError {
	if c := t.c; c.lock && cause == core.Resigned && c.callerCause == nil && c.request == nil {
		return givenBack
	}
	return t.c.endedErrorLocked(t.token, cause)
}

// requestLocked returns the request that ended the term, nil if it ended for another cause.
func (c *claim) requestLocked(cause core.Cause) *driver.Request {
	if cause == core.Resigned || cause == core.Transferred {
		return c.request
	}
	return nil
}

// release gives the claim up, or hands it over, and repeats it until the store has confirmed it or
// the lease is over. The phase is Leaving all the while. If the store will not hand the claim over,
// core orders Leave after HandOver.
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
		} else if err := c.l.stored.Release(ctx, p); err != nil && !errors.Is(err, driver.ErrGone) {
			e.Kind = core.Failed
			c.l.s.log.log(slog.LevelDebug, "release failed", "election", c.name, "try", o.Tries, "err", err)
		}
		cancel()
		o = c.step(e)
	}
}

// handOver asks the store once to hand the claim over, and says what came of it. ErrGone: the claim
// is not in the line any more, perhaps since an earlier try succeeded. ErrNoSuccessor or a refusal:
// the store will not hand over, most often since the successor has left the line. The claim stands.
func (c *claim) handOver(ctx context.Context, p driver.Place, o core.ClaimOrder) core.ClaimEventKind {
	err := driver.ErrRefused
	if tr, ok := c.l.stored.(driver.Transferer); ok {
		err = tr.Transfer(ctx, p, o.Successor)
	}
	c.mu.Lock()
	c.lastErr = err
	ev := Event{Name: c.name, Token: c.term.token, Lease: c.l.stored.ID(), To: c.successorID}
	tell := c.l.s.readers.publish
	if c.untold {
		tell = func(Event) {}
	}
	c.mu.Unlock()
	switch {
	case err == nil:
		c.l.s.log.log(slog.LevelInfo, "handed over", "election", c.name, "token", p.Token, "successor", o.Successor)
		ev.Kind = HandedOver
		tell(ev)
		return core.Left
	case errors.Is(err, driver.ErrGone):
		return core.Missing
	case errors.Is(err, driver.ErrNoSuccessor), isRefusal(err):
		ev.Kind, ev.Cause = NotHandedOver, err
		tell(ev)
		c.l.s.log.log(slog.LevelWarn, "not handed over but released",
			"election", c.name, "token", p.Token, "successor", o.Successor, "err", err)
		return core.NoSuccessor
	}
	c.l.s.log.log(slog.LevelDebug, "hand-over failed", "election", c.name, "try", o.Tries, "err", err)
	return core.Failed
}

// waitFreed waits until the claim is freed. What is the beginning of its error.
func (c *claim) waitFreed(ctx context.Context, what string) error {
	freed := c.channelFor(&c.freedCh, func() bool { return c.freed })
	if freed == nil {
		return nil // also if ctx has ended
	}
	select {
	case <-freed:
		return nil
	case <-ctx.Done():
		return unreachable(ctx, what+" (it goes on in the background)", nil)
	}
}

// idle returns a channel that is closed once the claim is idle; nil if it is already.
func (c *claim) idle() <-chan struct{} { return c.channelFor(&c.idleCh, c.isIdleLocked) }

// channelFor returns the channel at ch. It makes one if there is none. It calls already with mu
// held; if that says that there is nothing to wait for, channelFor returns nil.
func (c *claim) channelFor(ch *chan struct{}, already func() bool) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if already() {
		return nil
	}
	if *ch == nil {
		*ch = make(chan struct{})
	}
	return *ch
}

// isIdleLocked says whether the claim is freed and no work runs under it.
func (c *claim) isIdleLocked() bool { return c.freed && (c.termState == nil || c.activeWork == 0) }

// forgetLocked has the lease forget a claim that is freed. If work still runs under it,
// forgetLocked is called again when that has returned.
func (c *claim) forgetLocked() {
	idle := c.isIdleLocked()
	if idle && c.idleCh != nil {
		close(c.idleCh)
	}
	c.l.forget(c, idle)
}

// pendingWhat says what Session.Close still waits for.
func (c *claim) pendingWhat() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.core.Phase() == core.Leaving {
		return "the store has not confirmed the release of " + c.name
	}
	return "the work under " + c.name + " has not stopped"
}

// givenUp says whether the phase is Leaving or Done.
func (c *claim) givenUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.Phase().GivenUp()
}

// giveUp begins to give the claim up: the caller says that no work runs under it any more. Context
// and right have ended when it returns. WaitFreed waits for the store's answer.
func (c *claim) giveUp() { c.giveUpTo(0, "") }

// giveUpTo is giveUp in favour of the claim with the token successor, which the session with the ID
// to has. With successor 0 the oldest claim that waits leads next.
func (c *claim) giveUpTo(successor uint64, to string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if successor != 0 && !c.core.Phase().GivenUp() {
		c.successorID = to
	}
	o := c.stepLocked(core.ClaimEvent{Kind: core.GiveUp, Successor: successor})
	if o.Do == core.Leave || o.Do == core.HandOver {
		c.executor.releaseLocked(o)
	}
}

// leavingPlaceLocked returns the place for the call that gives it up, with the record of the term's
// end if the historyWriter has that call carry it.
func (c *claim) leavingPlaceLocked() driver.Place {
	p := c.place
	if c.termState != nil {
		p.Record, p.Journal = c.record.carried, c.record.journal
	}
	return p
}

// handOverUnknownLocked says whether a hand-over was tried and nobody knows how it ended: the lease
// was over before the store confirmed it (Undecided), or a call found the claim gone
// (ClaimMissing).
func (c *claim) handOverUnknownLocked() bool {
	return c.core.Phase() == core.Done && c.core.Successor() != 0 &&
		(c.core.Outcome() == core.Undecided || c.core.Outcome() == core.ClaimMissing)
}

// reasonLocked returns in a word why the claim's term ended.
func (c *claim) reasonLocked(cause core.Cause) Reason {
	r := ReasonOf(causeError(cause))
	if r == Resigned && c.workFailed && c.request == nil {
		return Failed
	}
	return r
}

// textLocked returns why the term ended, in the words of who ended it.
func (c *claim) textLocked(cause core.Cause) string {
	switch r := c.requestLocked(cause); {
	case r != nil:
		return r.Reason
	case c.explanation != "":
		return c.explanation
	case c.callerCause != nil && cause == core.Resigned && !errors.Is(c.callerCause, context.Canceled):
		return c.callerCause.Error()
	}
	return ""
}

// handOverRequest is a request to hand the claim with that ID over to a named candidate.
type handOverRequest struct {
	id string
	r  driver.Request
}

// maxHandOverRequests is how many requests may wait; further ones are dropped.
const maxHandOverRequests = 16

// handOverRequests are the requests to hand a claim over to a named candidate. For each, run reads
// the line in the store, on a goroutine of its own: the lease's news must not wait for that. The
// claim's lock guards them.
type handOverRequests struct {
	waiting []handOverRequest
	running bool // run runs
}
