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

// campaign is the owner of a claim that one goroutine waits for. That goroutine makes the calls on
// the store. What happens meanwhile interrupts the call under way and leaves the next order in
// next. The claim's lock guards it.
type campaign struct {
	c         *claim
	leave     func() // lets the next claim of this process stand for the seat
	began     time.Duration
	exchange  func(context.Context, driver.Claim) (driver.Place, error) // asked in place of Claim, which is made after an ErrRefused; may be nil
	interrupt context.CancelFunc                                        // of the call under way
	next      *core.ClaimOrder                                          // set during a call
	refusal   error                                                     // the store's, as the campaign returns it
}

// newCampaign returns the campaign of a claim that stands from now on: events that come before run
// are heard.
func newCampaign(ctx context.Context, l *lease, spec claimSpec, leave func()) *campaign {
	m := &struct {
		campaign
		claim claim
		rest  claimRest
		spec  claimSpec
	}{spec: spec}
	m.claim = claim{l: l, seat: spec.seat, claimSpec: &m.spec, values: ctx, claimRest: &m.rest}
	m.campaign = campaign{c: &m.claim, leave: leave, began: spec.began, exchange: spec.exchange}
	m.claim.owner = &m.campaign
	m.claim.step(core.ClaimEvent{Kind: core.Stand})
	return &m.campaign
}

// errLeaseEnded says that the lease ended while the claim stood in the line: stand again under the
// next one.
var errLeaseEnded = errors.New("the lease ended")

// run stands in the line and returns when the claim is held, or will never be.
func (k *campaign) run(ctx context.Context) (*Term, error) {
	if k.c.press != nil {
		pressCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		go k.c.press(pressCtx, k.c)
	}
	var final error
	for o := (core.ClaimOrder{Do: core.Enter}); ; {
		switch o.Do {
		case core.Enter:
			o, final = k.call(ctx, o, k.enter)
		case core.Await:
			o, final = k.call(ctx, o, k.await)
		case core.Lead:
			return k.c.term, nil
		case core.Leave:
			go k.c.release(o) // the caller is not kept waiting by a store that does not answer
			return nil, final
		default:
			if final == nil {
				final = errLeaseEnded
			}
			return nil, final
		}
	}
}

