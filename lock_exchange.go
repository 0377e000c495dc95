package primacy

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// exchange is a claim whose right is over, and that is given up in the request that enters the next one of the same queue: behind all who
// wait, and with one trip to the store instead of two. Whatever becomes of that request, the claim is given up once and for all.
type exchange struct {
	old   *claim
	order core.ClaimOrder // the release
	at    seat            // of the next claim
	leave func()          // gives that seat back
	begun atomic.Bool
}

// part gives the claim up. Where the store can do it and another seat is free, the release is left to the exchange that it returns.
func (c *claim) part(again bool) *exchange {
	x := &exchange{old: c, at: seat{c.name, ""}}
	if c.no == "" {
		x.at.no = "w"
	}
	if _, can := c.l.dl.(driver.Exchanger); can && again && c.slots == 0 {
		x.leave, _ = c.l.s.enterLocal(context.Background(), x.at, true)
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
	if x.begun.CompareAndSwap(false, true) && (x.order.Do == core.Leave || x.order.Do == core.HandOver) {
		go x.old.release(x.order)
	}
}

// swap makes the request, once. ErrRefused says that nothing was done, and that the claim has to be entered by itself.
func (x *exchange) swap(ctx context.Context, next driver.Claim) (driver.Place, error) {
	if !x.begun.CompareAndSwap(false, true) {
		return driver.Place{}, driver.ErrRefused
	}
	x.old.mu.Lock()
	p := x.old.place
	x.old.mu.Unlock()
	got, err := x.old.l.dl.(driver.Exchanger).Exchange(ctx, p, next)
	if err == nil {
		x.old.step(core.ClaimEvent{Kind: core.Left})
	} else {
		go x.old.release(x.order) // it may stand or not
	}
	return got, err
}

// campaignAgain is campaign for who gives up another claim on the name meanwhile.
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
