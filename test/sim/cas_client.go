package sim

// write rewrites the lease's register with to, a version that nobody else writes, if it has still
// the version known.
func (h *casHandle) write(t *task, ctx *life, to uint64) (reply, error) {
	known := h.version
	return h.ask(t, ctx, func() reply {
		if h.lease.beat != known {
			return reply{mod: h.lease.beat}
		}
		h.lease.beat, h.lease.ends = to, h.s.w.now
		return reply{ok: true}
	})
}

// renew is registerstore/lease.go: Renew and recover. Versions that the lease has written grow;
// another one than any of its own is 0: it has ended.
func (h *casHandle) renew(t *task, ctx *life) error {
	h.s.next++
	mine := h.s.next
	for !h.dead && !ctx.over() {
		r, err := h.write(t, ctx, mine)
		switch {
		case err != nil:
			return err
		case r.ok || r.mod == mine:
			h.version = mine
			return nil
		case r.mod == 0:
			return h.end()
		case r.mod > h.version: // an earlier renewal, whose outcome was unknown
			h.version = r.mod
		default:
			return errUnknown
		}
	}
	if h.dead {
		return errGone
	}
	return errUnknown
}

// lives asks for the lease's register.
func (h *casHandle) lives(t *task, ctx *life) error {
	r, err := h.ask(t, ctx, func() reply { return reply{ok: h.lease.beat != 0} })
	if err == nil && !r.ok {
		return h.end()
	}
	return err
}

// step changes a line: it reads the register, and writes it under a compare. Done says of what is
// read that nothing need be written.
func (h *casHandle) step(t *task, ctx *life, pl place, done func(r reply) bool, change func(ln *line) reply) (reply,
	error) {
	for !ctx.over() {
		r, err := h.ask(t, ctx, func() reply { return h.s.view(h.no, pl, nil) })
		if err != nil || done(r) {
			return r, err
		}
		ver := r.mod
		r, err = h.ask(t, ctx, func() reply { return h.s.put(pl.name, ver, change) })
		if err != nil || r.ok || r.err != nil {
			return r, err
		}
		t.sleep(ctx, t.w.rng.span(ms, 50*ms))
	}
	return reply{}, errUnknown
}

func (h *casHandle) claim(t *task, ctx *life, name int, id uint64) (place, error) {
	if h.dead {
		return place{}, errGone
	}
	if t.w.refuses() {
		return place{}, errRefused
	}
	first := t.w.rng.intn(2) == 0 // the lease is asked for beside
	if first {
		if err := h.lives(t, ctx); err != nil {
			return place{}, err
		}
	}
	h.doubt[name] = true
	r, err := h.step(t, ctx, place{name: name, id: id}, func(r reply) bool { return r.stands },
		func(*line) reply { return h.lease.claim(name, id) })
	if err == nil && !first {
		err = h.lives(t, ctx)
	}
	if err != nil {
		return place{}, err
	}
	h.doubt[name] = false
	p := place{name: name, id: id, token: r.rev, held: r.held}
	h.slots[name] = p
	h.bell.ring()
	return p, nil
}

// release forces a write where a claim may be about to enter: then its compare fails.
func (h *casHandle) release(t *task, ctx *life, p place) error {
	if h.dead {
		return errGone
	}
	_, err := h.step(t, ctx, p, func(r reply) bool { return !r.stands && !h.doubt[p.name] },
		func(*line) reply { h.lease.release(p); return reply{} })
	if err == nil && h.slots[p.name].id == p.id {
		h.slots[p.name] = place{}
	}
	return err
}

// wait waits as registerstore does: an expiry watch watches the leases of those before.
func (h *casHandle) wait(t *task, ctx *life, p place) (place, error) {
	b, n := &bell{}, h.n
	silence := h.lease.ttl * 112 / 100
	for !ctx.over() && !h.dead {
		asked := n.mono()
		r, err := h.ask(t, ctx, func() reply { return h.s.view(h.no, p, b) })
		switch {
		case err != nil:
		case !r.stands:
			return p, errGone
		case r.held:
			if err := h.lives(t, ctx); err != nil {
				return p, err
			}
			p.token, p.held = r.rev, true
			return p, nil
		default:
			got := n.mono() // after the receipt
			if t.w.plan.Broken.Hasty {
				got = asked
			}
			h.receive(p.name, r.ahead, got)
		}
		for _, a := range h.seen[p.name] {
			if a.beat == 0 || n.mono()-a.since >= silence && h.endLease(t, ctx, a) {
				h.clear(t, ctx)
				break
			}
		}
		b.listen(t, ctx, t.w.rng.span(silence/16, silence/8))
	}
	if h.dead {
		return p, errGone
	}
	return p, errUnknown
}

// receive notes the versions of leases, and since when each has not changed.
func (h *casHandle) receive(name int, now []ahead, at int64) {
	for i := range now {
		now[i].since = at
		for _, a := range h.seen[name] {
			if a.sess == now[i].sess && a.beat == now[i].beat {
				now[i].since = a.since
			}
		}
	}
	h.seen[name] = now
}

// endLease ends a lease that has still the version received.
func (h *casHandle) endLease(t *task, ctx *life, a ahead) bool {
	w := t.w
	r, err := h.ask(t, ctx, func() reply {
		l := h.s.find(a.sess)
		if l.beat != a.beat && !w.plan.Broken.Blind {
			return reply{}
		}
		if l.beat != 0 {
			w.count.Strikes++
		}
		l.beat = 0
		l.ring()
		return reply{ok: true}
	})
	return err == nil && r.ok
}

// clear takes out of the lines what has ended.
func (h *casHandle) clear(t *task, ctx *life) {
	for name := range t.w.plan.Names {
		stale := func(r reply) bool {
			for _, a := range r.ahead {
				if a.beat == 0 {
					return false
				}
			}
			return true
		}
		_, _ = h.step(t, ctx, place{name: name, id: ^uint64(0)}, stale, h.s.purge)
	}
}

// news looks at every place when it is told to, and once in a while.
func (h *casHandle) news(t *task, ctx *life) ([]place, error) {
	for !ctx.over() && !h.dead {
		slots := h.slots
		r, err := h.ask(t, ctx, func() reply {
			h.lease.bell = &h.bell
			r := reply{ok: h.lease.beat != 0}
			for i, s := range slots[:h.s.w.plan.Names] {
				if e, _ := h.s.look(h.no, s); e == nil && s.id != 0 {
					r.mask |= 1 << i
				}
			}
			return r
		})
		if err == nil && !r.ok {
			return nil, h.end()
		}
		var lost []place
		for i, s := range slots {
			if r.mask>>i&1 != 0 && h.slots[i] == s {
				h.slots[i] = place{}
				lost = append(lost, s)
			}
		}
		if lost != nil {
			return lost, nil
		}
		h.bell.listen(t, ctx, pollAfter(t.w, err))
	}
	if h.dead {
		return nil, errGone
	}
	return nil, errUnknown
}

// close ends the lease, whatever its version, then takes its claims out.
func (h *casHandle) close(t *task, ctx *life) error {
	n := h.n
	_, err := h.ask(t, ctx, func() reply {
		n.w.judge.closes(n, h.inc, h.no)
		h.lease.beat = 0
		return reply{}
	})
	if err == nil {
		h.clear(t, ctx)
		if ctx.over() {
			err = errUnknown
		}
	}
	if err == nil {
		_ = h.end()
	}
	return err
}
