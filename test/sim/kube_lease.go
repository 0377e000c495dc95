package sim

import "errors"

// kubeHandle is a lease as its owner has it: registerstore's lease.go, claim.go, own.go.
type kubeHandle struct {
	*kubeClient
	no       uint64
	lease    *plainLease
	ver      kubeVer // of its object, as known last
	accepted uint64  // the last renewal that is known to have been written
	sent     uint64
	places   [2]kubePlace
	spent    map[uint64]bool // claim IDs that must not enter again
	entering map[uint64]bool // and those that may enter yet
	watched  [2][]*kubeExpiry
	waits    [2]bell
	bell     bell
	dead     bool
}

// kubePlace is a place, and the number of the line in which it was seen: an earlier line says
// nothing of it.
type kubePlace struct {
	place
	seq     uint64
	call    uint64 // the last that had begun by then
	leaving bool
}

func (c *kubeClient) grant(t *task, ctx *life) (storeLease, error) {
	t.w.ids++
	id := t.w.ids<<8 | uint64(c.n.id)
	l := c.s.begin(id, c.n, c.inc)
	key := kubeKey{lease: id}
	r, err := c.put(t, ctx, key, kubeVer{}, kubeObject{}, released)
	if err == nil && !r.ok { // by an earlier try of the same request
		if r.obj, err = c.get(t, ctx, key); err == nil && r.obj.over() {
			err = errUnknown
		}
	}
	if err != nil {
		return nil, err
	}
	h := &kubeHandle{kubeClient: c, no: id, lease: l, ver: r.obj.ver, spent: map[uint64]bool{},
		entering: map[uint64]bool{}}
	c.all = append(c.all, h)
	return h, nil
}

func (h *kubeHandle) id() uint64   { return h.no }
func (h *kubeHandle) ttl() int64   { return h.lease.ttl }
func (h *kubeHandle) key() kubeKey { return kubeKey{lease: h.no} }

func (h *kubeHandle) end() error {
	if !h.dead {
		h.dead = true
		for i := range h.watched {
			h.watch(i, nil)
		}
		h.ring()
	}
	return errGone
}

// renew is Renew and recover of registerstore/lease.go.
func (h *kubeHandle) renew(t *task, ctx *life) error {
	h.sent++
	mine := h.sent
	for !h.dead && !ctx.over() {
		r, err := h.put(t, ctx, h.key(), h.ver, kubeObject{beat: kubeBeat{n: mine}}, released)
		if err != nil {
			return err
		}
		if r.ok {
			h.ver, h.accepted = r.obj.ver, mine
			return nil
		}
		o, err := h.get(t, ctx, h.key())
		switch {
		case err != nil:
			return err
		case o.over():
			return h.end()
		case o.beat.n == mine:
			h.ver, h.accepted = o.ver, mine
			return nil
		case o.beat.n > h.accepted: // an earlier renewal, whose outcome was unknown
			h.ver, h.accepted = o.ver, o.beat.n
		case o.ver != h.ver: // somebody else wrote it
			return h.end()
		}
		t.sleep(ctx, t.w.rng.span(50*us, 10*ms))
	}
	if h.dead {
		return errGone
	}
	return errUnknown
}

// lives asks for the lease's object.
func (h *kubeHandle) lives(t *task, ctx *life) error {
	o, err := h.get(t, ctx, h.key())
	if err == nil && o.over() {
		return h.end()
	}
	return err
}

func (h *kubeHandle) claim(t *task, ctx *life, name int, id uint64) (place, error) {
	if h.dead {
		return place{}, errGone
	}
	first := t.w.rng.intn(2) == 0 // the lease is asked for beside
	if first {
		if err := h.lives(t, ctx); err != nil {
			return place{}, err
		}
	}
	before := h.entering[id]
	h.entering[id] = true
	d, err := h.step(t, ctx, name, displaced, func(d *kubeDoc) (bool, error) {
		if was := h.places[name]; was.id == id && d.seq >= was.seq && d.find(h.no, was.place) < 0 {
			return false, errGone // it was removed
		}
		return d.enter(h, id)
	})
	if err == nil || !errors.Is(err, errUnknown) && !before { // a final answer says nothing of earlier calls
		delete(h.entering, id)
	}
	if err != nil {
		return place{}, err
	}
	i := d.find(h.no, place{id: id})
	p := place{name: name, id: id, token: d.claims[i].token, held: i == 0}
	if !h.spent[id] && h.places[name].id != id {
		h.places[name] = kubePlace{place: p, seq: d.seq, call: h.calls}
		h.feeds[name].need.ring()
	}
	if !first {
		if err := h.lives(t, ctx); err != nil {
			return place{}, err
		}
	}
	h.bell.ring()
	return p, nil
}

