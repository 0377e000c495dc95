package sim

import "errors"

// The client of an ensemble: the rules of package zkstore. That a write was answered says nothing
// about how long the session lives: the follower may have told its leader nothing yet. So a session
// writes all the time, at a pace that lets the leader ping the follower in between, and the answer
// of a write proves the touch of one before it: that was in the table at some ping, whose answer
// went to the leader ahead of the write that is answered now.

type zkClient struct {
	e   *ensemble
	n   *node
	inc uint32
}

func (e *ensemble) client(n *node) client { return &zkClient{e, n, n.inc} }

type zkHandle struct {
	*plainHandle
	e      *ensemble
	n      *node
	at     int
	conn   uint64
	sent   []mark // writes that were answered, the newest last
	proven mark   // the session was touched then, or later
	round  int
	coming bool
	dead   bool
	asked  int64 // when a renewal was last asked for
	keeps  bool
	waits  []waker // renewals that wait for proof
}

func (c *zkClient) grant(t *task, ctx *life) (storeLease, error) {
	asked, at := mark{c.n.clock(), t.w.now}, t.w.rng.intn(len(c.e.m))
	n, inc, e := c.n, c.inc, c.e
	r, err := t.call(ctx, forever, n, at, msg{kind: newSession}, func() reply {
		l := e.begin(e.making, n, inc)
		return reply{id: l.id, ttl: e.w.plan.TTL, mod: e.m[at].conn}
	})
	if err != nil {
		return nil, err
	}
	h := &zkHandle{e: e, n: n, at: at, conn: r.mod, proven: asked, asked: asked.clock}
	h.plainHandle = &plainHandle{c: &plainClient{p: e.plain, n: n, inc: inc}, via: h, no: r.id, span: r.ttl}
	h.keep()
	return h, nil
}

// mark is an instant.
type mark struct {
	clock int64 // the node's
	at    int64 // true time, for the judge
}

func (h *zkHandle) now() mark { return mark{h.n.clock(), h.e.w.now} }

func (h *zkHandle) server() int { return h.at }

// ask sends a request over the present connection.
func (h *zkHandle) ask(t *task, ctx *life, limit int64, kind msgKind, op func() reply) (reply, error) {
	if h.dead {
		return reply{}, errGone
	}
	r, err := t.call(ctx, limit, h.n, h.at, msg{kind, h.no, h.conn}, op)
	if errors.Is(err, errUnknown) && kind == plainCall {
		t.w.spawn(&h.n.host, h.comeBack)
	}
	return r, err
}

// keep writes for as long as somebody asks for renewals: the session of a lease that was given up
// must run out.
func (h *zkHandle) keep() {
	w := h.e.w
	if h.keeps || w.plan.Broken.OneWrite {
		return
	}
	h.keeps = true
	w.spawn(&h.n.host, func(t *task) {
		for !h.dead && h.n.clock()-h.asked < h.span {
			if h.round++; !w.plan.Broken.Hurry || h.round%3 != 2 {
				t.sleep(nil, w.plan.ZK.Pace)
			}
			_ = h.write(t, nil, w.plan.ZK.Session/6)
		}
		h.keeps = false
	})
}

// write writes to a node of the session's own, and counts what the answer proves.
func (h *zkHandle) write(t *task, ctx *life, limit int64) error {
	asked, kind := h.now(), plainCall
	chain := t.w.plan.ZK.Chain
	switch b := t.w.plan.Broken; {
	case b.ReadProof:
		kind, chain = staleRead, 0
	case b.OneWrite:
		chain = 0
	}
	r, err := h.ask(t, ctx, limit, kind, func() reply { return reply{ok: h.e.m[h.at].knows(h.no)} })
	if err == nil && !r.ok {
		h.end()
		err = errGone
	}
	if err != nil {
		return err
	}
	h.sent = append(h.sent, asked)
	if n := len(h.sent) - 1 - chain; n >= 0 && (!t.w.plan.Broken.Hurry || h.round%3 == 2) {
		h.proven, h.sent = h.sent[n], h.sent[n:]
	}
	h.wake()
	return nil
}

// comeBack goes on over a connection to another member.
func (h *zkHandle) comeBack(t *task) {
	if h.coming {
		return
	}
	h.coming = true
	defer func() { h.coming = false }()
	for !h.dead {
		h.at = (h.at + 1) % len(h.e.m)
		r, err := t.call(nil, sec, h.n, h.at, msg{kind: comeBack, sess: h.no}, nil)
		switch {
		case err != nil:
			t.sleep(nil, t.w.rng.span(50*ms, 300*ms))
		case r.ok:
			h.conn = r.mod
			return
		default:
			h.end()
		}
	}
}

func (h *zkHandle) end() {
	h.dead = true
	h.bell.ring()
	h.wake()
}

func (h *zkHandle) wake() {
	for _, k := range h.waits {
		k.wake()
	}
	h.waits = nil
}

// renew is true once what is proven lasts a ttl from now on, by the leader's clock too.
func (h *zkHandle) renew(t *task, ctx *life) error {
	z, asked := &t.w.plan.ZK, h.n.clock()
	h.asked = asked
	h.keep()
	for !ctx.over() {
		switch old := asked - h.proven.clock; {
		case h.dead:
			return errGone
		case old*(100+zkDrift)/100+h.span <= z.Session:
			h.judge()
			return nil
		case t.w.plan.Broken.OneWrite:
			if err := h.write(t, ctx, forever); err != nil {
				return err
			}
			continue
		}
		k := t.arm()
		h.waits = append(h.waits, k)
		t.wait(ctx, k, forever)
	}
	return errUnknown
}

func (h *zkHandle) close(t *task, ctx *life) error {
	err := h.plainHandle.close(t, ctx)
	if err == nil || errors.Is(err, errGone) {
		h.end()
	}
	return err
}

// judge asks, of each renewal that counts, whether the leader heard of the session when the client
// thinks it did, or later.
func (h *zkHandle) judge() {
	b := h.e.w.plan.Broken
	m := h.e.m[h.e.leader]
	if t := m.tracks(h.no); t != nil && !t.closing && t.touched < h.proven.at && !b.ReadProof && !b.OneWrite {
		h.e.w.judge.fail(RuleProof, "%s counts session %x from %v, and the leader has not heard of it since %v",
			h.n.name, h.no, span(h.proven.at), span(t.touched))
	}
}
