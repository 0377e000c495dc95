package sim

// How a leader counts sessions.

// begin counts a session from now on.
func (m *peer) begin(sess uint64, owner int) {
	m.track = append(m.track, tracked{sess: sess, owner: owner})
	m.count(sess)
	m.watch(sess, m.w.plan.ZK.Session)
}

func (m *peer) tracks(sess uint64) *tracked {
	for i := range m.track {
		if m.track[i].sess == sess {
			return &m.track[i]
		}
	}
	return nil
}

// count gives a session its full timeout from now on, up to the end of a tick.
func (m *peer) count(sess uint64) bool {
	t, z := m.tracks(sess), &m.w.plan.ZK
	if t == nil || t.closing {
		return false
	}
	t.touched = m.w.now
	t.ends = ((m.clock()+z.Session)/z.Tick + 1) * z.Tick
	return true
}

func (m *peer) watch(sess uint64, left int64) {
	epoch := m.epoch
	m.w.after(m.real(max(0, left)), &m.host, func() {
		t := m.tracks(sess)
		if t == nil || !m.leads || m.epoch != epoch {
			return
		}
		if left := t.ends - m.clock(); left > 0 {
			m.watch(sess, left)
			return
		}
		t.closing = true
		m.propose(m, 0, func() reply {
			if l := m.e.find(sess); l != nil {
				l.end(expired)
			}
			return reply{}
		}, nil)
	})
}

// open begins a session for a client of the member at.
func (m *peer) open(at *peer, op func() reply, respond func(reply)) {
	if !m.leads {
		return
	}
	e := m.e
	e.nextID++
	sess := e.nextID
	m.begin(sess, at.i)
	m.propose(at, 0, func() reply {
		e.making = sess
		return op()
	}, respond)
}

// admits says that a session may write through the member at.
func (m *peer) admits(sess uint64, at int) bool {
	t := m.tracks(sess)
	if t == nil || t.closing {
		return false
	}
	if t.owner < 0 {
		t.owner = at
	}
	return t.owner == at
}

// revalidate is asked when a client comes back over another connection. It counts as a touch.
func (m *peer) revalidate(at *peer, sess uint64, respond func(reply)) {
	ok := m.leads && m.count(sess)
	if ok {
		m.tracks(sess).owner = at.i
	}
	answer := func() { respond(reply{ok: ok, mod: at.conn}) }
	if at == m {
		answer()
		return
	}
	if x := at.follows; x != nil && x.boss == m {
		x.send(&x.down, at, answer)
	}
}
