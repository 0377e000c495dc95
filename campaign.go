package primacy

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// campaigner is a claim that one goroutine campaigns with, and the claim's executor. That goroutine
// is in run and makes the calls on the store. When an event comes on another goroutine,
// followLocked leaves core's order in ordered and interrupts the call under way. The claim's lock
// guards interrupt, ordered and refusal.
type campaigner struct {
	claim
	state     termState // claim.termState points here
	spec      claimSpec // claim.claimSpec points here
	vacate    func()    // gives the seat back
	interrupt context.CancelFunc
	ordered   *core.ClaimOrder // what call returns next, whatever the store answers; nil: what the answer leads to
	refusal   error            // what run returns if the store has refused the claim
	keepsSeat bool             // the claim was freed, and its seat waits for the next lease
}

// newCampaigner returns a claim that takes events from now on.
func newCampaigner(ctx context.Context, l *lease, at seat, spec claimSpec, vacate func()) *campaigner {
	k := &campaigner{spec: spec, state: termState{announcements: spec.sharedAnnouncements}, vacate: vacate}
	k.claim = claim{l: l, seat: at, claimSpec: &k.spec, termState: &k.state, campaignCtx: ctx, executor: k}
	k.step(core.ClaimEvent{Kind: core.Stand}) // its order, Enter, is where run begins
	return k
}

// errLeaseEnded says that the lease ended while the claim waited. The campaign goes on under the
// next lease.
var errLeaseEnded = errors.New("the lease ended")

// run stands in the line and returns when the claim is held, or never will be.
func (k *campaigner) run(ctx context.Context) (*Term, error) {
	if k.askToLead != nil {
		askCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		go k.askToLead(askCtx, &k.claim)
	}
	var err error
	looking := false // for other processes with this session's ID
	for o := (core.ClaimOrder{Do: core.Enter}); ; {
		switch o.Do {
		case core.Enter:
			o, err = k.call(ctx, o, k.enter)
		case core.Await:
			if s := k.l.s; !looking && s.givenID && k.slots == 0 {
				looking = true
				defer s.lookForDuplicates(k.l, k.name, k.lock, nil)()
			}
			o, err = k.call(ctx, o, k.await)
		case core.Lead:
			return k.currentTerm(), nil
		case core.Leave:
			go k.release(o) // the caller does not wait for a store that may not answer
			return nil, err
		default: // the claim is over
			if err == nil {
				err = errLeaseEnded
			}
			return nil, err
		}
	}
}

// abandon gives the claim up after a panic that left run. It says whether the seat is left: then
// the lease has ended, and the claim kept its seat for the next lease.
func (k *campaigner) abandon() (seatLeft bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if o := k.ordered; o != nil && k.core.Phase() == core.Leaving { // nobody has followed the order to leave
		go k.release(*o)
	} else {
		go k.release(k.stepLocked(core.ClaimEvent{Kind: core.GiveUp}))
	}
	return k.keepsSeat
}

// call follows the order o with one call on the store, do. It returns the next order. If that order
// ends the campaign, the error is why.
//
// An order may have come to ordered, before the call or during it. Then that one is the next. Core
// does not hear of the store's answer: only the place is kept. Of two such orders the later one
// counts, since core knew of both events when it gave it. No order replaces a Lead: core orders no
// call for a leading claim before it is given up.
func (k *campaigner) call(ctx context.Context, o core.ClaimOrder,
	do func(context.Context, driver.Place) (driver.Place, error)) (core.ClaimOrder, error) {
	if o.Tries > 0 { // under a context of its own: it must not use the time of the call
		pauseCtx, cancel := context.WithCancel(ctx)
		if _, ordered := k.interruptWith(cancel); ordered == nil {
			_ = pause(pauseCtx, o.Tries)
		}
		cancel()
	}
	callCtx, cancel := k.callContext(ctx, o)
	defer cancel()
	asked, ordered := k.interruptWith(cancel)
	var got driver.Place
	err := context.Canceled // unless the store is asked
	if ordered == nil && ctx.Err() == nil {
		got, err = do(callCtx, asked)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.interrupt = nil
	err = k.keepPlaceLocked(asked, got, err)
	switch { // kept for the text of ErrUnreachable
	case o.Do == core.Await:
		k.lastErr = k.l.lastNewsError()
	case err != nil && ctx.Err() == nil && errors.Is(callCtx.Err(), context.DeadlineExceeded):
		// Not err: it may only say that a deadline has passed, and would be taken for the caller's.
		k.lastErr = fmt.Errorf("no answer within %v", k.l.timing.Attempt)
	case err == nil || ctx.Err() == nil:
		k.lastErr = err
	}
	switch {
	case k.ordered != nil:
		ordered, k.ordered = k.ordered, nil
		return *ordered, k.refusal
	case ctx.Err() != nil:
		return k.stepLocked(core.ClaimEvent{Kind: core.GiveUp}), ctxEnded(ctx, "campaign for "+k.name, k.lastErr)
	}
	return k.answeredLocked(got, err), k.refusal // nil, unless the store refused the claim
}

// callContext returns the context of the call that follows o. To enter takes at most one attempt.
func (k *campaigner) callContext(ctx context.Context, o core.ClaimOrder) (context.Context, context.CancelFunc) {
	if o.Do == core.Enter {
		return context.WithTimeout(ctx, k.l.timing.Attempt)
	}
	return context.WithCancel(ctx)
}

// interruptWith has each order that comes after this call cancel. It returns the order that came
// before, or nil, and the claim's place.
func (k *campaigner) interruptWith(cancel context.CancelFunc) (driver.Place, *core.ClaimOrder) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.interrupt = cancel
	return k.place, k.ordered
}