// release writes also where the claim does not stand but may be about to enter: then that write
// finds another version.
func (h *kubeHandle) release(t *task, ctx *life, p place) error {
	if h.dead {
		return errGone
	}
	may := h.entering[p.id]
	h.spent[p.id] = true
	if h.places[p.name].id == p.id {
		h.places[p.name].leaving = true
	}
	_, err := h.step(t, ctx, p.name, released, func(d *kubeDoc) (bool, error) {
		i := d.find(h.no, p)
		if i >= 0 {
			d.cut(i)
		}
		return i >= 0 || may, nil
	})
	if err == nil {
		delete(h.entering, p.id)
		if h.places[p.name].id == p.id {
			h.forget(p.name)
		}
	}
	return err
}

func (h *kubeHandle) forget(name int) {
	h.places[name] = kubePlace{}
	h.watch(name, nil)
}

// watch has this process watch the leases of those claims, and no others.
func (h *kubeHandle) watch(name int, claims []kubeClaim) {
	before := h.watched[name]
	h.watched[name] = nil
	for _, c := range claims {
		v := h.expiry(c.sess, max(0, len(claims)-2)) // so many are nearer
		v.users++
		h.watched[name] = append(h.watched[name], v)
	}
	for _, v := range before {
		v.leave()
	}
}

// visit finds out what has become of the place on a name. Followed says that its turn is waited
// for. It returns where it stands, -1 if it is gone. Without a line that is known, or with one that
// says nothing of the place, known is false.
func (h *kubeHandle) visit(t *task, ctx *life, name int, followed bool) (at int, known bool) {
	f, pl := h.feeds[name], h.places[name]
	if !f.known || pl.id == 0 {
		return 0, false
	}
	d := docOf(f.last)
	unsure := f.call <= pl.call && d.find(h.no, pl.place) < 0 && !t.w.plan.Broken.LateAnswers
	if (d.seq < pl.seq || unsure) && !t.w.plan.Broken.Numbers { // the numbers have begun anew, perhaps
		o, err := h.read(t, ctx, name)
		if err != nil {
			return 0, false
		}
		d = docOf(o)
		if h.places[name].id == pl.id {
			h.places[name].seq = min(pl.seq, d.seq)
		}
	}
	var over []uint64
	for _, v := range h.watched[name] {
		if v.over {
			over = append(over, v.id)
		}
	}
	if len(over) > 0 && d.clone().purge(over) {
		var err error
		if d, err = h.purge(t, ctx, name, over...); err != nil {
			return 0, false
		}
	}
	if now := h.places[name]; now.id != pl.id || now.leaving || d.seq < now.seq {
		return 0, false
	}
	if at = d.find(h.no, pl.place); at >= 0 && followed {
		h.watch(name, d.claims[:at+1]) // its own too: nobody else may be waiting for the end of that
	}
	return at, true
}

// wait waits until a place holds.
func (h *kubeHandle) wait(t *task, ctx *life, p place) (place, error) {
	b := &h.waits[p.name]
	for !ctx.over() && !h.dead {
		if h.places[p.name].id != p.id {
			return p, errGone // News has told so
		}
		at, known := h.visit(t, ctx, p.name, true)
		switch {
		case known && at < 0:
			h.spent[p.id] = true
			h.forget(p.name)
			return p, errGone
		case known && at == 0:
			if err := h.lives(t, ctx); err != nil {
				return p, err
			}
			p.token, p.held = h.places[p.name].token, true
			h.watch(p.name, nil)
			return p, nil
		}
		b.listen(t, ctx, sec)
	}
	if h.dead {
		return p, errGone
	}
	return p, errUnknown
}

// news tells of places that are gone.
func (h *kubeHandle) news(t *task, ctx *life) ([]place, error) {
	for !ctx.over() && !h.dead {
		var lost []place
		for name := range h.s.ln {
			pl := h.places[name]
			if pl.id == 0 || pl.leaving {
				continue
			}
			if at, known := h.visit(t, ctx, name, false); known && at < 0 && h.places[name].id == pl.id {
				h.spent[pl.id] = true
				h.forget(name)
				lost = append(lost, pl.place)
			}
		}
		if lost != nil {
			if err := h.lives(t, ctx); errors.Is(err, errGone) {
				return nil, err
			}
			return lost, nil
		}
		h.bell.listen(t, ctx, 5*sec)
	}
	if h.dead {
		return nil, errGone
	}
	return nil, errUnknown
}

// close ends the lease, whatever its version, then takes its claims out.
func (h *kubeHandle) close(t *task, ctx *life) error {
	for !ctx.over() {
		o, err := h.get(t, ctx, h.key())
		if err != nil {
			return err
		}
		if !o.over() {
			next := *o
			next.beat.over = true
			r, err := h.put(t, ctx, h.key(), o.ver, next, ended)
			if err != nil {
				return err
			}
			if o = r.obj; !r.ok {
				t.sleep(ctx, t.w.rng.span(50*us, 10*ms))
				continue
			}
		}
		_ = h.end()
		if !h.cleanUp(t, ctx, h.no, o.version()) {
			return errUnknown
		}
		return nil
	}
	return errUnknown
}
