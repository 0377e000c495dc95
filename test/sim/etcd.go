package sim

// cluster is a store like etcd: three members with clocks of their own, a log that a majority agrees on, and leases that only the
// present leader counts, by its clock and beside the log. What is simulated is what made trouble: a leader that does not know yet that it
// was deposed acknowledges keepalives; one that was paused revokes leases from its stale clock as it wakes, and its successor carries
// that out; a frozen member carries out requests long after they were given up; a new leader gives every lease its full ttl again.
type cluster struct {
	w      *World
	m      [3]*member
	leader int // -1: none at the moment
	term   uint64
	rev    uint64
	ln     []*line
	recs   []*record
	lss    []uint64 // leases, as the log has them
	nextID uint64
	alarm  bool // an election is being waited for
}

type member struct {
	host
	i       int
	cut     int64  // from its peers, until then
	primary bool   // it believes that it leads
	term    uint64 // the newest it knows
	boss    int    // who leads, as it knows
	lessor  []count
	asks    bool // it is about to learn who leads
}

// count is a lease as a leader counts it.
type count struct {
	lease uint64
	ends  int64 // on the member's clock
}

// record is a session's own key.
type record struct {
	sess, born, mod, lease uint64
	owner                  *node
	inc                    uint32
}

const electionTime = sec

func newCluster(w *World) *cluster {
	c := &cluster{w: w, term: 1, rev: 1}
	for i := range c.m {
		c.m[i] = &member{host: host{w: w, name: [...]string{"m1", "m2", "m3"}[i], ppm: w.plan.StoreRates[i], up: true}, i: i, term: 1}
	}
	c.m[0].primary = true
	for i := range w.plan.Names {
		c.ln = append(c.ln, &line{w: w, name: i})
	}
	return c
}

func (c *cluster) servers() int    { return len(c.m) }
func (c *cluster) lines() []*line  { return c.ln }
func (c *cluster) leases() int     { return len(c.lss) }
func (c *cluster) recovery() int64 { return 0 }

// usable says that a member runs and reaches its peers.
func (m *member) usable() bool { return m.running() && m.w.now >= m.cut }

// works says that the leader can get a majority to agree.
func (c *cluster) works() bool {
	return c.leader >= 0 && c.m[c.leader].primary && c.m[c.leader].usable() && c.majority()
}

func (c *cluster) majority() bool {
	n := 0
	for _, m := range c.m {
		if m.usable() {
			n++
		}
	}
	return n >= 2
}

// receive brings a request to a member. A frozen one gets it when it wakes up.
func (c *cluster) receive(server int, rq msg, op func() reply, respond func(reply)) {
	m := c.m[server]
	if !m.up {
		c.w.count.Lost++
		return
	}
	if rq.kind == keepalive {
		c.w.after(0, &m.host, func() { c.keepalive(m, op().id, respond) })
		return
	}
	c.propose(m, c.w.now+5*sec, op, respond)
}

// propose carries a request out once a majority can agree on it, if that comes in time.
func (c *cluster) propose(m *member, until int64, op func() reply, respond func(reply)) {
	c.w.after(c.w.rng.span(200*us, 3*ms), &m.host, func() {
		switch {
		case !m.usable() && m.primary: // an isolated leader writes to its own log, which will be cut off
			return
		case !m.usable() || !c.works() || m.term < c.term:
			c.check()
			c.sync(m)
			if c.w.now < until {
				c.w.after(c.w.rng.span(50*ms, 150*ms), &m.host, func() { c.propose(m, until, op, respond) })
			}
			return
		}
		r := op()
		r.term = c.term
		respond(r)
	})
}

