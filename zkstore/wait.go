package zkstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// Wait blocks until the place is held. It watches its own node and one or two of those in front: see [vigil].
func (l *lease) Wait(ctx context.Context, p driver.Place) (driver.Place, error) {
	c, err := l.standingAt(ctx, p)
	if err != nil {
		return driver.Place{}, err
	}
	if err := l.held(ctx, c); err != nil {
		return driver.Place{}, err
	}
	return l.place(c, true), nil
}

// sight is how a line stood, as its claim found it.
type sight struct {
	nodes []node
	at    int
	gen   uint64
}

// lookFor returns the line as the claim's call has just found it, once, or reads it: who waits right after a claim need not ask twice. Nothing is lost by a late look: what
// has gone since is found so when it is to be watched.
func (l *lease) lookFor(ctx context.Context, c *claim) (*sight, error) {
	l.mu.Lock()
	seen := c.seen
	c.seen = nil
	l.mu.Unlock()
	gen, _, _ := l.link.generation()
	if seen != nil && seen.gen == gen && !free(seen.nodes, seen.at) {
		return seen, nil
	}
	nodes, at, err := l.position(ctx, c)
	return &sight{nodes, at, gen}, err
}

// guarded says whether a watch is set on a claim's own node, which stands, on that connection: one of an earlier connection may not know yet that it is none any more.
func (l *lease) guarded(c *claim, gen uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !c.isGone && c.arm != 0 && c.armGen == gen
}

// guardNode sets a watch on a claim's own node, so that we hear when somebody removes it.
func (l *lease) guardNode(c *claim) {
	for try := 1; ; try++ {
		l.mu.Lock()
		done := c.isGone || c.leaving || c.arm != 0 // who waits sets it with others
		l.mu.Unlock()
		if done || l.link.over() {
			return
		}
		gen, _, _ := l.link.generation()
		all, err := l.link.arm(context.Background(), c.path)
		switch {
		case l.link.over():
			return
		case err != nil:
			l.link.pause(try)
			continue
		}
		l.guardWith(c, all[0], gen)
		return
	}
}

// guardWith makes a watch on a claim's own node its guard.
func (l *lease) guardWith(c *claim, w *watch, gen uint64) {
	l.mu.Lock()
	l.arms++
	arm := l.arms
	l.mu.Unlock()
	set, fired := false, false // guarded by the mutex
	w.on(func(deleted bool) {
		l.mu.Lock()
		fired = true
		current := !set || c.arm == arm
		if set && current {
			c.arm = 0
		}
		l.mu.Unlock()
		if deleted {
			l.removed(c)
		} else if current {
			go l.guardNode(c)
		}
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if set = true; !fired { // only now, for another who waits may hold by it: of a node that had gone already, that is known by now
		c.arm, c.armGen = arm, gen
	}
}

// patrol looks at all claims now and then, should a watch have been lost.
func (l *lease) patrol() {
	for {
		select {
		case <-time.After(12 * slowly):
		case <-l.link.dead:
			return
		}
		l.mu.Lock()
		var all []*claim
		for _, c := range l.claims {
			if c.path != "" && !c.isGone {
				all = append(all, c)
			}
		}
		l.mu.Unlock()
		_ = each(len(all), func(i int) error {
			got, _, err := l.link.look(context.Background(), ofNode, all[i].path, false)
			if err == nil && !got.exists {
				l.removed(all[i])
			}
			return err
		})
	}
}

// removed notes that a claim's node has gone, and tells its owner unless that was his doing.
func (l *lease) removed(c *claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.isGone {
		return
	}
	l.hasLeft(c)
	l.forget(c)
	if at := (seat{c.want.Name, c.want.Seat}); l.claims[at] == c {
		delete(l.claims, at)
	}
	if !c.spent {
		l.spent[c.want.ID] = true
		if !c.quiet {
			l.tell(driver.News{Place: l.place(c, false), Gone: true})
		}
	}
}

// Follow has News tell what becomes of places.
func (l *lease) Follow(places ...driver.Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range places {
		c := l.find(p)
		switch {
		case c == nil: // News has told, or its owner released it
		case p.Held:
			go l.follow(c, l.wanted, driver.News{Wanted: true})
		default:
			go l.follow(c, l.held, driver.News{Held: true})
		}
	}
}

// follow tells a piece of news when it has come to be.
func (l *lease) follow(c *claim, until func(context.Context, *claim) error, n driver.News) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-c.left:
			cancel()
		case <-l.link.dead:
			cancel()
		case <-ctx.Done():
		}
	}()
	for try := 1; ; try++ {
		err := l.hasEntered(ctx, c)
		if err == nil {
			err = until(ctx, c)
		}
		l.mu.Lock()
		switch {
		case c.isGone || c.spent || l.closing || l.link.over():
			l.mu.Unlock()
			return
		case err == nil:
			n.Place = l.place(c, true)
			l.tell(n)
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		if final(err) || !l.link.pause(try) {
			return
		}
	}
}

// wanted returns nil when a claim of another lease waits behind c.
func (l *lease) wanted(ctx context.Context, c *claim) error {
	for {
		nodes, _, _, w, err := l.store.children(ctx, l.link, c.want.Name, true)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(nodes, func(n node) bool { return n.path == c.path })
		if at < 0 {
			l.removed(c)
			return driver.ErrGone
		}
		for i := at + 1; i < len(nodes); i++ {
			if nodes[i].lease != l.id && !free(nodes, i) {
				return nil
			}
		}
		if err := anyOf(ctx, l.store.ctx, []*watch{w}); err != nil {
			return err
		}
	}
}

// tell keeps a piece of news for News and wakes it. The caller has the mutex.
func (l *lease) tell(n driver.News) {
	l.news = append(l.news, n)
	close(l.told)
	l.told = make(chan struct{})
}

// News returns what others did to the lease's places since the last call, or blocks until there is something.
func (l *lease) News(ctx context.Context) ([]driver.News, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		l.mu.Lock()
		news, told, closing := l.news, l.told, l.closing
		l.news = nil
		l.mu.Unlock()
		switch {
		case closing || l.link.over() && errors.Is(l.link.why, driver.ErrGone):
			return nil, driver.ErrGone
		case len(news) > 0:
			return news, nil
		}
		select {
		case <-told:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-l.link.dead:
			return nil, l.link.why
		}
	}
}
