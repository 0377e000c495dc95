package sim

import "errors"

// The client of a cluster: the rules of package etcdstore, which make up for what etcd's leases do not promise. A renewal counts only if
// a read through the log confirms it in the same raft term; a lease is trusted only in the term it was granted in, and after a change of
// leader everything moves to a new one; a claim that was given up with an unknown outcome never enters late.

type etcdClient struct {
	c    *cluster
	n    *node
	at   int    // the member it talks to
	term uint64 // the newest raft term it knows
}

type etcdHandle struct {
	s      *etcdClient
	no     uint64 // of the session: its first lease
	span   int64
	born   uint64
	anchor anchor
	old    []uint64
	slots  [2]slot
	spent  []uint64
	gone   bool
	shut   bool // closing: a move gives up
	bell   bell
}

// anchor is what claims hang on; see etcdstore/move.go.
type anchor struct {
	lease, term, mark uint64
	settled           bool
}

// slot is what a session knows of its claim on one name; see etcdstore/slot.go.
type slot struct {
	turn    gate
	id      uint64
	token   uint64
	doubt   bool
	leaving bool
	stop    *life
}

var (
	errRecord = errors.New("the record is gone")
)

const callLimit = 2 * sec

func (c *cluster) client(n *node) client {
	return &etcdClient{c: c, n: n, at: c.w.rng.intn(len(c.m))}
}

// call asks the present member and, where that does not answer, the others. Doubt says that some attempt may still be carried out.
func (s *etcdClient) call(t *task, ctx *life, op func() reply) (r reply, doubt bool, err error) {
	for range len(s.c.m) + 1 {
		from := s.n.mono()
		at := s.at
		r, err = t.call(ctx, callLimit, s.n, at, msg{}, op)
		if !errors.Is(err, errUnknown) {
			s.term = max(s.term, r.term)
			return r, doubt, err
		}
		doubt = true
		s.leave(at, s.n.mono()-from)
		if ctx.over() {
			break
		}
	}
	return r, doubt, errUnknown
}

// leave goes on to another member, if this one was silent for long enough to say something about it.
func (s *etcdClient) leave(at int, took int64) {
	if took >= 200*ms && s.at == at {
		s.at = (s.at + 1) % len(s.c.m)
	}
}

func (s *etcdClient) grantIn(t *task, ctx *life) (reply, error) {
	for range 3 {
		before := s.term
		r, _, err := s.call(t, ctx, func() reply {
			c := s.c
			c.nextID++
			c.lss = append(c.lss, c.nextID)
			c.count(c.m[c.leader], c.nextID, c.w.plan.TTL)
			return reply{id: c.nextID, ttl: c.w.plan.TTL}
		})
		if err != nil {
			return r, err
		}
		if r.term == before || s.c.w.plan.Broken.NoMove {
			return r, nil
		}
		s.later(func(t *task, l *life) { _ = s.revoke(t, l, r.id) })
	}
	return reply{}, errUnknown
}

// later does a clean-up that nobody waits for.
func (s *etcdClient) later(do func(*task, *life)) {
	s.c.w.spawn(&s.n.host, func(t *task) { do(t, (*life)(nil).child(&s.n.host, 2*callLimit)) })
}

func (s *etcdClient) revoke(t *task, ctx *life, id uint64) error {
	_, _, err := s.call(t, ctx, func() reply {
		s.c.revoke(id, ended)
		return reply{}
	})
	return err
}

func (s *etcdClient) grant(t *task, ctx *life) (storeLease, error) {
	g, err := s.grantIn(t, ctx)
	if err != nil {
		return nil, err
	}
	h := &etcdHandle{s: s, no: g.id, span: g.ttl, anchor: anchor{lease: g.id, term: g.term, settled: true}}
	n, inc := s.n, s.n.inc
	r, _, err := s.call(t, ctx, func() reply {
		c := s.c
		if rec := c.record(g.id); rec != nil {
			return reply{rev: rec.born}
		}
		if !c.alive(g.id) {
			return reply{err: errGone}
		}
		c.rev++
		c.recs = append(c.recs, &record{sess: g.id, born: c.rev, mod: c.rev, lease: g.id, owner: n, inc: inc})
		return reply{rev: c.rev}
	})
	if err != nil {
		s.later(func(t *task, l *life) { _ = s.revoke(t, l, g.id) })
		return nil, errUnknown
	}
	h.born, h.anchor.mark = r.rev, r.rev
	return h, nil
}

func (c *cluster) alive(lease uint64) bool {
	for _, id := range c.lss {
		if id == lease {
			return true
		}
	}
	return false
}

func (h *etcdHandle) id() uint64 { return h.no }
func (h *etcdHandle) ttl() int64 { return h.span }

// mine returns the session's record if it is the one we wrote. To be called in a step of the store.
func (h *etcdHandle) mine() *record {
	if r := h.s.c.record(h.no); r != nil && r.born == h.born {
		return r
	}
	return nil
}

func (h *etcdHandle) end() {
	h.gone = true
	h.bell.ring()
}

func (h *etcdHandle) close(t *task, ctx *life) error {
	h.shut = true
	n, inc := h.s.n, h.s.n.inc
	for _, id := range append(append([]uint64(nil), h.old...), h.anchor.lease) {
		if _, _, err := h.s.call(t, ctx, func() reply {
			h.s.c.w.judge.closes(n, inc, h.no)
			h.s.c.revoke(id, ended)
			return reply{}
		}); err != nil {
			return err
		}
	}
	h.end()
	return nil
}
