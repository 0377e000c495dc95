package redlockstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// News returns what happened to places of the lease that their owner did not do, or blocks until
// there is something. Where nobody renews so often, it looks at the servers every few seconds
// whether the held ones stand.
func (l *lease) News(ctx context.Context) ([]driver.News, error) {
	every := min(max(2*time.Second, l.ttl/4), 4*time.Second, l.ttl/2)
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		l.mu.Lock()
		over := l.overLocked(boottime.Now())
		news, added := l.news, l.added
		l.news = nil
		l.mu.Unlock()
		if over {
			return nil, fmt.Errorf("news: %w", driver.ErrGone)
		}
		if len(news) > 0 {
			return news, nil
		}
		timer := time.NewTimer(min(every, max(0, l.left())+time.Millisecond))
		select {
		case <-timer.C:
			l.look(ctx, every)
		case <-added:
		case <-l.done:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// look finds out whether the held claims stand, unless that is known to have been so within the
// last while.
func (l *lease) look(ctx context.Context, within time.Duration) {
	l.mu.Lock()
	var held []*claim
	var keys []string
	for _, c := range l.claims {
		if c.held && boottime.Now()-l.checked >= within {
			held, keys = append(held, c), append(keys, l.s.key(c.Name))
		}
	}
	l.mu.Unlock()
	if len(held) == 0 {
		return
	}
	n := newCount(l.s, len(held))
	answers := askAll(l.s, func(v *server) ([]any, error) { return v.call(look, l.limit, keys) })
	if gather(ctx, l.s, answers, func(a values) bool { n.add(l.states(a, held), 0); return false }) != nil {
		return
	}
	if lost, short := l.judge(held, n); len(lost) == 0 && !short {
		l.mu.Lock()
		l.checked = boottime.Now()
		l.mu.Unlock()
	}
}

// states turns what was read into the states of claims.
func (l *lease) states(a values, held []*claim) values {
	if a.err != nil {
		return a
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	out := values{at: a.at}
	for i, c := range held {
		is := "other"
		text, _ := a.got[2*i].(string)
		if text == "" {
			is = "none"
		} else if own, _, _, ok := parse(text[1:]); ok && text[0] == '=' && own == c.cur.own {
			is = "own"
		}
		out.got = append(out.got, is)
	}
	return out
}

// Follow has News tell, of places that wait, when they are held: each has a goroutine that tries,
// until it holds or is gone.
func (l *lease) Follow(places ...driver.Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range places {
		c := l.findLocked(p)
		if c == nil {
			continue
		}
		c.followed = true
		if c.held {
			c.tellHeldLocked()
		} else if !c.pursued {
			c.pursued = l.s.run(func() { c.keepTrying() })
		}
	}
}

// tellHeldLocked has News tell, once, that a claim which is followed holds. The caller holds l.mu.
func (c *claim) tellHeldLocked() {
	if c.followed && c.held {
		c.followed = false
		c.l.addNewsLocked(driver.News{Place: c.place(), Held: true})
	}
}

// keepTrying tries for a followed claim until it holds or is gone. Where the servers refuse to be
// asked about its name, News tells why, and nobody tries for it any more.
func (c *claim) keepTrying() {
	l := c.l
	for tries := 0; ; tries++ {
		err := c.pursue(l.s.ctx)
		if err == nil || driver.IsFinal(err) || l.s.ctx.Err() != nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			c.pursued = false
			if errors.Is(err, driver.ErrRefused) && c.followed && !c.out {
				c.followed = false
				l.addNewsLocked(driver.News{Place: c.place(), Refused: err})
			}
			c.tellHeldLocked()
			return
		}
		select {
		case <-time.After(min(25*time.Millisecond<<min(tries, 5), poll)):
		case <-c.gone:
		case <-l.done:
		case <-l.s.ctx.Done():
		}
	}
}

// pursue tries for a claim until it is held: when a release is told, when the keys in the way
// expire, and now and then.
func (c *claim) pursue(ctx context.Context) error {
	l := c.l
	var hints *hints
	for splits := 0; ; {
		o, err := c.tryAgain(ctx)
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
		if err := c.rest(ctx, hints, min(pause, max(0, l.left())+time.Millisecond)); err != nil {
			return err
		}
	}
}

// tryAgain tries once for a claim that waits.
func (c *claim) tryAgain(ctx context.Context) (outcome, error) {
	l := c.l
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
	old := l.leavingLocked(func(o *claim) bool { return o == c }) // they would be in our own way
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
func (c *claim) rest(ctx context.Context, h *hints, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-h.freed:
		// All who wait were told. Those who ask in the same moment split the servers between them.
		return storeutil.Sleep(ctx, rand.N(3*time.Millisecond))
	case <-c.gone:
		return driver.ErrGone
	case <-c.l.done:
		return driver.ErrGone
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// addNewsLocked has News return n. The caller holds l.mu.
func (l *lease) addNewsLocked(n driver.News) {
	l.news = append(l.news, n)
	close(l.added)
	l.added = make(chan struct{})
}
