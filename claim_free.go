package primacy

import (
	"context"

	"github.com/primacy-go/primacy/internal/core"
)

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

// until returns nil if what ch is closed for has come already.
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

// settle says that nothing of the claim stands, and that it is quiet if no work runs either.
func (c *claim) settle() {
	quiet := c.isQuiet()
	if quiet && c.quiet != nil {
		close(c.quiet)
	}
	c.l.forget(c, quiet)
}

// untilQuiet returns nil if nothing of the claim stands and no work runs under it.
func (c *claim) untilQuiet() <-chan struct{} {
	return c.until(&c.quiet, c.isQuiet)
}

func (c *claim) isQuiet() bool { return c.freed && (c.claimRest == nil || c.working == 0) }

// pendingWhat says what a Close still waits for.
func (c *claim) pendingWhat() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.core.Phase() == core.Leaving {
		return "the store has not confirmed the release of " + c.name
	}
	return "the work under " + c.name + " has not stopped"
}

// giveUp begins to give the claim up: nothing acts under it any more.
func (c *claim) giveUp() { c.giveUpTo(0, "") }

// giveUpTo is giveUp in favour of an heir, with the ID of its session.
func (c *claim) giveUpTo(heir uint64, to string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if heir != 0 && c.core.Phase() <= core.Stopping {
		c.to = to
	}
	o := c.stepLocked(core.ClaimEvent{Kind: core.GiveUp, Heir: heir})
	switch {
	case o.Do == core.Leave && c.many != nil:
		c.pass(o)
	case o.Do == core.Leave || o.Do == core.HandOver:
		go c.release(o)
	}
}
