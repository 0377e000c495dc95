package redlockstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// poll is how long who waits lets pass between two looks when no hint comes, at most; pollPlain where releases are not told.
const (
	poll      = time.Second
	pollPlain = 150 * time.Millisecond
)

// Wait tries again and again until the place is held.
func (l *lease) Wait(ctx context.Context, p driver.Place) (driver.Place, error) {
	l.mu.Lock()
	c := l.find(p)
	l.mu.Unlock()
	if c == nil {
		return driver.Place{}, fmt.Errorf("wait: %w", driver.ErrGone)
	}
	if err := l.pursue(ctx, c); err != nil {
		return driver.Place{}, fmt.Errorf("wait: %w", err)
	}
	p.Held = true
	return p, nil
}

// Follow has News tell, of places that wait, when they are held: each has a goroutine that tries, until it holds or is
// gone. The servers know of no line, so that a holder is not told who waits.
func (l *lease) Follow(places ...driver.Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range places {
		c := l.find(p)
		if c == nil || p.Held {
			continue
		}
		c.followed = true
		if c.held {
			l.tellHeldLocked(c)
		} else if !c.pursued {
			c.pursued = l.s.run(func() { l.keepTrying(c) })
		}
	}
}

// tellHeldLocked has News tell, once, that a claim which is followed holds. The caller holds l.mu.
func (l *lease) tellHeldLocked(c *claim) {
	if c.followed && c.held {
		c.followed = false
		l.tellLocked(driver.News{Place: c.place(), Held: true})
	}
}

// keepTrying tries for a followed claim until it holds or is gone. Servers that refuse are told once by News, as an
// error, and asked again: they may have been set up anew.
func (l *lease) keepTrying(c *claim) {
	for tries := 0; ; tries++ {
		err := l.pursue(l.s.ctx, c)
		l.mu.Lock()
		if err == nil || errors.Is(err, driver.ErrGone) || l.s.ctx.Err() != nil {
			c.pursued = false
			l.tellHeldLocked(c)
			l.mu.Unlock()
			return
		}
		if errors.Is(err, driver.ErrRefused) {
			l.refused = err
			l.wakeLocked()
		}
		l.mu.Unlock()
		select {
		case <-time.After(min(25*time.Millisecond<<min(tries, 5), poll)):
		case <-c.gone:
		case <-l.done:
		case <-l.s.ctx.Done():
		}
	}
}

// pursue tries for a claim until it is held: when a release is told, when the keys in the way expire, and now and then.
func (l *lease) pursue(ctx context.Context, c *claim) error {
	var hints *hints
	for splits := 0; ; {
		o, err := l.again(ctx, c)
		switch {
		case err != nil:
			return err
		case o.held || o.err != nil:
			return o.err
		}
		pause := l.s.pollAfter()
		if hints == nil {
			hints = l.s.hint(c.Name)
			defer hints.close()
			pause = time.Millisecond + rand.N(5*time.Millisecond) // it may have come free before we listened
		}
		if o.split {
			splits = min(splits+1, 6)
			pause = rand.N(2 * time.Millisecond << splits)
		} else {
			splits = 0
		}
		if o.free > 0 {
			pause = min(pause, o.free+rand.N(2*time.Millisecond))
		}
		if err := l.rest(ctx, c, hints, min(pause, max(0, l.left())+time.Millisecond)); err != nil {
			return err
		}
	}
}

// again tries once for a claim that waits.
func (l *lease) again(ctx context.Context, c *claim) (outcome, error) {
	if err := ctx.Err(); err != nil {
		return outcome{}, err
	}
	done, err := takeTurns(ctx, []*claim{c})
	if err != nil {
		return outcome{}, err
	}
	defer done()
	l.mu.Lock()
	gone := l.overLocked(boottime.Now()) || c.out
	old := l.still(func(o *claim) bool { return o == c }) // they would be in our own way
	l.mu.Unlock()
	if gone {
		return outcome{}, driver.ErrGone
	}
	if err := l.awaitOff(ctx, "wait", old); err != nil {
		return outcome{}, err
	}
	return l.settle(ctx, []*claim{c})[0], nil
}

// rest waits for a hint that the name came free, at most for pause.
func (l *lease) rest(ctx context.Context, c *claim, h *hints, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-h.freed:
		// All who wait were told. Those who ask in the same moment split the servers between them.
		return storeutil.Sleep(ctx, rand.N(3*time.Millisecond))
	case <-c.gone:
		return driver.ErrGone
	case <-l.done:
		return driver.ErrGone
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// pollAfter is a random time around the interval of looks.
func (s *Store) pollAfter() time.Duration {
	d := poll
	if s.cfg.Plain {
		d = pollPlain
	}
	return d/2 + rand.N(d)
}

// Update replaces the value that observers see: on all servers where the claim is held, else from when it is.
func (l *lease) Update(ctx context.Context, p driver.Place, value []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	c := l.find(p)
	over := l.overLocked(boottime.Now())
	l.mu.Unlock()
	if c == nil || over {
		return fmt.Errorf("update: %w", driver.ErrGone)
	}
	done, err := takeTurns(ctx, []*claim{c})
	if err != nil {
		return err
	}
	defer done()
	l.mu.Lock()
	if c.out {
		l.mu.Unlock()
		return fmt.Errorf("update: %w", driver.ErrGone)
	}
	c.Value = bytes.Clone(value)
	c.updates++
	held := c.held
	var text string
	if held {
		text = c.cur.value()
	}
	l.mu.Unlock()
	if !held {
		return nil
	}
	return l.announce(ctx, c, text)
}

// announce brings a new value to a majority.
func (l *lease) announce(ctx context.Context, c *claim, text string) error {
	key, channel := l.s.key(c.Name), l.s.channel(c.Name)
	answers := l.s.fan(func(v *server) ([]any, error) { return v.call(update, l.limit, []string{key}, text, channel) })
	n := newCount(l.s, 1)
	for range l.s.servers {
		select {
		case a := <-answers:
			n.add(a, 0)
		case <-ctx.Done():
			return fmt.Errorf("update: %w", n.error(ctx.Err()))
		}
		if n.enough() {
			return nil
		}
	}
	lost, _ := l.judge([]*claim{c}, n)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(lost) > 0 || c.out {
		return fmt.Errorf("update: %w", driver.ErrGone)
	}
	return fmt.Errorf("update: %w", n.error(nil))
}