func (k *campaigner) enter(ctx context.Context, p driver.Place) (driver.Place, error) {
	claim := driver.Claim{Name: p.Name, Seat: p.Seat, Slots: p.Slots, ID: p.ID, Value: k.entryValue(p.ID), Try: k.try}
	if k.enterByExchange != nil {
		if got, err := k.enterByExchange(ctx, claim); !errors.Is(err, driver.ErrRefused) {
			return got, err
		}
	}
	places, err := k.l.stored.Claim(ctx, claim)
	if err == nil && len(places) == 1 {
		return places[0], nil
	}
	return driver.Place{}, err // keepPlaceLocked refuses an empty place
}

// entryValue returns the value for a call that enters the claim under that ID. The call may be
// repeated with a later value, and nobody knows which try the store has kept. So shown stays what
// the first try carried. If the last announcement is another one, show sends an Update once the
// claim is entered.
func (k *campaigner) entryValue(id string) []byte {
	if k.announcements == nil {
		return k.value
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.announcements.get()
	if k.place.ID == id && k.shown == nil {
		k.shown = s
	}
	return s.value(id, k.value)
}

// await has the lease follow the place. It returns when it is interrupted: by the news that the
// place is held, or by another event. So the campaign ends at once with that news, without a timer
// or a call on the store in between.
func (k *campaigner) await(ctx context.Context, p driver.Place) (driver.Place, error) {
	k.l.stored.Follow(p) // it returns at once: lease.watch gets the news
	<-ctx.Done()
	return p, ctx.Err()
}

// followLocked leaves the order for call. Once run has returned nobody takes it, and nobody needs
// to: the only order that comes then is Finish, and stepLocked has freed the claim already.
func (k *campaigner) followLocked(o core.ClaimOrder) {
	k.ordered = &o
	if k.interrupt != nil {
		k.interrupt()
	}
}

func (k *campaigner) releaseLocked(o core.ClaimOrder) { go k.release(o) }

func (k *campaigner) refusedLocked(err error) {
	k.refusal = fmt.Errorf("primacy: campaign for %s: %w", k.name, err)
}

func (k *campaigner) wonLocked() time.Duration { return k.began }

// contextEndedLocked tells a lock's queue that the claim is ending, so that nobody gets the lock
// under it any more. A claim that the queue gives up by itself is Leaving here, and the queue
// knows. The queue's lock comes before the claim's, so another goroutine tells the queue.
func (k *campaigner) contextEndedLocked(core.Cause) {
	if k.onEvent != nil && !k.core.Phase().GivenUp() {
		go k.onEvent(core.ClaimEnding)
	}
}

func (k *campaigner) vacateSeatLocked() { k.vacate() }

// freedLocked tells a lock's queue that whoever held the lock under the claim has lost it. A claim
// that was Leaving was given up by the queue itself, and nobody held the lock any more. With
// nextLease there is nothing to do: run returns errLeaseEnded, and campaignSeated goes on in the
// same seat.
func (k *campaigner) freedLocked(was core.ClaimPhase, nextLease bool) {
	k.keepsSeat = nextLease
	if k.onEvent != nil && k.term != nil && was != core.Leaving {
		go k.onEvent(core.ClaimOver)
	}
}

// campaign waits for a seat in this process, and then stands in the line until this process leads.
func (s *Session) campaign(ctx context.Context, at seat, spec claimSpec) (*Term, error) {
	if ctx.Err() != nil {
		return nil, ctxEnded(ctx, "campaign for "+at.name, nil)
	}
	_, vacate, err := s.seats.take(ctx, at, 1, spec.lock, spec.try)
	switch {
	case errors.Is(err, driver.ErrTaken):
		return nil, err
	case errors.Is(err, ErrClosed) && ctx.Err() == nil:
		return nil, fmt.Errorf("primacy: campaign for %s: %w", at.name, err)
	case err != nil:
		return nil, ctxEnded(ctx, "campaign for "+at.name, nil)
	}
	if spec.sharedAnnouncements != nil { // the claim uses the announcements until it gives its seat back
		_, drop := s.announced.use(at.name)
		seatOnly := vacate
		vacate = func() { seatOnly(); drop() }
	}
	return s.campaignSeated(ctx, at, spec, vacate, nil)
}

// campaignSeated is campaign for a caller that has the seat. Vacate gives the seat back: the claim
// calls it when it is freed, and campaignSeated if it has no lease to make a claim under. X, if not
// nil, gives the lock's previous claim up, at best in the call that enters this one. On each way
// out x has been released. (A panic in that call ends the process: it is on the queue's goroutine.)
//
// This is the caller's goroutine, so he may recover from a panic of the store's client. Then too
// neither claim nor seat may stay: nobody would lead, for as long as this process runs.
func (s *Session) campaignSeated(ctx context.Context, at seat, spec claimSpec, vacate func(), x *exchange,
) (_ *Term, err error) {
	var k *campaigner // the claim that has the seat; nil: none has it
	err = errNoReturn
	defer func() {
		if !errors.Is(err, errNoReturn) {
			return
		}
		x.release()
		if k == nil || k.abandon() {
			vacate()
		}
	}()
	for {
		if x != nil && !x.l.alive() {
			x.release() // at once: others need not wait until this lease has run out
		}
		l, err := s.liveLease(ctx)
		if err != nil {
			x.release()
			vacate()
			return nil, err
		}
		if spec.enterByExchange = nil; x != nil && x.l == l && ctx.Err() == nil {
			spec.enterByExchange = x.swap
		} else {
			x.release()
		}
		k = newCampaigner(ctx, l, at, spec, vacate)
		if !l.join(&k.claim) { // the lease is ending. The store has not heard of k, and the seat stays ours
			k = nil
			_ = pause(ctx, 1) // do not spin on leases that end at once; run sees if ctx has ended
			continue
		}
		t, err := k.run(ctx)
		x.release() // does nothing if swap has been called
		if !errors.Is(err, errLeaseEnded) {
			return t, err
		}
		k = nil
		_ = pause(ctx, 1)
	}
}

// errNoReturn is the error of a campaign that was left by a panic: its observers get it.
var errNoReturn = errors.New("the campaign was left by a panic")

// exchange gives up a claim of a lock's queue in the call that enters the queue's next claim: one
// call in place of two. The right of the old claim is over. The next claim stands behind all who
// wait. It has another seat, since a lease has one claim for each.
//
// Swap makes that call. Release gives the old claim up in a call of its own, if it turns out that
// the two cannot share one. Whichever is called first does it, and every later call of either does
// nothing. Release accepts a nil exchange.
type exchange struct {
	l      *lease
	old    *claim          // nil once begun, so that no claim keeps those before it in memory
	order  core.ClaimOrder // how to release the old claim
	at     seat            // the next claim's
	vacate func()          // gives that seat back
	begun  atomic.Bool
}

// giveUpOrExchange ends the claim's right. Then it gives the claim up, or returns the exchange that
// will. Again says that the queue wants a next claim for writing. Only then there may be an
// exchange, if the store can and the other seat is free.
func (c *claim) giveUpOrExchange(again bool) *exchange {
	at := c.seat.otherWriterSeat()
	var vacate func()
	if _, can := c.l.stored.(driver.Exchanger); can && again && c.slots == 0 {
		_, vacate, _ = c.l.s.seats.take(context.Background(), at, 1, true, true) // nil if it is not free
	}
	o := c.step(core.ClaimEvent{Kind: core.GiveUp})
	switch {
	case vacate != nil && o.Do == core.Leave:
		return &exchange{l: c.l, old: c, order: o, at: at, vacate: vacate}
	case vacate != nil: // the claim was gone already
		vacate()
	}
	go c.release(o)
	return nil
}

// begin returns the old claim to the first caller, and nil to all others. X may be nil.
func (x *exchange) begin() (old *claim) {
	if x != nil && x.begun.CompareAndSwap(false, true) {
		old, x.old = x.old, nil
	}
	return old
}

// release gives the old claim up in a call of its own.
func (x *exchange) release() {
	if old := x.begin(); old != nil {
		go old.release(x.order)
	}
}

// swap gives the old claim up and enters the next one. ErrRefused says that nothing was done, so
// the next claim is entered in a call of its own.
func (x *exchange) swap(ctx context.Context, next driver.Claim) (driver.Place, error) {
	old := x.begin()
	if old == nil {
		return driver.Place{}, driver.ErrRefused
	}
	old.mu.Lock()
	p := old.place
	old.mu.Unlock()
	got, err := old.l.stored.(driver.Exchanger).Exchange(ctx, p, next)
	if err == nil {
		old.step(core.ClaimEvent{Kind: core.Left})
	} else {
		go old.release(x.order) // nobody knows whether it stands
	}
	return got, err
}
