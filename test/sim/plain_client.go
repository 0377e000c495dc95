package sim

import "errors"

// plainClient is one process's client of a plain store.
type plainClient struct {
	p    *plain
	n    *node
	inc  uint32
	says func(name int) []byte // nil, or the value of a claim as it enters
}

func (p *plain) client(n *node) client { return &plainClient{p: p, n: n, inc: n.inc} }

// carrier brings what a handle asks to its store, and the answer back.
type carrier interface {
	ask(t *task, ctx *life, limit int64, kind msgKind, op func() reply) (reply, error)
	server() int // that is asked at present
}

func (c *plainClient) server() int { return 0 }

func (c *plainClient) ask(t *task, ctx *life, limit int64, kind msgKind, op func() reply) (reply, error) {
	return t.call(ctx, limit, c.n, 0, msg{kind: kind}, op)
}

func (c *plainClient) grant(t *task, ctx *life) (storeLease, error) {
	asked := c.n.clock()
	r, err := c.ask(t, ctx, forever, plainCall, func() reply { return c.p.grant(c.n, c.inc) })
	if err != nil {
		return nil, err
	}
	h := &plainHandle{c: c, via: c, no: r.id, span: r.ttl}
	if c.p.w.plan.Beat > 0 {
		h.span = c.p.w.plan.Beat
		return &beatHandle{plainHandle: h, base: r.ttl, proven: asked, tried: asked}, nil
	}
	return h, nil
}

// plainHandle is a lease as its owner has it.
type plainHandle struct {
	c     *plainClient
	via   carrier
	no    uint64
	span  int64
	slots [maxNames]place // what it believes to have in each line; id 0: nothing
	bell  bell
	said  uint64 // numbers the values that it states
}

func (h *plainHandle) id() uint64 { return h.no }
func (h *plainHandle) ttl() int64 { return h.span }

// do runs op on the store if the lease lives.
func (h *plainHandle) do(t *task, ctx *life, op func(*plainLease) reply) (reply, error) {
	return h.via.ask(t, ctx, forever, plainCall, func() reply {
		l := h.c.p.find(h.no)
		if l == nil || l.beat == 0 && h.c.p.w.plan.Beat > 0 {
			return reply{err: errGone}
		}
		return op(l)
	})
}

func (h *plainHandle) renew(t *task, ctx *life) error {
	_, err := h.do(t, ctx, func(l *plainLease) reply {
		l.ends = max(l.ends, l.p.host.clock()+l.ttl)
		return reply{}
	})
	return err
}

func (h *plainHandle) claim(t *task, ctx *life, name int, id uint64) (place, error) {
	var value []byte
	if h.c.says != nil {
		value = h.c.says(name)
	}
	no := t.w.refuses() // each copy of the request alike: a refusal says that nothing happened
	r, err := h.do(t, ctx, func(l *plainLease) reply {
		if no {
			return reply{err: errRefused}
		}
		r := l.claim(name, id)
		if e := l.p.ln[name].of(l.id); value != nil && e != nil && e.claim == id && e.value == nil {
			e.value = value
			e.line.touched()
		}
		return r
	})
	if err != nil {
		return place{}, err
	}
	p := place{name: name, id: id, token: r.rev, held: r.held}
	h.slots[name] = p
	h.bell.ring()
	return p, nil
}

// pollAfter is how long a wait relies on a push alone, after a read that ended with err.
func pollAfter(w *World, err error) int64 {
	if err != nil {
		return sec / 2
	}
	return w.rng.span(4*sec, 6*sec)
}

func (h *plainHandle) wait(t *task, ctx *life, p place) (place, error) {
	b := &bell{}
	for !ctx.over() {
		r, err := h.via.ask(t, ctx, sec, localRead, func() reply {
			e, r := h.c.p.look(h.no, p)
			if e != nil && !r.held {
				e.signal, e.server = b, h.via.server()
			}
			return r
		})
		switch {
		case err != nil:
		case !r.stands:
			return p, errGone
		case r.held:
			p.token, p.held = r.rev, true
			return p, nil
		}
		if err != nil && t.w.rng.chance(200_000) {
			return p, errUnknown // a store may give up waiting
		}
		b.listen(t, ctx, pollAfter(t.w, err))
	}
	return p, errUnknown
}

func (h *plainHandle) release(t *task, ctx *life, p place) error {
	_, err := h.do(t, ctx, func(l *plainLease) reply {
		l.release(p)
		return reply{}
	})
	if (err == nil || errors.Is(err, errGone)) && h.slots[p.name].id == p.id {
		h.slots[p.name] = place{}
	}
	return err
}

// news looks at every place when it is told to, and once in a while.
func (h *plainHandle) news(t *task, ctx *life) ([]place, error) {
	for !ctx.over() {
		slots := h.slots
		r, err := h.via.ask(t, ctx, sec, localRead, func() reply {
			l := h.c.p.find(h.no)
			if l == nil {
				return reply{err: errGone}
			}
			l.bell, l.server = &h.bell, h.via.server()
			r := reply{}
			for i, s := range slots[:h.c.p.w.plan.Names] {
				if e, _ := h.c.p.look(h.no, s); e == nil && s.id != 0 {
					r.mask |= 1 << i
				}
			}
			return r
		})
		if errors.Is(err, errGone) {
			return nil, err
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
	return nil, errUnknown
}

func (h *plainHandle) close(t *task, ctx *life) error {
	_, err := h.do(t, ctx, func(l *plainLease) reply {
		h.c.n.w.judge.closes(l.owner, l.inc, h.no)
		l.end(ended)
		return reply{}
	})
	return err
}
