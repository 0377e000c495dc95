package sim

type quorumClient struct {
	q *quorum
	n *node
}

func (q *quorum) client(n *node) client { return &quorumClient{q, n} }

// quorumHandle is a lease as its owner has it: the servers know only its claims' keys.
type quorumHandle struct {
	*quorumClient
	no       uint64
	renewals int // begun
	claims   [2]seat
	lost     []place
	bell     bell
	dead     bool
}

// seat is a claim: one attempt at a time.
type seat struct {
	turn    gate
	id      uint64
	attempt uint64
	held    bool
}

func (c *quorumClient) grant(*task, *life) (storeLease, error) {
	c.q.w.ids++
	return &quorumHandle{quorumClient: c, no: c.q.w.ids}, nil
}

func (h *quorumHandle) id() uint64 { return h.no }
func (h *quorumHandle) ttl() int64 { return h.q.w.plan.TTL }

// tally is what the servers have answered.
type tally struct {
	answered, own, not, counts int
	none                       []int // servers that have nothing there
	k                          waker
}

// fan asks all servers at once, and returns when enough is known, all have answered or ctx has
// ended.
func (h *quorumHandle) fan(t *task, ctx *life, op func(v *keeper) reply, enough func(*tally) bool) *tally {
	sum := &tally{}
	all := ctx.child(&h.n.host, 2*sec)
	for i, v := range h.q.v {
		t.w.spawn(&h.n.host, func(t *task) {
			r, err := t.call((*life)(nil).child(&h.n.host, 2*sec), forever, h.n, i, msg{},
				func() reply { return op(v) })
			if sum.answered++; err == nil {
				sum.add(i, r)
			}
			sum.k.wake()
		})
	}
	for sum.answered < len(h.q.v) && !enough(sum) && !all.over() {
		sum.k = t.arm()
		t.wait(all, sum.k, forever)
	}
	return sum
}

func (s *tally) add(i int, r reply) {
	switch {
	case r.held && r.ok:
		s.own++
	case !r.held:
		s.not++
	}
	if r.ok {
		s.counts++
	}
	if !r.stands {
		s.none = append(s.none, i)
	}
}

const majority = 2

func (s *tally) won() bool { return s.own >= majority }

// renew extends every held claim on a majority that counts. One that has certainly lost it is told.
func (h *quorumHandle) renew(t *task, ctx *life) error {
	if h.dead {
		return errGone
	}
	h.renewals++
	idle := true
	for name := range h.claims[:h.q.w.plan.Names] {
		c := h.claims[name]
		if !c.held {
			continue
		}
		idle = false
		sum := h.fan(t, ctx, func(v *keeper) reply { return v.extend(name, c.attempt) }, (*tally).won)
		if now := &h.claims[name]; now.attempt != c.attempt || !now.held {
			continue // given up meanwhile
		}
		switch {
		case sum.won():
			h.repair(t, name, c, sum)
		case sum.not >= majority:
			h.lost = append(h.lost, place{name: name, id: c.id, token: c.attempt})
			h.claims[name] = seat{turn: h.claims[name].turn}
			h.bell.ring()
			return errUnknown
		default:
			return errUnknown
		}
	}
	if idle {
		sum := h.fan(t, ctx, func(v *keeper) reply { return v.state(0, 0) },
			func(s *tally) bool { return s.counts >= majority })
		if sum.counts < majority {
			return errUnknown
		}
	}
	return nil
}

// repair sets a key again where a minority has lost it.
func (h *quorumHandle) repair(t *task, name int, c seat, sum *tally) {
	for _, i := range sum.none {
		t.w.spawn(&h.n.host, func(t *task) {
			if now := h.claims[name]; now.held && now.attempt == c.attempt {
				_, _ = t.call(nil, sec, h.n, i, msg{}, func() reply { return h.q.v[i].enter(name, c.attempt) })
			}
		})
	}
}

