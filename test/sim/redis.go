package sim

import (
	"errors"
	"slices"
)

// redis is a Redis server with a replica, and the rules of package redisstore (guard.go there): the
// data carries the mark of the history under which it was written. A server with another history
// grants nothing new until the largest ttl of two periods has passed, and does nothing for a lease
// that does not know of it: its client first asks what is left of its places.
type redis struct{ *mirror }

var errEpoch = errors.New("another epoch")

func planRedis(p *Plan, r *rng) {
	m := &p.Mirror
	far := [...]int64{0, 100 * ms, p.TTL / 2, p.TTL * 9 / 10}[r.intn(4)]
	m.Skew = [...]int64{far, -far}[r.intn(2)]
	m.Young = r.intn(4) == 0
	switch r.intn(4) {
	case 0:
		m.Beside, m.Wait = true, true
	case 1:
		m.Lag, m.Empty = 2*sec, true
	default:
		m.Lag, m.Loses = [...]int64{20 * ms, 2 * sec}[r.intn(2)], 2*sec
	}
	if m.Mixed = !m.Empty && r.intn(2) == 0; m.Mixed {
		m.Skew /= 4 // less than the calm, also before anybody has come who has the whole ttl
	}
	// rare losses at the worst moment, so that whole periods pass between them
	if m.Mixed && !m.Beside && r.intn(2) == 0 {
		m.Ambush, m.Lag, p.Span = true, p.TTL, 8*p.TTL
		p.Faults = slices.DeleteFunc(p.Faults,
			func(f Fault) bool { return f.Kind >= StoreDown && f.Kind <= LeaderBoth })
		return
	}
	p.pester(r, LeaderCut, StoreDown)
}

func newRedis(w *World) *redis {
	s := &redis{newMirror(w)}
	s.holds = s.granted
	if w.plan.Mirror.Mixed { // it has been in use for long
		s.mark = marker{set: true, life: s.life, epoch: s.life, since: s.since, calm: s.since, mt: s.host.clock()}
		s.hist[0] = s.now()
	}
	return s
}

// lasts notes that a lease of such a ttl may live from now on.
func (s *redis) lasts(ttl int64) {
	m, now := &s.mark, s.host.clock()
	// that the first of its kind may be lost is told in the documentation of the package, and none
	// of the promise
	if ttl > max(m.most, m.prev) {
		for i := range s.hist {
			h := &s.hist[i].mark
			h.most, h.mc = max(h.most, ttl), max(h.mc, ttl)
		}
	}
	if s.w.plan.Broken.LastTTL {
		m.most = ttl
		return
	}
	if now-m.mt < s.w.plan.TTL {
		m.most, m.mc = max(m.most, ttl), max(m.mc, ttl)
		return
	}
	m.prev, m.mc, m.mt = m.mc, ttl, now
	m.most = max(m.prev, m.mc)
	if s.w.plan.Broken.OnePeriod {
		m.most = m.mc
	}
}

// notice compares the history of the server with that of its data.
func (s *redis) notice() {
	m, now := &s.mark, s.host.clock()
	if m.life == s.life && m.set {
		return
	}
	if m.set {
		m.since, m.calm = now, now+m.most
		if s.w.plan.Broken.HalfCalm {
			m.calm = now + m.most/2
		}
	} else {
		m.since = s.since
		m.calm = s.since
	}
	m.set, m.life, m.epoch, m.mt = true, s.life, s.life, now
}

// may says whether a lease may be newly granted a place.
func (s *redis) may(l *plainLease) bool {
	switch b := s.w.plan.Broken; {
	case b.NoCalm:
		return true
	case b.HalfCalm:
		return s.mark.calm <= s.host.clock()
	}
	return max(s.mark.calm, s.mark.since+l.ttl) <= s.host.clock()
}

// granted says whether the first in a line holds it.
func (s *redis) granted(e *entry) bool {
	up := &s.mark.upTo[e.line.name]
	if l := s.find(e.sess); e.token > *up && l != nil && s.may(l) {
		*up = e.token
		if l.ttl == s.w.plan.TTL && s.w.plan.Mirror.Ambush {
			s.ambush(e)
		}
	}
	return e.token <= *up
}

// stamp sees to it that the next token is at least the time: of the end of the calm, while that
// lasts.
func (s *redis) stamp(l *plainLease) {
	at := s.host.clock()
	if !s.w.plan.Broken.EarlyTicket {
		at = max(at, s.mark.calm, s.mark.since+max(s.mark.most, l.ttl))
	}
	if at > 0 {
		s.rev = max(s.rev, uint64(at/ms)*64)
	}
}

func (s *redis) client(n *node) client { return &redisClient{s, n, n.inc} }

type redisClient struct {
	s   *redis
	n   *node
	inc uint32
}

type redisHandle struct {
	*plainHandle
	s       *redis
	n       *node
	epoch   uint64
	pending [2]uint64 // claims that may have entered, by name
	dead    bool
}

