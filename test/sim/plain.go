package sim

// plain is a store with one clock that keeps every clause of the port: what memstore, a Redis or a
// PostgreSQL server is.
type plain struct {
	w      *World
	host   host // its clock; frozen while it restarts
	ln     []*line
	all    []*plainLease
	rev    uint64
	spares func(l *plainLease) bool // nil, or gives a lease that has run out more time
	holds  func(e *entry) bool      // nil, or says whether the first in a line holds it
	gone   func(id uint64)          // nil, or told of each lease that ends
}

type plainLease struct {
	p      *plain
	id     uint64
	owner  *node
	inc    uint32
	ttl    int64
	beat   uint64 // revision of its heartbeat; 0: it has none, or was declared dead
	ends   int64  // on the store's clock
	over   bool
	armed  bool
	spent  []uint64 // claim IDs that may not enter any more
	bell   *bell    // the owner waits for news
	server int      // that will push it
	era    uint64   // under which it was last renewed
	said   uint64   // the last of the values that its owner has stated
}

func newPlain(w *World) *plain {
	p := &plain{w: w, host: host{w: w, name: "store", ppm: w.plan.StoreRates[0], up: true}, rev: 1}
	for i := range w.plan.Names {
		p.ln = append(p.ln, &line{w: w, name: i})
	}
	return p
}

func (p *plain) servers() int    { return 1 }
func (p *plain) lines() []*line  { return p.ln }
func (p *plain) leases() int     { return len(p.all) }
func (p *plain) recovery() int64 { return 0 }

// receive carries a request out at once. While the store restarts requests find nobody.
func (p *plain) receive(_ int, _ msg, op func() reply, respond func(reply)) {
	if p.w.now < p.host.frozen {
		p.w.count.Lost++
		return
	}
	respond(op())
}

func (p *plain) grant(n *node, inc uint32) reply {
	p.rev++
	l := p.begin(p.rev, n, inc)
	l.ends = p.host.clock() + l.ttl
	if p.w.plan.Beat > 0 {
		l.beat = p.rev
	}
	l.arm()
	return reply{id: l.id, ttl: l.ttl}
}

// begin makes a lease that nobody counts yet.
func (p *plain) begin(id uint64, n *node, inc uint32) *plainLease {
	l := &plainLease{p: p, id: id, owner: n, inc: inc, ttl: p.w.plan.TTL + p.w.plan.Rounds}
	p.all = append(p.all, l)
	return l
}

// arm looks at the lease again when it may have run out. The store is late sometimes, never early.
func (l *plainLease) arm() {
	if l.armed || l.over {
		return
	}
	l.armed = true
	w := l.p.w
	left := max(0, l.p.host.real(l.ends-l.p.host.clock()), l.p.host.frozen-w.now)
	w.after(left+w.rng.span(0, w.plan.Tick), nil, func() {
		l.armed = false
		if w.now < l.p.host.frozen || l.p.host.clock() < l.ends || !l.over && l.p.spares != nil && l.p.spares(l) {
			l.arm()
			return
		}
		l.end(expired)
	})
}

func (l *plainLease) end(why cause) {
	if l.over {
		return
	}
	l.over = true
	if l.p.gone != nil {
		l.p.gone(l.id)
	}
	for _, ln := range l.p.ln {
		if e := ln.of(l.id); e != nil {
			l.p.rev++
			ln.remove(e, why)
		}
	}
	for i, x := range l.p.all {
		if x == l {
			l.p.all = append(l.p.all[:i], l.p.all[i+1:]...)
			break
		}
	}
	l.ring()
}

// ring tells the owner that something happened to its places.
func (l *plainLease) ring() {
	if l.bell != nil && l.owner.inc == l.inc {
		l.p.w.signal(l.owner, l.server, l.bell)
	}
}

func (p *plain) find(id uint64) *plainLease {
	for _, l := range p.all {
		if l.id == id {
			return l
		}
	}
	return nil
}

func (l *plainLease) isSpent(id uint64) bool {
	for _, s := range l.spent {
		if s == id {
			return true
		}
	}
	return false
}

// claim is memstore's: idempotent by ID, never in the place of an earlier ID.
func (l *plainLease) claim(name int, id uint64) reply {
	if l.isSpent(id) {
		return reply{err: errGone}
	}
	ln := l.p.ln[name]
	e := ln.of(l.id)
	if e != nil && e.claim != id {
		l.spent = append(l.spent, e.claim)
		l.p.rev++
		ln.remove(e, displaced)
		e = nil
	}
	if e == nil {
		l.p.rev++
		e = &entry{owner: l.owner, inc: l.inc, sess: l.id, claim: id, token: l.p.rev, lease: l.id}
		ln.enter(e)
	}
	return reply{rev: e.token, held: l.p.holdsNow(e)}
}

// look says where a place stands.
func (p *plain) look(sess uint64, pl place) (e *entry, r reply) {
	e = p.ln[pl.name].of(sess)
	if e == nil || e.claim != pl.id || pl.token != 0 && e.token != pl.token {
		return nil, reply{}
	}
	return e, reply{stands: true, rev: e.token, held: p.holdsNow(e)}
}

// holdsNow says that a claim holds its name.
func (p *plain) holdsNow(e *entry) bool {
	return e.line.entries[0] == e && (p.holds == nil || p.holds(e))
}

func (l *plainLease) release(pl place) {
	ln := l.p.ln[pl.name]
	e := ln.of(l.id)
	switch {
	case e != nil && e.claim == pl.id && (pl.token == 0 || e.token == pl.token):
		l.spent = append(l.spent, e.claim)
		l.p.rev++
		ln.remove(e, released)
	case e == nil || e.claim != pl.id:
		l.spent = append(l.spent, pl.id)
	}
}

func (p *plain) fault(f Fault) {
	if f.Kind == StoreDown || f.Kind == LeaderPause || f.Kind == LeaderCut {
		p.host.frozen = p.w.now + min(f.For, 3*sec)
		inc := p.host.inc
		p.w.after(min(f.For, 3*sec), nil, func() {
			if p.host.inc != inc {
				return
			}
			for _, l := range p.all { // a new leader of the store does not know when each was renewed
				l.ends = max(l.ends, p.host.clock()+l.ttl)
			}
		})
	}
	if f.Kind == StoreRate {
		p.host.setRate(f.Arg)
	}
}

func (p *plain) heal() {}

func (p *plain) operator(f Fault) {
	ln := p.ln[int(f.Node)%len(p.ln)]
	if len(ln.entries) == 0 {
		return
	}
	e := ln.entries[int(f.Arg)%len(ln.entries)]
	l := p.find(e.sess)
	if f.Kind == Revoke {
		p.w.judge.excuse(e.sess, -1)
		l.end(byHand)
		return
	}
	p.w.judge.excuse(e.sess, ln.name)
	l.spent = append(l.spent, e.claim)
	p.rev++
	ln.remove(e, byHand)
	l.ring()
}