// try makes one attempt to hold a name. A renewal that began meanwhile has not extended it, and yet
// the library counts from it.
func (h *quorumHandle) try(t *task, ctx *life, name int, id uint64) (place, bool) {
	c := &h.claims[name]
	h.q.w.ids++
	n := h.q.w.ids
	c.id, c.attempt = id, n
	begun := h.renewals
	sum := h.fan(t, ctx, func(v *keeper) reply { return v.enter(name, n) }, (*tally).won)
	for sum.won() && begun != h.renewals && !h.q.w.plan.Broken.NoRecheck {
		begun = h.renewals
		sum = h.fan(t, ctx, func(v *keeper) reply { return v.extend(name, n) }, (*tally).won)
	}
	if !sum.won() || h.dead || c.id != id {
		h.leave(t, name, n, nil)
		return place{}, false
	}
	c.held = true
	return place{name: name, id: id, token: n, held: true}, true
}

// leave takes an attempt off every server, for as long as it takes. With off it counts those where
// it is done.
func (h *quorumHandle) leave(t *task, name int, attempt uint64, off *tally) {
	for i, v := range h.q.v {
		t.w.spawn(&h.n.host, func(t *task) {
			for try := 1; try < 8; try++ {
				if _, err := t.call(nil, sec, h.n, i, msg{},
					func() reply { return v.leave(name, attempt) }); err == nil {
					break
				} else if !t.pause(nil, try) {
					return
				}
			}
			if off != nil {
				off.answered++
				off.k.wake()
			}
		})
	}
}

func (h *quorumHandle) claim(t *task, ctx *life, name int, id uint64) (place, error) {
	c := &h.claims[name]
	if !c.turn.lock(t, ctx) {
		return place{}, errUnknown
	}
	defer c.turn.unlock()
	switch {
	case h.dead:
		return place{}, errGone
	case c.held && c.id == id:
		return place{name: name, id: id, token: c.attempt, held: true}, nil
	case t.w.refuses():
		return place{}, errRefused
	}
	if p, ok := h.try(t, ctx, name, id); ok {
		return p, nil
	}
	return place{name: name, id: id}, nil
}

func (h *quorumHandle) wait(t *task, ctx *life, p place) (place, error) {
	c := &h.claims[p.name]
	for !ctx.over() {
		if !c.turn.lock(t, ctx) {
			break
		}
		if h.dead || c.id != p.id {
			c.turn.unlock()
			return p, errGone
		}
		got, ok := place{name: p.name, id: p.id, token: c.attempt, held: true}, c.held
		if !ok {
			got, ok = h.try(t, ctx, p.name, p.id)
		}
		c.turn.unlock()
		if ok {
			return got, nil
		}
		t.sleep(ctx, t.w.rng.span(20*ms, sec))
	}
	return p, errUnknown
}

// release is done when the claim cannot stand on a majority any more.
func (h *quorumHandle) release(t *task, ctx *life, p place) error {
	c := &h.claims[p.name]
	if c.id != p.id {
		return nil
	}
	n := c.attempt
	c.held = false
	off := &tally{}
	h.leave(t, p.name, n, off)
	for off.answered < majority {
		if ctx.over() {
			return errUnknown
		}
		off.k = t.arm()
		t.wait(ctx, off.k, forever)
	}
	if c.attempt == n {
		c.id, c.attempt = 0, 0
	}
	return nil
}

func (h *quorumHandle) news(t *task, ctx *life) ([]place, error) {
	for !ctx.over() {
		if lost := h.lost; lost != nil {
			h.lost = nil
			return lost, nil
		}
		h.bell.listen(t, ctx, 5*sec)
	}
	return nil, errUnknown
}

func (h *quorumHandle) close(t *task, ctx *life) error {
	h.dead = true
	h.n.w.judge.closes(h.n, h.n.inc, h.no)
	for name := range h.claims {
		if c := &h.claims[name]; c.attempt != 0 {
			if err := h.release(t, ctx, place{name: name, id: c.id}); err != nil {
				return err
			}
		}
	}
	return nil
}