// keepalive is answered by whoever believes that it leads, without asking anybody. The answer carries the term of the member asked.
func (c *cluster) keepalive(m *member, lease uint64, respond func(reply)) {
	answer := func(at *member) {
		if !at.primary {
			return
		}
		r := reply{term: m.term}
		for i := range at.lessor {
			if at.lessor[i].lease == lease {
				at.lessor[i].ends = max(at.lessor[i].ends, at.clock()+c.w.plan.TTL)
				r.ttl = c.w.plan.TTL
			}
		}
		if at != m && c.w.plan.Net.Stumble > 0 && c.w.rng.chance(100_000) {
			r.term = m.term // it may have learnt meanwhile
		}
		respond(r)
	}
	switch {
	case m.primary:
		answer(m)
	case m.usable() && c.m[m.boss].up && c.w.now >= c.m[m.boss].cut:
		c.w.after(c.w.rng.span(200*us, 2*ms), &c.m[m.boss].host, func() { answer(c.m[m.boss]) })
	}
}

// count begins to count a lease on the member that leads.
func (c *cluster) count(m *member, lease uint64, ttl int64) {
	m.lessor = append(m.lessor, count{lease, m.clock() + ttl})
	c.armCount(m, lease, ttl)
}

func (c *cluster) armCount(m *member, lease uint64, left int64) {
	c.w.after(m.real(left)+c.w.rng.span(0, c.w.plan.Tick), &m.host, func() { c.expire(m, lease) })
}

// expire looks whether a lease has run out on a member's clock.
func (c *cluster) expire(m *member, lease uint64) {
	if !m.primary {
		return
	}
	for i, x := range m.lessor {
		if x.lease != lease {
			continue
		}
		switch now := m.clock(); {
		case now < x.ends:
			c.armCount(m, lease, x.ends-now)
		case m.i == c.leader && m.term == c.term && !c.works(), m.i != c.leader && m.w.now < m.cut:
			c.armCount(m, lease, sec/2) // nobody agrees; what an isolated leader proposes is lost
		default:
			m.lessor = append(m.lessor[:i], m.lessor[i+1:]...)
			why, late := expired, c.w.rng.span(200*us, 3*ms)
			if m.i != c.leader {
				why, late = stale, c.w.rng.span(ms, sec) // passed on to its successor
			}
			c.w.after(late, nil, func() { c.revoke(lease, why) })
		}
		return
	}
}

// revoke removes a lease with everything under it, in one step of the log.
func (c *cluster) revoke(lease uint64, why cause) {
	for i, id := range c.lss {
		if id != lease {
			continue
		}
		c.lss = append(c.lss[:i], c.lss[i+1:]...)
		c.rev++
		if why == stale {
			c.w.count.StaleRevokes++
			c.w.say(nil, news, "store: lease %x is revoked by a former leader from its stale clock", lease)
		}
		c.uncount(lease)
		for _, ln := range c.ln {
			for k := len(ln.entries) - 1; k >= 0; k-- {
				if e := ln.entries[k]; e.lease == lease {
					ln.remove(e, why)
					c.ring(e.sess)
				}
			}
		}
		for k := len(c.recs) - 1; k >= 0; k-- {
			if r := c.recs[k]; r.lease == lease {
				c.recs = append(c.recs[:k], c.recs[k+1:]...)
				c.tell(r)
			}
		}
		return
	}
}

// uncount forgets a lease where it is counted in order.
func (c *cluster) uncount(lease uint64) {
	if c.leader < 0 {
		return
	}
	m := c.m[c.leader]
	for i, x := range m.lessor {
		if x.lease == lease {
			m.lessor = append(m.lessor[:i], m.lessor[i+1:]...)
			return
		}
	}
}

func (c *cluster) record(sess uint64) *record {
	for _, r := range c.recs {
		if r.sess == sess {
			return r
		}
	}
	return nil
}

// ring tells a session that something changed below its record; tell that the record did.
func (c *cluster) ring(sess uint64) {
	if r := c.record(sess); r != nil {
		c.tell(r)
	}
}

func (c *cluster) tell(r *record) {
	if r.owner.inc != r.inc {
		return
	}
	for _, l := range r.owner.sess.all {
		if h, ok := l.dl.(*etcdHandle); ok && h.no == r.sess && c.m[h.s.at].usable() {
			c.w.signal(r.owner, h.s.at, &h.bell)
		}
	}
}
