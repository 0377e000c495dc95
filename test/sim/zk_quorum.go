package sim

// wire is the connection between a leader and one of its followers: in each direction what is sent
// first comes first, late perhaps, until it is closed.
type wire struct {
	e        *ensemble
	boss     *peer
	member   *peer
	epoch    uint64
	closed   bool
	up, down fifo
	heard    int64 // on the leader's clock
}

type fifo struct {
	q    []func()
	last int64
}

func (x *wire) send(f *fifo, to *peer, fn func()) {
	if x.closed {
		return
	}
	w := x.e.w
	late := w.rng.span(100*us, 2*ms)
	if r := w.rng.next(); !w.calm && int64(r&0xfffff) < w.plan.Net.Late/4 {
		late = int64((r >> 20) % uint64(w.plan.TTL)) // one direction only
	}
	f.last = max(f.last+1, w.now+late)
	f.q = append(f.q, fn)
	w.after(f.last-w.now, &to.host, func() { x.deliver(f, to) })
}

// deliver takes in the next message, whichever timer brought it.
func (x *wire) deliver(f *fifo, to *peer) {
	w := x.e.w
	if x.closed || len(f.q) == 0 {
		return
	}
	if until := max(x.boss.cut, x.member.cut); until > w.now {
		w.after(until-w.now+w.rng.span(ms, 200*ms), &to.host, func() { x.deliver(f, to) })
		return
	}
	fn := f.q[0]
	f.q = f.q[1:]
	if to == x.boss {
		x.heard = to.clock()
	} else {
		to.heard = to.clock()
	}
	fn()
}

// arm has a member look around every half tick, on its own clock.
func (m *peer) arm() {
	late := int64(0)
	if m.w.rng.chance(100_000) {
		late = m.w.rng.span(0, 50*ms) // its thread gets no turn at once
	}
	m.w.after(m.real(m.w.plan.ZK.Tick/2)+late, &m.host, func() {
		m.turn()
		m.arm()
	})
}

// turn is a leader's pings, and everybody's doubts.
func (m *peer) turn() {
	limit := m.w.plan.ZK.Sync
	switch {
	case m.leads:
		synced := 1
		for _, x := range m.wires {
			if !x.closed && m.clock()-x.heard < limit {
				synced++
			}
		}
		if synced*2 <= len(m.e.m) {
			m.resign()
			break
		}
		for _, x := range m.wires {
			x.send(&x.down, x.member, func() { x.member.pong(x) })
		}
	case m.follows != nil:
		if m.follows.closed || m.clock()-m.heard >= limit {
			m.resign()
		}
	}
	if m.looking() {
		m.e.check()
	}
}

// pong answers a ping with the sessions that the follower has heard of since the last.
func (m *peer) pong(x *wire) {
	table := *m.table
	m.table = new([]uint64)
	x.send(&x.up, x.boss, func() {
		for _, sess := range table {
			x.boss.count(sess)
		}
	})
}

// resign ends what a member does for or with others: it looks for a leader from now on, and its
// clients lose their connections.
func (m *peer) resign() {
	if m.leads {
		m.w.say(&m.host, news, "store: leads no more")
	}
	for _, x := range m.wires {
		x.closed = true
	}
	if m.follows != nil {
		m.follows.closed = true
	}
	m.leads, m.follows, m.wires, m.track = false, nil, nil, nil
	m.conn++
	m.table = new([]uint64)
}

// check sees to it that who looks for a leader finds one, or they elect one.
func (e *ensemble) check() {
	if e.alarm {
		return
	}
	e.alarm = true
	e.w.after(e.w.rng.span(200*ms, sec), nil, func() {
		e.alarm = false
		if e.elect(); e.adrift() {
			e.check()
		}
	})
}

func (e *ensemble) adrift() bool {
	for _, m := range e.m {
		if m.looking() {
			return true
		}
	}
	return false
}

