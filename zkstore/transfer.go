package zkstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/primacy-go/primacy/driver"
)

var (
	_ driver.Exchanger  = (*lease)(nil)
	_ driver.Transferer = (*lease)(nil)
)

// Exchange gives p up and enters want, in one step.
func (l *lease) Exchange(ctx context.Context, p driver.Place, want driver.Claim) (driver.Place, error) {
	if err := driver.CheckExchange(p, want); err != nil {
		return driver.Place{}, err
	}
	if err := l.checkClaims(want); err != nil {
		return driver.Place{}, err
	}
	old, err := l.standingAt(ctx, p)
	if errors.Is(err, driver.ErrGone) && l.check(ctx) == nil {
		old, err = nil, nil
	}
	if err != nil {
		return driver.Place{}, err
	}
	all, fresh, displaced, err := l.claims.enlist(l.store, want)
	if err != nil {
		return driver.Place{}, err
	}
	old = l.claims.giveUpForExchange(p, old)
	if len(fresh) > 0 {
		go enterAfter(l, displaced, fresh, old)
	} else if old != nil { // the step is under way, or was done
		(&entry{l: l, old: old}).releaseOld()
	}
	places, err := l.places(ctx, all)
	if err != nil {
		return driver.Place{}, err
	}
	return places[0], nil
}

// Transfer hands the name of p to the claim with that token: everybody before it is removed in one
// step.
func (l *lease) Transfer(ctx context.Context, p driver.Place, token uint64) error {
	c, err := l.standingAt(ctx, p)
	if err != nil {
		return err
	}
	h := handOver{l: l, c: c, record: recordOf(p)}
	for {
		if err := l.barrier(ctx); err != nil { // a successor that others saw is there for us too
			return err
		}
		nodes, at, err := l.tree.find(ctx, p.Name, token)
		if err != nil {
			return err
		}
		own := lineNodes{nodes: nodes}.indexOf(c.path)
		switch {
		case own < 0:
			l.claims.tellGone(c)
			return driver.ErrGone
		case own > 0 || c.want.Slots != 0:
			return fmt.Errorf("%s under token %d is not held alone: %w", p.Name, p.Token, driver.ErrRefused)
		case at <= 0 || nodes[at].slots != 0:
			return driver.ErrNoSuccessor
		case nodes[at].lease == l.id:
			return fmt.Errorf("%s: the successor's claim is of the same lease: %w", p.Name, driver.ErrRefused)
		}
		again, err := h.try(ctx, nodes[1:at], nodes[at])
		if err != nil || !again {
			return err
		}
	}
}

// handOver is a transfer under way.
type handOver struct {
	l      *lease
	c      *claim
	record *partRecord // left by this call only: one that fails leaves nothing for whatever ends the place later
}

// try removes the claim, and those between it and its successor, in one step if the successor still
// stands. It says whether the line must be looked at again: somebody has left meanwhile, or there
// were more between than one request holds, and those in front were removed.
func (h *handOver) try(ctx context.Context, between []node, successor node) (again bool, err error) {
	ops := []op{existsOp(successor.path)}
	size := 0
	for _, n := range between {
		if size += len(n.path) + 20; size > maxBatch {
			_, err := h.l.multi(ctx, append(ops, existsOp(h.c.path))...)
			if errors.Is(err, errNoNode) {
				err = nil
			}
			return err == nil, err
		}
		ops = append(ops, deleteOp(n.path))
	}
	ops = append(ops, deleteOp(h.c.path))
	if h.record != nil {
		ops = append(ops, h.record.op(h.l.store))
	}
	cs := &h.l.claims
	cs.mu.Lock()
	h.c.quiet = true // if this is what removes it, that is no news
	cs.mu.Unlock()
	answers, err := h.l.multi(ctx, ops...)
	at := failed(answers)
	cs.mu.Lock()
	if err == nil {
		cs.giveUpLocked(h.c)
		cs.noteGoneLocked(h.c)
	} else {
		h.c.quiet = false // also when it is unknown: a removal that comes later, by whoever, must be told
	}
	cs.mu.Unlock()
	switch {
	case err == nil || at < 0: // done, or unknown
		return false, err
	case h.record != nil && at == len(ops)-1:
		if !h.record.learn(ctx, h.l.tree, err) {
			h.record = nil
		}
		return true, nil
	case errors.Is(err, errNoNode):
		return true, nil
	}
	return false, err
}
