package sim

// registers is a store without a clock: registers that are written under a compare of their
// version, and nothing else. The rules are those of package registerstore: a line is one register
// and a lease another, and a lease whose register has not changed for longer than its ttl, on the
// clock of who waits, is ended by a compare-and-swap on the version that he received. A line's
// contents are those of a plain store's.
type registers struct {
	*plain
	ver  [2]uint64 // of each line's register
	next uint64
}

func planRegisters(p *Plan, r *rng) {
	p.pester(r, Pause, Suspend, CutBoth, Aimed)
}

func newRegisters(w *World) *registers { return &registers{plain: newPlain(w)} }

// leases counts what stands: a lease without claims may be left behind for the sweep.
func (s *registers) leases() (n int) {
	for _, ln := range s.ln {
		for _, e := range ln.entries {
			if !s.idle(e) {
				n++
			}
		}
	}
	return n
}

// idle says that a claim is left to whoever stands behind it next, or to the sweep: nobody has
// renewed its lease for long.
func (s *registers) idle(e *entry) bool {
	l := s.find(e.sess)
	return l.beat == 0 || s.w.now-l.ends > 2*l.ttl
}

func (s *registers) operator(f Fault) {
	ln := s.ln[int(f.Node)%len(s.ln)]
	if f.Kind != Revoke {
		s.plain.operator(f)
		s.bump(ln.name)
		return
	}
	if len(ln.entries) == 0 {
		return
	}
	if l := s.find(ln.entries[int(f.Arg)%len(ln.entries)].sess); l.beat != 0 {
		s.w.judge.excuse(l.id, -1)
		l.beat = 0
	}
}

func (s *registers) bump(name int) {
	s.next++
	s.ver[name] = s.next
}

// put changes a line if its register has still that version.
func (s *registers) put(name int, ver uint64, change func(ln *line) reply) reply {
	if s.ver[name] != ver {
		return reply{}
	}
	r := change(s.ln[name])
	s.bump(name)
	r.ok, r.mod = true, s.ver[name]
	return r
}

// view is a line as it is read, for the place pl of a session, and the leases before it. With b
// whoever goes rings.
func (s *registers) view(sess uint64, pl place, b *bell) reply {
	e, r := s.look(sess, pl)
	r.mod = s.ver[pl.name]
	for _, x := range s.ln[pl.name].entries {
		if x == e {
			break
		}
		r.ahead = append(r.ahead, ahead{sess: x.sess, beat: s.find(x.sess).beat})
	}
	if e != nil && b != nil {
		e.signal = b
	}
	return r
}

// purge takes the claims of leases that have ended out of a line.
func (s *registers) purge(ln *line) reply {
	for i := len(ln.entries) - 1; i >= 0; i-- {
		if l := s.find(ln.entries[i].sess); l.beat == 0 {
			s.rev++
			ln.remove(ln.entries[i], expired)
			l.ring()
		}
	}
	return reply{}
}

func (s *registers) client(n *node) client { return &casClient{s, n, n.inc} }

type casClient struct {
	s   *registers
	n   *node
	inc uint32
}

// casHandle is a lease as its owner has it.
type casHandle struct {
	*casClient
	no      uint64
	lease   *plainLease
	version uint64 // of its register, as known last
	doubt   [2]bool
	slots   [2]place
	dead    bool
	bell    bell
	seen    [2][]ahead // by name: who stands before
}

// ask is one request to a register.
func (h *casClient) ask(t *task, ctx *life, op func() reply) (reply, error) {
	return t.call(ctx, 2*sec, h.n, 0, msg{}, op)
}

func (c *casClient) grant(t *task, ctx *life) (storeLease, error) {
	var l *plainLease
	r, err := c.ask(t, ctx, func() reply {
		if l == nil {
			c.s.next++
			l = c.s.begin(c.s.next, c.n, c.inc)
			l.beat, l.ends = l.id, c.s.w.now
		}
		return reply{id: l.id, ttl: l.ttl}
	})
	if err != nil {
		return nil, err
	}
	return &casHandle{casClient: c, no: r.id, lease: l, version: r.id}, nil
}

func (h *casHandle) id() uint64 { return h.no }
func (h *casHandle) ttl() int64 { return h.lease.ttl }

func (h *casHandle) end() error {
	h.dead = true
	h.bell.ring()
	return errGone
}