// elect lets those who look join the leader of the newest epoch, if he can be reached, or make one
// of them leader if they are a majority.
func (e *ensemble) elect() {
	var best *peer
	n := 0
	boss := e.m[e.leader]
	for _, m := range e.m {
		if !m.looking() || !m.reaches() {
			continue
		}
		if boss.leads && boss.reaches() {
			e.join(m)
			continue
		}
		if n++; best == nil || m.last > best.last {
			best = m
		}
	}
	if n*2 <= len(e.m) {
		return
	}
	e.epoch++
	e.w.count.Elections++
	e.settle(best)
	e.lead(best)
	e.w.say(&best.host, news, "store: leads it from now on, epoch %d", e.epoch)
	for _, m := range e.m {
		if m != best && m.looking() && m.reaches() {
			e.join(m)
		}
	}
}

// settle carries out what stands in the winner's log, and drops the rest.
func (e *ensemble) settle(m *peer) {
	open := e.open
	e.open = nil
	for _, x := range open {
		if x.has[m.i] {
			e.apply(x)
		}
	}
}

// lead makes m leader of the newest epoch: every session has its full timeout again.
func (e *ensemble) lead(m *peer) {
	e.leader, m.epoch, m.leads, m.applied = m.i, e.epoch, true, e.applied
	for _, l := range e.all {
		m.begin(l.id, -1)
	}
}

// join makes m a follower of the present leader, with all that is decided.
func (e *ensemble) join(m *peer) {
	boss := e.m[e.leader]
	x := &wire{e: e, boss: boss, member: m, epoch: e.epoch, heard: boss.clock()}
	boss.wires = append(boss.wires, x)
	m.follows, m.epoch, m.heard, m.last, m.applied = x, e.epoch, m.clock(), boss.last, e.applied
	for _, p := range e.open {
		p.has[m.i], p.done = true, true // it comes with what the leader has
	}
	boss.advance()
}

// propose writes a request into the log of the leader m and sends it to its followers.
func (m *peer) propose(from *peer, sess uint64, op func() reply, respond func(reply)) {
	e := m.e
	if !m.leads || m.epoch != e.epoch {
		return // what a former leader proposes reaches nobody
	}
	e.zxid++
	p := &txn{zxid: e.zxid, sess: sess, op: op, from: from, tell: respond}
	p.has[m.i], m.last = true, p.zxid
	e.open = append(e.open, p)
	for _, x := range m.wires {
		x.send(&x.down, x.member, func() {
			p.has[x.member.i], x.member.last = true, p.zxid
			x.send(&x.up, m, func() {
				p.done = true
				m.advance()
			})
		})
	}
}

// advance commits what a majority has, in order.
func (m *peer) advance() {
	e := m.e
	for m.leads && m.epoch == e.epoch && len(e.open) > 0 && e.open[0].done {
		p := e.open[0]
		e.open = e.open[1:]
		r := e.apply(p)
		at := e.applied
		m.learns(at, p, r)
		for _, x := range m.wires {
			x.send(&x.down, x.member, func() { x.member.learns(at, p, r) })
		}
	}
}

func (e *ensemble) apply(p *txn) reply {
	e.applied++
	return p.op()
}

// snap cuts a member off at a bad moment: it has just answered a write of a session that holds a
// name, and of which the leader has not heard for long. The clients of the member stand behind the
// same switch.
func (m *peer) snap(sess uint64) {
	boss := m.e.m[m.e.leader]
	t := boss.tracks(sess)
	if m.trap == 0 || m.leads || t == nil || m.w.now-t.touched < m.w.plan.TTL/10 || !m.e.holds(sess) {
		return
	}
	d := max(m.trap, m.w.plan.ZK.Session*3/2)
	m.trap, m.cut = 0, max(m.cut, m.w.now+d)
	m.w.say(&m.host, news, "store: cut off from its peers for %v, with its clients, at a bad moment", span(d))
	m.e.island(m, d)
}

func (e *ensemble) holds(sess uint64) bool {
	for _, ln := range e.ln {
		if len(ln.entries) > 0 && ln.entries[0].sess == sess {
			return true
		}
	}
	return false
}

// learns is a commit as a member hears of it. It answers the client that asked it.
func (m *peer) learns(at int, p *txn, r reply) {
	m.applied = max(m.applied, at)
	if p.from == m && p.tell != nil {
		p.tell(r)
		m.snap(p.sess)
	}
}
