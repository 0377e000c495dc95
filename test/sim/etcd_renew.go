package sim

import "errors"

// renew is etcdstore/renew.go: one attempt at one member.
func (h *etcdHandle) renew(t *task, ctx *life) error {
	if h.gone {
		return errGone
	}
	s := h.s
	at, from := s.at, s.n.mono()
	err := h.renewAt(t, ctx.child(&s.n.host, min(h.span/2, callLimit)), at)
	switch {
	case err == nil:
		return nil
	case h.gone:
		return errGone
	case errors.Is(err, errRecord):
		h.end()
		return errGone
	}
	s.leave(at, s.n.mono()-from)
	return errUnknown
}

func (h *etcdHandle) renewAt(t *task, ctx *life, at int) error {
	s, now := h.s, h.anchor
	ka, err := t.call(ctx, forever, s.n, at, msg{kind: keepalive}, func() reply { return reply{id: now.lease} })
	if err != nil {
		return err
	}
	if s.c.w.plan.Broken.Unverified {
		if ka.ttl <= 0 {
			return errRecord
		}
		return nil
	}
	// The proof through the log. Of the two requests it takes at a real member one is enough here, where an answer's term is that of its entry.
	r, err := t.call(ctx, forever, s.n, at, msg{}, func() reply {
		rec := h.mine()
		if rec == nil {
			return reply{}
		}
		return reply{stands: true, mod: rec.mod, lease: rec.lease}
	})
	if err != nil {
		return err
	}
	if !r.stands {
		return errRecord
	}
	s.term = max(s.term, r.term)
	switch {
	case r.lease != now.lease:
		h.learn(r.mod, r.lease)
		return h.move(t, ctx, r.term)
	case r.term != now.term && !s.c.w.plan.Broken.NoMove:
		return h.move(t, ctx, r.term)
	case ka.ttl <= 0:
		return errUnknown
	case !now.settled:
		return h.settle(t, ctx)
	}
	return nil
}

func (h *etcdHandle) learn(mod, lease uint64) {
	a := &h.anchor
	if mod <= a.mark {
		return
	}
	a.mark = mod
	if a.lease != lease {
		h.old = append(h.old, a.lease)
		a.lease, a.term, a.settled = lease, 0, false
	}
}

// move is etcdstore/move.go: a lease of the present raft term, and everything attached to it.
func (h *etcdHandle) move(t *task, ctx *life, term uint64) error {
	if h.anchor.term != term {
		if err := h.moveRecord(t, ctx); err != nil {
			return err
		}
	}
	return h.settle(t, ctx)
}

func (h *etcdHandle) moveRecord(t *task, ctx *life) error {
	g, err := h.s.grantIn(t, ctx)
	if err != nil {
		return err
	}
	if h.shut {
		h.s.later(func(t *task, l *life) { _ = h.s.revoke(t, l, g.id) })
		return errGone
	}
	h.old = append(h.old, g.id)
	for {
		now := h.anchor
		r, _, err := h.s.call(t, ctx, func() reply {
			rec := h.mine()
			switch {
			case rec == nil:
				return reply{}
			case rec.mod != now.mark:
				return reply{stands: true, mod: rec.mod, lease: rec.lease}
			case !h.s.c.alive(g.id):
				return reply{err: errRefused}
			}
			h.s.c.rev++
			rec.mod, rec.lease = h.s.c.rev, g.id
			return reply{ok: true, stands: true, mod: rec.mod}
		})
		switch {
		case err != nil:
			return err
		case r.ok:
			h.s.c.w.count.Moves++
			h.old = append(h.old, h.anchor.lease)
			h.anchor = anchor{lease: g.id, term: g.term, mark: r.mod}
			return nil
		case !r.stands:
			return errRecord
		}
		h.learn(r.mod, r.lease)
	}
}

func (h *etcdHandle) settle(t *task, ctx *life) error {
	for !h.anchor.settled {
		now := h.anchor
		var tokens [2]uint64
		var ids [2]uint64
		for i := range h.slots {
			tokens[i], ids[i] = h.slots[i].token, h.slots[i].id
		}
		r, _, err := h.s.call(t, ctx, func() reply { return h.settleStep(now, tokens, ids) })
		if err != nil {
			return err
		}
		if !r.ok {
			if !r.stands {
				return errRecord
			}
			h.learn(r.mod, r.lease)
			continue
		}
		for i := range h.slots {
			sl := &h.slots[i]
			if r.mask>>i&1 != 0 && tokens[i] != 0 && sl.token == tokens[i] && !sl.leaving {
				return errRecord // it went with its old lease, in part of a move
			}
		}
		h.old, h.anchor.settled = nil, h.anchor.lease == now.lease
	}
	return nil
}

// settleStep is one Txn: every claim that stands goes over to the record's lease. Mask tells which did not stand.
func (h *etcdHandle) settleStep(now anchor, tokens, ids [2]uint64) reply {
	rec := h.mine()
	if rec == nil {
		return reply{}
	}
	if rec.mod != now.mark {
		return reply{stands: true, mod: rec.mod, lease: rec.lease}
	}
	if !h.s.c.alive(now.lease) {
		return reply{err: errRefused}
	}
	r := reply{ok: true, stands: true}
	for i, ln := range h.s.c.ln {
		if ids[i] == 0 {
			continue
		}
		if e := ln.of(h.no); e != nil && (tokens[i] == 0 || e.token == tokens[i]) {
			h.s.c.rev++
			e.lease, e.mod = now.lease, h.s.c.rev
		} else {
			r.mask |= 1 << i
		}
	}
	return r
}
