package sim

// check sees to it that a leader which does not lead is replaced.
func (c *cluster) check() {
	if c.alarm || c.works() {
		return
	}
	c.alarm = true
	c.w.after(c.w.rng.span(electionTime, 5*electionTime/2), nil, func() {
		c.alarm = false
		if !c.works() {
			c.elect()
			c.check()
		}
	})
}

// elect makes a member leader that a majority reaches. It gives every lease its full ttl, and one election time more.
func (c *cluster) elect() {
	if !c.majority() {
		return
	}
	var can []*member
	for _, m := range c.m {
		if m.usable() {
			can = append(can, m)
		}
	}
	m := can[c.w.rng.intn(len(can))]
	c.term++
	c.leader = m.i
	m.term, m.boss, m.primary, m.lessor = c.term, m.i, true, m.lessor[:0]
	c.w.count.Elections++
	c.w.say(nil, news, "store: %s leads it from now on, raft term %d", m.name, c.term)
	for _, id := range c.lss {
		c.count(m, id, c.w.plan.TTL+electionTime)
	}
	for _, x := range c.m {
		c.sync(x)
	}
}

// sync lets a member learn who leads, a moment after it can.
func (c *cluster) sync(m *member) {
	if m.asks || m.term == c.term || !m.up {
		return
	}
	m.asks = true
	inc := m.inc
	late := c.w.rng.span(ms, 300*ms)
	if m.cut > c.w.now {
		// Cut off it hears nothing; that nobody hears it either a leader notices by itself.
		late = c.w.rng.span(electionTime, 19*electionTime/10)
	}
	c.w.after(late, &m.host, func() {
		m.asks = false
		switch {
		case inc != m.inc:
		case c.w.now < m.cut:
			m.primary = false
		case c.leader >= 0 && m.term < c.term:
			m.term, m.boss = c.term, c.leader
			m.primary = m.i == c.leader
		}
	})
}

// fault carries out what happens to members.
func (c *cluster) fault(f Fault) {
	m := c.m[(uint64(f.Arg)+uint64(f.Node))%uint64(len(c.m))]
	if c.leader >= 0 && (f.Kind == LeaderPause || f.Kind == LeaderCut || f.Kind == LeaderBoth || f.Kind == StoreDown && f.Arg&64 == 0) {
		m = c.m[c.leader]
	}
	switch f.Kind {
	case StoreDown:
		c.restart(m, f.For)
	case LeaderPause, MemberPause:
		c.freeze(m, f.For)
	case LeaderCut:
		c.isolate(m, f.For)
	case LeaderBoth:
		c.isolate(m, f.For+c.w.rng.span(0, 3*sec))
		c.freeze(m, f.For)
	case StoreRate:
		m.setRate(f.Arg)
	}
	c.check()
}

func (c *cluster) freeze(m *member, d int64) {
	c.w.freeze(&m.host, d, false)
	c.w.after(d+1, nil, func() { c.sync(m) })
}

func (c *cluster) isolate(m *member, d int64) {
	m.cut = max(m.cut, c.w.now+d)
	if m.primary {
		c.w.after(c.w.rng.span(electionTime, 19*electionTime/10), &m.host, func() {
			if c.w.now < m.cut && m.i == c.leader {
				m.primary = false // nobody hears it
				c.check()
			}
		})
	}
	c.w.after(d+1, nil, func() {
		c.sync(m)
		c.check()
	})
}

// restart kills a member and starts it again.
func (c *cluster) restart(m *member, d int64) {
	if !m.up {
		return
	}
	c.w.crash(&m.host)
	m.primary, m.asks, m.lessor = false, false, nil
	if c.leader == m.i {
		c.leader = -1
	}
	c.w.after(min(d, 3*sec), nil, func() {
		m.up = true
		m.term = 0
		c.sync(m)
		c.check()
	})
}

// heal ends what is cut. Frozen members wake up by themselves, which was planned to be by now.
func (c *cluster) heal() {
	for _, m := range c.m {
		m.cut = 0
		c.sync(m)
	}
	c.check()
}

func (c *cluster) operator(f Fault) {
	ln := c.ln[int(f.Node)%len(c.ln)]
	if len(ln.entries) == 0 || !c.works() {
		return
	}
	e := ln.entries[int(f.Arg)%len(ln.entries)]
	if f.Kind == Revoke {
		c.w.judge.excuse(e.sess, -1)
		c.revoke(e.lease, byHand)
		return
	}
	c.w.judge.excuse(e.sess, ln.name)
	c.rev++
	ln.remove(e, byHand)
	c.ring(e.sess)
}
