package redisstore

import (
	"context"

	"github.com/primacy-go/primacy/driver"
)

// Wait blocks until the place is held: by a push that says so, or by a look of the vigil.
func (l *lease) Wait(ctx context.Context, p driver.Place) (driver.Place, error) {
	first := true
	for {
		l.mu.Lock()
		c := l.claims[p.ID]
		if l.gone || c == nil || !c.entered || p.Token != 0 && c.token != p.Token {
			l.mu.Unlock()
			return driver.Place{}, driver.ErrGone
		}
		if c.held && (c.fresh || !first) {
			c.fresh = false
			held := c.place()
			l.mu.Unlock()
			return held, nil
		}
		if c.held {
			l.mu.Unlock()
			return l.stillHeld(ctx, c)
		}
		if first {
			first = false
			c.waits++
			defer func() {
				l.mu.Lock()
				c.waits--
				l.mu.Unlock()
			}()
			l.poller.wakeLocked()
		}
		moved := c.moved
		l.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return driver.Place{}, ctx.Err()
		case <-l.s.ctx.Done():
			return driver.Place{}, errClosed
		}
	}
}

// stillHeld reads how a place stands that was known to hold before Wait was called.
func (l *lease) stillHeld(ctx context.Context, c *ownClaim) (driver.Place, error) {
	held := driver.Place{}
	err := l.askAbout(ctx, lookScript, []*ownClaim{c}, func(got reply) {
		if uint64(got.num(3)) == c.token && got.num(4) == 1 && l.claims[c.id] == c {
			held = c.place()
		} else {
			l.syncer.laterLocked()
		}
	})
	if err == nil && !held.Held {
		err = driver.ErrGone
	}
	return held, err
}