// call makes one call for the order o and returns the order that follows, with the error to return
// if it is the last.
func (k *campaign) call(ctx context.Context, o core.ClaimOrder,
	do func(context.Context, driver.Place) (driver.Place, error)) (core.ClaimOrder, error) {
	c := k.c
	opCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.mu.Lock()
	asked, next := c.place, k.next
	k.interrupt = cancel
	c.mu.Unlock()
	var got driver.Place
	err := context.Canceled // no answer of the store, unless it is asked
	if next == nil && pause(opCtx, o.Tries) == nil {
		got, err = do(opCtx, asked)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k.interrupt = nil
	err = c.take(asked, got, err)
	k.noteLocked(ctx, o.Do, err)
	switch {
	case k.next != nil:
		next, k.next = k.next, nil
		return *next, k.refusal
	case ctx.Err() != nil:
		return c.stepLocked(core.ClaimEvent{Kind: core.GiveUp}), unreachableOr(ctx, "campaign for "+c.name, c.last)
	}
	return c.answeredLocked(got, err), k.refusal
}

// noteLocked keeps what the store said last, for the error of a campaign that is given up.
func (k *campaign) noteLocked(ctx context.Context, did core.Action, err error) {
	switch {
	case did == core.Await:
		k.c.last = k.c.l.newsError()
	case err == nil || ctx.Err() == nil:
		k.c.last = err
	}
}

func (k *campaign) enter(ctx context.Context, p driver.Place) (driver.Place, error) {
	ctx, cancel := context.WithTimeout(ctx, k.c.l.timing.Attempt)
	defer cancel()
	claim := driver.Claim{Name: p.Name, Seat: p.Seat, Slots: p.Slots, ID: p.ID, Value: k.c.value, Try: k.c.try}
	if k.exchange != nil {
		if got, err := k.exchange(ctx, claim); !errors.Is(err, driver.ErrRefused) {
			return got, err
		}
	}
	places, err := k.c.l.dl.Claim(ctx, claim)
	if err == nil && len(places) == 1 {
		return places[0], nil
	}
	return driver.Place{}, err // with a nil error fits says what is wrong with it
}

// await follows the place until the call is interrupted: by the lease's news that the place is
// held, or by whatever else happens to the claim. No timer and no call on the store lie between
// that news and the end of the campaign.
func (k *campaign) await(ctx context.Context, p driver.Place) (driver.Place, error) {
	k.c.l.dl.Follow(p)
	<-ctx.Done()
	return p, ctx.Err()
}

func (k *campaign) carryLocked(o core.ClaimOrder) {
	k.next = &o
	if k.interrupt != nil {
		k.interrupt()
	}
}

func (k *campaign) releaseLocked(o core.ClaimOrder) { go k.c.release(o) }

func (k *campaign) refusedLocked(err error) {
	k.refusal = fmt.Errorf("primacy: campaign for %s: %w", k.c.name, err)
}

func (k *campaign) wonLocked() time.Duration { return k.began }

// endedLocked has a lock's queue give the claim up: nobody may be there who would. The queue's lock
// comes before the claim's, so the queue is told on a goroutine of its own.
func (k *campaign) endedLocked(core.Cause) {
	if k.c.onEvent != nil && k.c.core.Phase() == core.Stopping {
		go k.c.onEvent(core.Fade)
	}
}

func (k *campaign) leaveSeatLocked() { k.leave() }

// freedLocked tells a lock's queue that whoever held the claim has lost it, unless the queue itself
// has given it up.
func (k *campaign) freedLocked(was core.ClaimPhase, _ bool) {
	if k.c.onEvent != nil && k.c.term != nil && was != core.Leaving {
		go k.c.onEvent(core.Void)
	}
}

// campaign stands in the line for one seat and returns when this process holds it.
func (s *Session) campaign(ctx context.Context, spec claimSpec) (*Term, error) {
	if ctx.Err() != nil {
		return nil, unreachableOr(ctx, "campaign for "+spec.name, nil)
	}
	_, leave, err := s.locals.enter(ctx, spec.seat, 1, spec.try)
	if errors.Is(err, driver.ErrTaken) {
		return nil, err
	}
	if err != nil {
		return nil, unreachableOr(ctx, "campaign for "+spec.name, nil)
	}
	return s.campaignIn(ctx, spec, leave)
}

// campaignIn stands in the line for a seat that the caller has taken. Leave gives the seat back
// once nothing stands there any more.
func (s *Session) campaignIn(ctx context.Context, spec claimSpec, leave func()) (*Term, error) {
	for {
		l, err := s.live(ctx)
		if err != nil {
			leave()
			return nil, err
		}
		k := newCampaign(ctx, l, spec, leave)
		if !l.join(k.c) {
			_ = pause(ctx, 1) // the lease is ending: live sees it in a moment
			continue
		}
		t, err := k.run(ctx)
		if !errors.Is(err, errLeaseEnded) {
			return t, err
		}
		_ = pause(ctx, 1) // the session hears of the lease's end a moment later; live sees ctx
	}
}

// campaignAgain stands in the line once more, for a queue that gives up its claim on the same name
// in the same request.
func (s *Session) campaignAgain(ctx context.Context, spec claimSpec, x *exchange) (*Term, error) {
	spec.exchange = x.swap
	k := newCampaign(ctx, x.old.l, spec, x.leave)
	spec.exchange = nil
	if ctx.Err() != nil || !x.old.l.join(k.c) {
		x.release()
		return s.campaignIn(ctx, spec, x.leave)
	}
	t, err := k.run(ctx)
	x.release() // it came to no request
	if errors.Is(err, errLeaseEnded) {
		_ = pause(ctx, 1)
		return s.campaignIn(ctx, spec, x.leave)
	}
	return t, err
}

// exchange is a claim whose right is over, and that is given up in the request that enters the next
// one of the same queue: behind all who wait, and with one trip to the store instead of two.
// Whatever becomes of that request, the claim is given up once and for all.
type exchange struct {
	old   *claim          // nil once it is begun: the next claim keeps the exchange, and would keep all that were before it
	order core.ClaimOrder // the release
	at    seat            // of the next claim
	leave func()          // gives that seat back
	begun atomic.Bool
}

// part gives the claim up. Where the store can do it and another seat is free, the release is left
// to the exchange that it returns.
func (c *claim) part(again bool) *exchange {
	x := &exchange{old: c, at: seat{c.name, ""}}
	if c.id == "" {
		x.at.id = "w"
	}
	if _, can := c.l.dl.(driver.Exchanger); can && again && c.slots == 0 {
		_, x.leave, _ = c.l.s.locals.enter(context.Background(), x.at, 1, true)
	}
	x.order = c.step(core.ClaimEvent{Kind: core.GiveUp})
	switch {
	case x.leave != nil && x.order.Do == core.Leave:
		return x
	case x.leave != nil:
		x.leave()
	}
	x.release()
	return nil
}

// release gives the claim up by itself, unless it is or was done.
func (x *exchange) release() {
	if !x.begun.CompareAndSwap(false, true) {
		return
	}
	old := x.old
	x.old = nil
	if x.order.Do == core.Leave || x.order.Do == core.HandOver {
		go old.release(x.order)
	}
}

// swap makes the request, once. ErrRefused says that nothing was done, and that the claim has to be
// entered by itself.
func (x *exchange) swap(ctx context.Context, next driver.Claim) (driver.Place, error) {
	if !x.begun.CompareAndSwap(false, true) {
		return driver.Place{}, driver.ErrRefused
	}
	old := x.old
	x.old = nil
	old.mu.Lock()
	p := old.place
	old.mu.Unlock()
	got, err := old.l.dl.(driver.Exchanger).Exchange(ctx, p, next)
	if err == nil {
		old.step(core.ClaimEvent{Kind: core.Left})
	} else {
		go old.release(x.order) // it may stand or not
	}
	return got, err
}
