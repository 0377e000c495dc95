package sim

// postgres is a PostgreSQL server with a synchronous standby, and the rules of package pgstore:
// what was acknowledged is on both, a former primary can commit nothing, and a lease that was
// renewed by the clock of the one server gets a whole ttl before the other ends it.
type postgres struct{ *mirror }

func planPostgres(p *Plan, r *rng) {
	m := &p.Mirror
	far := [...]int64{0, 100 * ms, p.TTL / 2, 2 * p.TTL}[r.intn(4)]
	m.Skew = [...]int64{far, -far / 2}[r.intn(2)]
	m.Wait, m.Beside = true, r.intn(2) == 0
	p.pester(r, LeaderCut, StoreDown)
}

func newPostgres(w *World) *postgres {
	s := &postgres{newMirror(w)}
	s.spares = s.foreign
	return s
}

// foreign gives a lease that seems to have run out its ttl again, if that was counted by another
// clock.
func (s *postgres) foreign(l *plainLease) bool {
	if l.era == s.line || s.w.plan.Broken.OneClock {
		return false
	}
	l.era, l.ends = s.line, s.host.clock()+l.ttl
	return true
}

func (s *postgres) client(n *node) client { return &pgClient{s, n, n.inc} }

type pgClient struct {
	s   *postgres
	n   *node
	inc uint32
}

type pgHandle struct {
	*plainHandle
	s *postgres
	n *node
}

func (c *pgClient) grant(t *task, ctx *life) (storeLease, error) {
	s, n, inc := c.s, c.n, c.inc
	r, err := t.call(ctx, forever, n, s.serverOf(n), msg{}, func() reply {
		r := s.grant(n, inc)
		s.find(r.id).era = s.line
		return r
	})
	if err != nil {
		return nil, err
	}
	h := &pgHandle{s: s, n: n}
	h.plainHandle = &plainHandle{c: &plainClient{p: s.plain, n: n, inc: inc}, via: h, no: r.id, span: r.ttl}
	return h, nil
}

func (h *pgHandle) server() int { return h.s.serverOf(h.n) }

func (h *pgHandle) ask(t *task, ctx *life, limit int64, kind msgKind, op func() reply) (reply, error) {
	return t.call(ctx, limit, h.n, h.server(), msg{kind: kind}, op)
}

// renew counts by the clock of the server that is asked.
func (h *pgHandle) renew(t *task, ctx *life) error {
	_, err := h.ask(t, ctx, forever, keepalive, func() reply {
		l := h.s.find(h.no)
		if l == nil {
			return reply{err: errGone}
		}
		l.era, l.ends = h.s.line, h.s.host.clock()+l.ttl
		return reply{}
	})
	return err
}
