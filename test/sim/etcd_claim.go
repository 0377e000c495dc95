package sim

import "errors"

func (h *etcdHandle) isSpent(id uint64) bool {
	for _, s := range h.spent {
		if s == id {
			return true
		}
	}
	return false
}

// claim is etcdstore/claim.go.
func (h *etcdHandle) claim(t *task, ctx *life, name int, id uint64) (place, error) {
	sl := &h.slots[name]
	if !sl.turn.lock(t, ctx) {
		return place{}, errUnknown
	}
	defer sl.turn.unlock()
	switch {
	case h.gone, h.isSpent(id):
		return place{}, errGone
	case sl.id != 0 && (sl.id != id || sl.leaving):
		if err := h.retract(t, ctx, name); err != nil {
			return place{}, err
		}
	}
	if h.isSpent(id) {
		return place{}, errGone
	}
	sl.id = id
	sl.stop = ctx.child(&h.s.n.host, 0)
	p, err := h.stand(t, sl.stop, name)
	sl.stop = nil
	if errors.Is(err, errGone) || errors.Is(err, errRefused) {
		if rerr := h.retract(t, ctx, name); rerr != nil {
			return p, rerr
		}
		h.spent = append(h.spent, id)
	}
	return p, err
}

func (h *etcdHandle) stand(t *task, ctx *life, name int) (place, error) {
	sl := &h.slots[name]
	if sl.token == 0 {
		return h.enter(t, ctx, name)
	}
	r, err := h.look(t, ctx, place{name: name, token: sl.token}, nil)
	if err == nil && !r.stands {
		err = errGone
	}
	return place{name, sl.id, sl.token, r.held}, err
}

// enter puts the claim's key, if the record is as we know it.
func (h *etcdHandle) enter(t *task, ctx *life, name int) (place, error) {
	sl, id := &h.slots[name], h.slots[name].id
	for {
		at, no := h.anchor, t.w.refuses()
		r, doubt, err := h.s.call(t, ctx, func() reply {
			if no {
				return reply{err: errRefused}
			}
			return h.enterStep(name, id, at)
		})
		sl.doubt = sl.doubt || doubt
		switch {
		case errors.Is(err, errGone):
			h.end()
			return place{}, err
		case err != nil:
			return place{}, err
		case r.ok:
			sl.token = r.rev
			h.bell.ring()
			return place{name, id, r.rev, r.held}, nil
		case !r.stands:
			h.end()
			return place{}, errGone
		case r.rev != 0 && sl.doubt: // our own put, whose answer was lost
			sl.token = r.rev
			return h.stand(t, ctx, name)
		case r.rev != 0:
			if err := h.remove(t, ctx, name, r.rev); err != nil {
				return place{}, err
			}
		default:
			h.learn(r.mod, r.lease)
		}
	}
}

// enterStep is the Txn: it puts the key if the record has the mark that we know and no key is there, and else tells what stands.
func (h *etcdHandle) enterStep(name int, id uint64, at anchor) reply {
	c := h.s.c
	rec, e := h.mine(), c.ln[name].of(h.no)
	switch {
	case rec == nil:
		return reply{}
	case rec.mod != at.mark || e != nil:
		r := reply{stands: true, mod: rec.mod, lease: rec.lease}
		if e != nil {
			r.rev = e.token
		}
		return r
	case !c.alive(at.lease):
		return reply{err: errGone} // etcd: requested lease not found
	}
	c.rev++
	e = &entry{owner: rec.owner, inc: rec.inc, sess: h.no, claim: id, token: c.rev, mod: c.rev, lease: at.lease}
	c.ln[name].enter(e)
	return reply{ok: true, rev: c.rev, held: c.ln[name].entries[0] == e}
}

// look reads a place and what stands before it in one step; with b the store rings when the one before goes.
func (h *etcdHandle) look(t *task, ctx *life, p place, b *bell) (reply, error) {
	r, _, err := h.s.call(t, ctx, func() reply {
		e := h.s.c.ln[p.name].of(h.no)
		if e == nil || e.token != p.token {
			return reply{}
		}
		if b != nil {
			e.signal, e.server = b, h.s.at
		}
		return reply{stands: true, held: e.line.entries[0] == e}
	})
	return r, err
}

