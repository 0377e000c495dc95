package zkstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/primacy-go/primacy/driver"
)

var (
	_ driver.Exchanger  = (*lease)(nil)
	_ driver.Transferer = (*lease)(nil)
)

// swap is the other half of an exchange: the claim that is given up in the step that enters another. Nil: there is none.
type swap struct {
	old     *claim
	removed bool // its node is gone already
}

// ops returns what the step is to do beside.
func (w *swap) ops(s *Store) (ops []any) {
	if w == nil || w.removed {
		return nil
	}
	ops = append(ops, &zk.DeleteRequest{Path: w.old.path, Version: -1})
	if w.old.note != nil {
		ops = append(ops, w.old.note.op(s))
	}
	return ops
}

// done notes that the step was done.
func (w *swap) done(l *lease) {
	if w != nil {
		l.haveGone([]*claim{w.old})
	}
}

// failed learns why the op at that index among ops was the reason that nothing was done. Nil: the step can be tried again at once.
func (w *swap) failed(l *lease, at int, err error) error {
	if at == 0 {
		if errors.Is(err, zk.ErrNoNode) {
			w.removed = true
			w.done(l)
			return nil
		}
		return err
	}
	if !w.old.note.learn(context.Background(), l, err) {
		w.old.note = nil
	}
	return nil
}

// abandon gives the old claim up by itself: nothing enters in its place.
func (w *swap) abandon(l *lease) {
	if w == nil {
		return
	}
	l.mu.Lock()
	w.old.leaving = false
	l.mu.Unlock()
	l.leave([]*claim{w.old})
}

// Exchange gives p up and enters want, in one step.
func (l *lease) Exchange(ctx context.Context, p driver.Place, want driver.Claim) (driver.Place, error) {
	if err := driver.CheckExchange(p, want); err != nil {
		return driver.Place{}, err
	}
	if err := l.checkClaims([]driver.Claim{want}); err != nil {
		return driver.Place{}, err
	}
	old, err := l.standingAt(ctx, p)
	if errors.Is(err, driver.ErrGone) && l.check(ctx) == nil {
		old, err = nil, nil
	}
	if err != nil {
		return driver.Place{}, err
	}
	c, err := l.beginExchange(p, old, want)
	if err != nil {
		return driver.Place{}, err
	}
	places, err := l.places(ctx, []*claim{c})
	if err != nil {
		return driver.Place{}, err
	}
	return places[0], nil
}

// beginExchange begins the step, unless it was done or is under way.
func (l *lease) beginExchange(p driver.Place, old *claim, want driver.Claim) (*claim, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spent[want.ID] {
		return nil, fmt.Errorf("claim %s on %s was given up: %w", want.ID, want.Name, driver.ErrGone)
	}
	var with *swap
	if parting := l.part(p); parting != nil && parting == old && !old.leaving && !old.isGone {
		old.leaving, with = true, &swap{old: old}
	}
	at := seat{want.Name, want.Seat}
	c := l.claims[at]
	if c != nil && c.want.ID == want.ID {
		if with != nil {
			go with.abandon(l)
		}
		return c, nil
	}
	var displaced []*claim
	if c != nil {
		l.giveUp(c)
		displaced = append(displaced, c)
	}
	c = l.newClaim(want)
	l.claims[at] = c
	go func() {
		l.makeRoom(displaced)
		l.enter([]*claim{c}, with)
	}()
	return c, nil
}

// Transfer hands the name of p to the claim with the token heir: everybody before it is removed in one step.
func (l *lease) Transfer(ctx context.Context, p driver.Place, heir uint64) error {
	c, err := l.standingAt(ctx, p)
	if err != nil {
		return err
	}
	left := l.store.note(p) // by this call only: one that fails leaves nothing for whatever ends the place later
	for {
		if err := l.store.barrier(ctx, l.link); err != nil { // an heir that others saw is there for us too
			return err
		}
		nodes, at, err := l.store.find(ctx, l.link, p.Name, heir)
		if err != nil {
			return err
		}
		own := slices.IndexFunc(nodes, func(n node) bool { return n.path == c.path })
		switch {
		case own < 0:
			l.removed(c)
			return driver.ErrGone
		case own > 0 || c.want.Slots != 0:
			return fmt.Errorf("%s under token %d is not held alone: %w", p.Name, p.Token, driver.ErrRefused)
		case at <= 0 || nodes[at].slots != 0:
			return driver.ErrNoSuccessor
		case nodes[at].lease == l.id:
			return fmt.Errorf("%s: the heir's claim is of the same lease: %w", p.Name, driver.ErrRefused)
		}
		again, err := l.hand(ctx, c, nodes[1:at], nodes[at], &left)
		if err != nil || !again {
			return err
		}
	}
}

// hand removes a claim, and those between it and its heir, in one step if the heir still stands. It says whether the line must be looked at again: somebody has left
// meanwhile, or there were more between than one request holds, and those in front were removed.
func (l *lease) hand(ctx context.Context, c *claim, between []node, heir node, left **note) (again bool, err error) {
	ops := []any{&zk.CheckVersionRequest{Path: heir.path, Version: -1}}
	size := 0
	for _, n := range between {
		if size += len(n.path) + 20; size > maxBatch {
			_, err := multi(ctx, l.link, append(ops, &zk.CheckVersionRequest{Path: c.path, Version: -1})...)
			if errors.Is(err, zk.ErrNoNode) {
				err = nil
			}
			return err == nil, err
		}
		ops = append(ops, &zk.DeleteRequest{Path: n.path, Version: -1})
	}
	ops = append(ops, &zk.DeleteRequest{Path: c.path, Version: -1})
	if *left != nil {
		ops = append(ops, (*left).op(l.store))
	}
	l.mu.Lock()
	c.quiet = true // if this is what removes it, that is no news
	l.mu.Unlock()
	answers, err := multi(ctx, l.link, ops...)
	if err == nil {
		l.mu.Lock()
		l.giveUp(c)
		l.hasLeft(c)
		l.mu.Unlock()
		return false, nil
	}
	l.mu.Lock()
	c.quiet = false // also when it is unknown: a removal that comes later, by whoever, must be told
	l.mu.Unlock()
	at := failed(answers)
	if at < 0 {
		return false, err // unknown
	}
	if *left != nil && at == len(ops)-1 {
		if !(*left).learn(ctx, l, err) {
			*left = nil
		}
		return true, nil
	}
	if errors.Is(err, zk.ErrNoNode) {
		return true, nil
	}
	return false, err
}
