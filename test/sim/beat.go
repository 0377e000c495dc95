package sim

// The heartbeat of etcdstore: a session's ttl is short, the lease below it is long, and who waits
// right behind it ends it. The store under it is a plain one: what etcd adds is the subject of the
// etcd store.

// beatHandle is a lease with a heartbeat as its owner has it. That its plainHandle knows only of
// the lease below.
type beatHandle struct {
	*plainHandle
	base   int64 // the ttl of the lease below
	proven int64 // on the boot clock: before the call that renewed it last
	tried  int64
	busy   bool
}

// renew is etcdstore/heartbeat.go: renewHeartbeat.
func (h *beatHandle) renew(t *task, ctx *life) error {
	n := h.c.n
	limit := h.base/2 - h.span
	if !h.busy && n.clock()-h.tried >= limit/4 {
		h.tend(limit / 4)
	}
	_, err := h.do(t, ctx, func(l *plainLease) reply {
		l.p.rev++
		l.beat = l.p.rev
		return reply{}
	})
	if err == nil && n.clock()-h.proven > limit && !t.w.plan.Broken.Unproven {
		return errUnknown
	}
	return err
}

// tend renews the lease below, beside the heartbeats.
func (h *beatHandle) tend(limit int64) {
	n := h.c.n
	begun := n.clock()
	h.busy, h.tried = true, begun
	n.w.spawn(&n.host, func(t *task) {
		ctx := (&life{}).child(&n.host, limit)
		if h.plainHandle.renew(t, ctx) == nil {
			h.proven = begun
		}
		h.busy = false
	})
}

// ahead is what a waiter knows of the session right before it.
type ahead struct {
	sess, beat uint64
	since      int64 // when it learnt that, on its own clock
}

// wait is plainHandle's, with a liveness watch.
func (h *beatHandle) wait(t *task, ctx *life, p place) (place, error) {
	w, n, b := t.w, h.c.n, &bell{}
	silence := h.c.p.w.plan.Beat * 112 / 100
	var a ahead
	for !ctx.over() {
		asked := n.clock()
		r, err := t.call(ctx, sec, n, 0, msg{}, func() reply { return h.c.p.behind(h.no, p, b) })
		if err == nil && !r.stands {
			return p, errGone
		}
		if err == nil && r.held {
			p.token, p.held = r.rev, true
			return p, nil
		}
		if err == nil && (a.since == 0 || a.sess != r.id || a.beat != r.mod) {
			a = ahead{r.id, r.mod, n.clock()} // after the receipt
			if w.plan.Broken.Hasty {
				a.since = asked
			}
		}
		pause := pollAfter(w, err)
		if a.since != 0 {
			pause = min(pause, silence-(n.clock()-a.since))
		}
		if pause > 0 {
			b.listen(t, ctx, pause)
		}
		if a.since != 0 && n.clock()-a.since >= silence && !ctx.over() {
			h.endSession(t, ctx, p.name, a)
			a.since = 0
		}
	}
	return p, errUnknown
}

// behind says where a place stands, and what the heartbeat of the session right before it is.
func (p *plain) behind(sess uint64, pl place, b *bell) reply {
	e, r := p.look(sess, pl)
	if e == nil || r.held {
		return r
	}
	e.signal = b
	for i, x := range p.ln[pl.name].entries {
		if x != e {
			continue
		}
		r.id = p.ln[pl.name].entries[i-1].sess
		if l := p.find(r.id); l != nil {
			r.mod = l.beat
		}
	}
	return r
}

// endSession is etcdstore/liveness.go: the heartbeat goes if it has not changed, and with it the
// claim and all that would let another one enter; then the lease is revoked.
func (h *beatHandle) endSession(t *task, ctx *life, name int, a ahead) {
	r, err := t.call(ctx, sec, h.c.n, 0, msg{}, func() reply {
		l := h.c.p.find(a.sess)
		if l == nil || l.beat != a.beat && !h.c.p.w.plan.Broken.Blind {
			return reply{}
		}
		l.beat = 0
		if e := h.c.p.ln[name].of(a.sess); e != nil {
			h.c.p.rev++
			h.c.p.ln[name].remove(e, expired)
		}
		return reply{ok: true}
	})
	if err != nil || !r.ok {
		return
	}
	t.w.count.Strikes++
	_, _ = t.call(ctx, sec, h.c.n, 0, msg{}, func() reply {
		if l := h.c.p.find(a.sess); l != nil {
			l.end(expired)
		}
		return reply{}
	})
}