func (c *redisClient) grant(t *task, ctx *life) (storeLease, error) {
	s, n, inc := c.s, c.n, c.inc
	r, err := t.call(ctx, forever, n, s.serverOf(n), msg{}, func() reply {
		s.notice()
		s.nextID++
		l := s.begin(s.nextID, n, inc)
		if m := s.w.plan.Mirror; m.Mixed && (n.id%2 == 1 || m.Ambush && n.id > 0) {
			l.ttl /= 4
		}
		l.ends = s.host.clock() + l.ttl
		l.arm()
		s.lasts(l.ttl)
		return reply{id: l.id, ttl: l.ttl, epoch: s.mark.epoch}
	})
	if err != nil {
		return nil, err
	}
	h := &redisHandle{s: s, n: n, epoch: r.epoch}
	h.plainHandle = &plainHandle{c: &plainClient{p: s.plain, n: n, inc: inc}, via: h, no: r.id, span: r.ttl}
	return h, nil
}

func (h *redisHandle) server() int { return h.s.serverOf(h.n) }

// ask runs a verb of the lease. An answer of a history that was left meanwhile does not count.
func (h *redisHandle) ask(t *task, ctx *life, limit int64, kind msgKind, op func() reply) (reply, error) {
	s := h.s
	for range 3 {
		if h.dead {
			return reply{}, errGone
		}
		epoch := h.epoch
		r, err := t.call(ctx, limit, h.n, h.server(), msg{kind, h.no, epoch}, func() reply {
			s.notice()
			l := s.find(h.no)
			if l == nil {
				return reply{err: errGone}
			}
			s.stamp(l)
			if s.mark.epoch != epoch {
				return reply{err: errEpoch, epoch: s.mark.epoch}
			}
			r := op()
			r.epoch = epoch
			return r
		})
		if errors.Is(err, errEpoch) {
			if err := h.reconcile(t, ctx); err != nil {
				return reply{}, err
			}
			continue
		}
		if h.epoch == epoch {
			return r, err
		}
	}
	return reply{}, errUnknown
}

// reconcile asks what is left of the lease: if a place that holds is not as it was, the lease is
// over, and a claim that was given up goes again.
func (h *redisHandle) reconcile(t *task, ctx *life) error {
	s := h.s
	slots := h.slots
	r, err := t.call(ctx, sec, h.n, h.server(), msg{}, func() reply {
		s.notice()
		l := s.find(h.no)
		if l == nil {
			return reply{err: errGone}
		}
		r := reply{epoch: s.mark.epoch}
		for i, ln := range s.ln {
			e := ln.of(h.no)
			if p := slots[i]; p.held && (e == nil || e.claim != p.id || e.token != p.token || !s.holdsNow(e)) {
				r.mask |= 1 << i
			} else if e != nil {
				r.claims[i] = e.claim
			}
		}
		return r
	})
	switch {
	case err != nil:
		return err
	case r.mask != 0:
		h.dead = true
		h.bell.ring()
		return errGone
	}
	h.epoch = r.epoch
	for i, id := range r.claims {
		if id != 0 && id != h.slots[i].id && id != h.pending[i] {
			h.again(place{name: i, id: id})
		}
	}
	return nil
}

// again gives a claim up whose release was lost.
func (h *redisHandle) again(p place) {
	h.n.w.spawn(&h.n.host, func(t *task) {
		for try := 1; try < 20; try++ {
			if err := h.plainHandle.release(t, (*life)(nil).child(&h.n.host, sec), p); err == nil ||
				errors.Is(err, errGone) {
				return
			}
			t.pause(nil, try)
		}
	})
}

// claim notes that one is under way, until its outcome is known or it is given up.
func (h *redisHandle) claim(t *task, ctx *life, name int, id uint64) (place, error) {
	h.pending[name] = id
	return h.plainHandle.claim(t, ctx, name, id)
}

func (h *redisHandle) release(t *task, ctx *life, p place) error {
	err := h.plainHandle.release(t, ctx, p)
	if err == nil && h.pending[p.name] == p.id {
		h.pending[p.name] = 0
	}
	return err
}

// renew asks the primary, or what the client takes for it.
func (h *redisHandle) renew(t *task, ctx *life) error {
	_, err := h.ask(t, ctx, forever, keepalive, func() reply {
		l := h.s.find(h.no)
		if l == nil {
			return reply{err: errGone}
		}
		l.ends = h.s.host.clock() + l.ttl
		h.s.lasts(l.ttl)
		return reply{}
	})
	return err
}

// wait notes that a place holds: reconcile has to know.
func (h *redisHandle) wait(t *task, ctx *life, p place) (place, error) {
	p, err := h.plainHandle.wait(t, ctx, p)
	if err == nil && h.slots[p.name].id == p.id {
		h.slots[p.name] = p
	}
	return p, err
}
