package primacy

import (
	"context"
	"errors"
	"fmt"
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
	if spec.onEvent != nil {
		m.claim.owner = &queueClaim{&m.campaign, spec.onEvent}
	}
	m.claim.step(core.ClaimEvent{Kind: core.Stand})
	return &m.campaign
}

// errLeaseEnded says that the lease ended while the claim stood in the line: stand again under the
// next one.
var errLeaseEnded = errors.New("the lease ended")

// run stands in the line and returns when the claim is held, or will never be.
func (k *campaign) run(ctx context.Context) (*Term, error) {
	if k.c.priority > 0 {
		pressCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		go k.press(pressCtx)
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

func (k *campaign) endedLocked(core.Cause) {}

func (k *campaign) leaveSeatLocked() { k.leave() }

func (k *campaign) freedLocked(core.ClaimPhase, bool) {}
