package core

import "math"

// mustNotFollow says whether the record's primary is of an older term than this member is sealed
// for, or not known.
func (m *Member) mustNotFollow(o Observation) bool {
	return !o.Read || o.Record == nil || o.Record.Token < m.state.Sealed
}

// prepare brings the server up, seals it and reads where its WAL ends. wait says that nothing else
// is to be done meanwhile.
func (m *Member) prepare(o Observation) (do Action, wait bool) {
	s := &m.server
	switch {
	case !m.usable(o):
		m.phase = PhaseEmpty
		return nil, false
	case !o.Server.Running:
		m.phase = PhaseStopped
		m.mustRewind = m.mustRewind || m.state.ByHand
		if m.mustRewind && !m.mustNotFollow(o) && o.Own == nil {
			return rewind(m, o), true
		}
		if m.state.ByHand {
			m.why = wasTaken + "waits for a primary to be rewound from"
			return nil, false
		}
		m.mustRewind = false // a survey needs its answer: as it is
		return m.orLead(Start{}, o)
	case !m.mustNotFollow(o):
		return nil, false
	case !s.cutOff:
		return m.orLead(Seal{}, o)
	}
	if o.Own == nil {
		m.phase = PhaseSealed
	}
	if m.answer == nil {
		return m.orLead(Read{}, o)
	}
	if o.Own != nil {
		return nil, false
	}
	again := m.saidAt + retryLater
	switch {
	case o.ReadFor < m.state.Sealed: // the record is being read: the store may have been set back since
	case m.said == nil || *m.said != *m.answer:
		return Say{*m.answer}, true
	case o.hides(m.cfg.Name, *m.answer) && o.Now >= again: // an older answer came late, or the claim is new
		return Say{*m.answer}, true
	case o.hides(m.cfg.Name, *m.answer):
		m.wake = again
	}
	return nil, false
}

// copying is that of data which a rewind was to change. If it failed before the first byte, they
// may be the copy of another primary, and then no WAL of this one makes them consistent.
const copying = math.MaxUint64

// rewind makes the data of a server that does not run a part of the primary's again.
func rewind(m *Member, o Observation) Action {
	switch {
	case o.Server.Full:
		m.why = noRoom
		return nil
	case !o.leads():
		return nil
	case m.rewoundFor == o.Record.Token && !o.Record.votes(m.me()):
		// It did not help: the primary lacks WAL that the data need. They are copied anew, unasked,
		// but not while a failover may need them.
		return Reinit{0}
	}
	n := m.renewed(o)
	n.Copied = copying // where it fails, the data may be what they were
	return Rewind{n, o.Record.Token}
}

// orLead lets a leader whose own server is not well go on with the answers of the others.
func (m *Member) orLead(do Action, o Observation) (Action, bool) {
	if o.Own != nil && m.retry.delayed(do, o.Now, &m.wake) {
		return nil, false
	}
	return do, true
}

// usable says whether there is data to start a server from. What initdb has made becomes so with
// the first record: the marker beside it may still be there if the agent died just then.
func (m *Member) usable(o Observation) bool {
	if o.Server.Data != DataPartial {
		return o.Server.Data == DataReady
	}
	if o.Record == nil {
		return m.ranInitdb
	}
	return o.Record.Primary == m.me()
}

// follow is what a member does that does not lead.
func (m *Member) follow(o Observation) Action {
	r := o.Record
	s := &m.server
	switch {
	case m.mayLackDeadline():
		if s.lacksDeadline {
			m.phase = PhasePaused
		}
		return nil
	case m.mustNotFollow(o) || r.Primary.Name == m.cfg.Name:
		return nil
	case o.Server.Data != DataReady:
		m.phase = PhaseRejoining
		if !o.leads() {
			return nil
		}
		return Clone{m.renewed(o)}
	case !o.Server.Running:
		return nil
	}
	m.phase = PhaseFollowing
	if s.following == r.Primary {
		return m.stream(o)
	}
	copied := m.state.Copied == r.Token
	switch {
	case m.answer != nil:
	case copied && (s.needsWAL || s.readTries > readTriesAtMost):
		return Follow{r.Primary}
	case s.readTries > readTriesAtMost && (m.state.Copied != 0 || o.Now-s.readSince > o.Settings.ReplayAtMost):
		return m.stopToRewind(o) // it lacks WAL that this primary may never have had
	case !s.cutOff:
		return Seal{}
	default: // own data may go on where the primary's do not: they never follow before that is known
		return Read{}
	}
	if RejoinFor(m.answer.Position, *r) == RejoinFollow {
		return Follow{r.Primary}
	}
	return m.stopToRewind(o)
}

// stream watches over a server that was told to follow the primary.
func (m *Member) stream(o Observation) Action {
	astray, steady := m.server.watch(o)
	m.why = m.server.tells(o, m.why)
	if astray {
		return m.stopToRewind(o)
	}
	if steady {
		m.rewoundFor = 0
	}
	m.wake = max(m.server.notStreamingSince, m.server.fullAt) + strayAfter
	if o.Record.Seq > m.state.Seq {
		return m.persist(0, o)
	}
	return nil
}

// renewed is the state of a member that forgets: before its data change, so that no voter's answer
// can come from other data than it voted with.
func (m *Member) renewed(o Observation) State {
	n := m.state
	n.Incarnation = m.cfg.Incarnation()
	n.SystemID, n.Copied = o.Record.SystemID, o.Record.Token
	n.Directory, n.Last = "", Position{}
	n.see(*o.Record)
	return n
}

// stopToRewind stops a server whose WAL is not a part of the primary's. It is rewound next, unless
// its disk is full: a rewind that finds no room leaves data that can only be copied anew.
func (m *Member) stopToRewind(o Observation) Action {
	m.phase = PhaseRejoining
	if o.Server.Full {
		m.why = noRoom
		return nil
	}
	if !o.leads() {
		return nil
	}
	m.mustRewind = true
	return Stop{Fast: true}
}
