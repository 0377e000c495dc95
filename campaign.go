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

// campaign is the executor of a claim that one goroutine waits for. That goroutine makes the calls
// on the store. An event from outside interrupts the call under way, and its order is in ordered.
// The claim's lock guards interrupt, ordered and refusal.
type campaign struct {
	c         *claim
	leave     func()             // lets the next claim of this process stand for the seat
	interrupt context.CancelFunc // cancels the call under way
	ordered   *core.ClaimOrder   // what to do in place of the order that the call's answer leads to
	refusal   error              // what run returns because the store refused the claim
}

// newCampaign returns the campaign of a claim that takes events from now on.
func newCampaign(ctx context.Context, l *lease, spec claimSpec, leave func()) *campaign {
	m := &struct {
		campaign
		claim claim
		rest  claimRest
		spec  claimSpec
	}{spec: spec}
	m.claim = claim{l: l, seat: spec.seat, claimSpec: &m.spec, values: ctx, claimRest: &m.rest}
	m.campaign = campaign{c: &m.claim, leave: leave}
	m.claim.executor = &m.campaign
	m.claim.step(core.ClaimEvent{Kind: core.Stand})
	return &m.campaign
}

// errLeaseEnded says that the lease ended while the claim waited: campaignIn tries the next lease.
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

// call makes one call for the order o. It returns the next order, with the error that run returns
// if nothing follows that one.
func (k *campaign) call(ctx context.Context, o core.ClaimOrder,
	do func(context.Context, driver.Place) (driver.Place, error)) (core.ClaimOrder, error) {
	c := k.c
	opCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.mu.Lock()
	asked, ordered := c.place, k.ordered
	k.interrupt = cancel
	c.mu.Unlock()
	var got driver.Place
	err := context.Canceled // no answer of the store, unless it is asked
	if ordered == nil && pause(opCtx, o.Tries) == nil {
		got, err = do(opCtx, asked)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k.interrupt = nil
	err = c.take(asked, got, err)
	k.noteLocked(ctx, o.Do, err)
	switch {
	case k.ordered != nil:
		ordered, k.ordered = k.ordered, nil
		return *ordered, k.refusal
	case ctx.Err() != nil:
		return c.stepLocked(core.ClaimEvent{Kind: core.GiveUp}), unreachableOr(ctx, "campaign for "+c.name, c.last)
	}
	return c.answeredLocked(got, err), k.refusal
}

// noteLocked keeps what the store said last, for the error of a campaign whose ctx ended.
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
	if k.c.exchange != nil {
		if got, err := k.c.exchange(ctx, claim); !errors.Is(err, driver.ErrRefused) {
			return got, err
		}
	}
	places, err := k.c.l.dl.Claim(ctx, claim)
	if err == nil && len(places) == 1 {
		return places[0], nil
	}
	return driver.Place{}, err // where err is nil, take finds that no place was given
}

// await has the lease follow the place, and returns once it is interrupted: by the news that the
// place is held, or by another event. No timer and no call on the store come between that news and
// the end of the campaign.
func (k *campaign) await(ctx context.Context, p driver.Place) (driver.Place, error) {
	k.c.l.dl.Follow(p)
	<-ctx.Done()
	return p, ctx.Err()
}

func (k *campaign) carryLocked(o core.ClaimOrder) {
	k.ordered = &o
	if k.interrupt != nil {
		k.interrupt()
	}
}

func (k *campaign) releaseLocked(o core.ClaimOrder) { go k.c.release(o) }

func (k *campaign) refusedLocked(err error) {
	k.refusal = fmt.Errorf("primacy: campaign for %s: %w", k.c.name, err)
}

func (k *campaign) wonLocked() time.Duration { return k.c.began }

// endedLocked tells a lock's queue that the claim is ending, so that nobody gets the lock under it
// any more. The queue's lock comes before the claim's, so the queue is told on another goroutine.
func (k *campaign) endedLocked(core.Cause) {
	if k.c.onEvent != nil && k.c.core.Phase() == core.Stopping {
		go k.c.onEvent(core.Fade)
	}
}

func (k *campaign) leaveSeatLocked() { k.leave() }

// freedLocked tells a lock's queue that whoever held the lock under the claim has lost it, unless
// the queue itself gave the claim up.
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
	return s.campaignIn(ctx, spec, leave, nil)
}

// campaignIn stands in the line for a seat that the caller has taken. It calls leave, which gives
// the seat back, once no claim stands there any more. X is a claim to give up on the way, or nil.
func (s *Session) campaignIn(ctx context.Context, spec claimSpec, leave func(), x *exchange) (*Term, error) {
	for {
		if x != nil && !x.l.alive() {
			x.release() // at once: who waits elsewhere need not wait for the end of this lease
		}
		l, err := s.live(ctx)
		if err != nil {
			x.release()
			leave()
			return nil, err
		}
		if spec.exchange = nil; x != nil && x.l == l && ctx.Err() == nil {
			spec.exchange = x.swap
		} else {
			x.release()
		}
		k := newCampaign(ctx, l, spec, leave)
		if !l.join(k.c) {
			_ = pause(ctx, 1) // the lease is ending: live sees it in a moment
			continue
		}
		t, err := k.run(ctx)
		x.release() // unless it was given up on the way
		if !errors.Is(err, errLeaseEnded) {
			return t, err
		}
		_ = pause(ctx, 1) // the session hears of the lease's end a moment later; live sees ctx
	}
}

// exchange gives up a claim of a lock's queue, whose right is over, in the call that enters the
// queue's next claim. That claim stands behind all who wait, and one call on the store does what
// would take two. A lease has one claim for each seat, so the two claims have different seats.
//
// The old claim is given up once, by whichever comes first: swap, which makes that call, or
// release, where the next claim made no call, or has another lease, or the store cannot do both.
type exchange struct {
	l     *lease
	old   *claim          // nil once begun: the next claim keeps the exchange, which must not keep all before it
	order core.ClaimOrder // how to release the old claim
	at    seat            // the next claim's
	leave func()          // gives that seat back
	begun atomic.Bool
}

// part gives the claim up, or returns the exchange that does so. It needs a store that can
// exchange, and a seat for the next claim that is free.
func (c *claim) part(again bool) *exchange {
	x := &exchange{l: c.l, old: c, at: seat{c.name, ""}}
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

// release gives the old claim up by itself, unless that was begun. There may be no exchange.
func (x *exchange) release() {
	if x == nil || !x.begun.CompareAndSwap(false, true) {
		return
	}
	old := x.old
	x.old = nil
	if x.order.Do == core.Leave || x.order.Do == core.HandOver {
		go old.release(x.order)
	}
}

// swap makes the call, once. ErrRefused says that nothing was done, so the next claim has to be
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
		go old.release(x.order) // nobody knows whether it stands
	}
	return got, err
}