func (h *etcdHandle) wait(t *task, ctx *life, p place) (place, error) {
	b := &bell{}
	for !ctx.over() {
		r, err := h.look(t, ctx, p, b)
		switch {
		case h.gone, err == nil && !r.stands:
			return p, errGone
		case err == nil && r.held:
			p.held = true
			return p, nil
		}
		if err != nil && t.w.rng.chance(200_000) {
			return p, errUnknown // a store may give up waiting
		}
		b.listen(t, ctx, pollAfter(t.w, err))
	}
	return p, errUnknown
}

// retract takes the slot's claim out for good. In doubt the record is rewritten in the same step, so that whatever is still under way fails.
func (h *etcdHandle) retract(t *task, ctx *life, name int) error {
	sl := &h.slots[name]
	sl.leaving = true
	var err error
	switch {
	case sl.doubt:
		err = h.fence(t, ctx, name)
	case sl.token != 0:
		err = h.remove(t, ctx, name, sl.token)
	}
	if err == nil {
		*sl = slot{turn: sl.turn}
	}
	return err
}

func (h *etcdHandle) remove(t *task, ctx *life, name int, token uint64) error {
	_, _, err := h.s.call(t, ctx, func() reply {
		if e := h.s.c.ln[name].of(h.no); e != nil && e.token == token {
			h.s.c.rev++
			e.line.remove(e, released)
		}
		return reply{}
	})
	return err
}

// fence is retract's Txn, tried until it fits what stands: one that is carried out late must not hit a later claim.
func (h *etcdHandle) fence(t *task, ctx *life, name int) error {
	for token := h.slots[name].token; ; {
		r, _, err := h.s.call(t, ctx, func() reply { return h.fenceStep(name, token) })
		switch {
		case err != nil:
			return err
		case r.ok:
			h.learn(r.mod, r.lease)
			return nil
		case !r.stands: // no put can enter without the record; what stands is all there will be
			h.end()
			if r.rev == 0 {
				return nil
			}
			return h.remove(t, ctx, name, r.rev)
		}
		token = r.rev
	}
}

func (h *etcdHandle) fenceStep(name int, token uint64) reply {
	rec, e := h.mine(), h.s.c.ln[name].of(h.no)
	r := reply{stands: rec != nil}
	if e != nil {
		r.rev = e.token
	}
	if rec == nil || r.rev != token {
		return r
	}
	h.s.c.rev++
	if e != nil {
		e.line.remove(e, released)
	}
	rec.mod = h.s.c.rev
	r.ok, r.mod, r.lease = true, rec.mod, rec.lease
	return r
}

// release is etcdstore/place.go.
func (h *etcdHandle) release(t *task, ctx *life, p place) error {
	sl := &h.slots[p.name]
	has := func() bool { return sl.id == p.id && (p.token == 0 || sl.token == 0 || p.token == sl.token) }
	if has() || p.token == 0 {
		h.spent = append(h.spent, p.id)
	}
	if has() {
		sl.leaving = true
		if sl.stop != nil {
			sl.stop.cancel()
		}
	}
	if !sl.turn.lock(t, ctx) {
		return errUnknown
	}
	defer sl.turn.unlock()
	switch {
	case has():
		return h.retract(t, ctx, p.name)
	case p.token != 0:
		return h.remove(t, ctx, p.name, p.token)
	}
	return nil
}

// news is etcdstore/news.go: it looks when it is told to, and once in a while.
func (h *etcdHandle) news(t *task, ctx *life) ([]place, error) {
	for !ctx.over() {
		if h.gone {
			return nil, errGone
		}
		var had [2]place
		for i, sl := range h.slots {
			if sl.token != 0 && !sl.leaving {
				had[i] = place{name: i, id: sl.id, token: sl.token}
			}
		}
		r, _, err := h.s.call(t, ctx, func() reply {
			if h.mine() == nil {
				return reply{}
			}
			r := reply{stands: true}
			for i, ln := range h.s.c.ln {
				if e := ln.of(h.no); had[i].token != 0 && (e == nil || e.token != had[i].token) {
					r.mask |= 1 << i
				}
			}
			return r
		})
		var lost []place
		if err == nil && !r.stands {
			h.end()
			return nil, errGone
		}
		for i, p := range had {
			if sl := &h.slots[i]; err == nil && r.mask>>i&1 != 0 && sl.token == p.token && !sl.leaving {
				sl.leaving = true
				h.spent = append(h.spent, p.id)
				lost = append(lost, p)
			}
		}
		if lost != nil {
			return lost, nil
		}
		h.bell.listen(t, ctx, pollAfter(t.w, err))
	}
	return nil, errUnknown
}
