package core

import (
	"cmp"
	"slices"
	"time"
)

// handing is a switchover under way.
type handing struct {
	to, why string
	began   time.Duration
	ordered uint64 // the checkpoint before the stop; 0: not yet
	stopped LSN    // 0: the server was not shut down cleanly
}

// finish takes the result of an order.
func (h *handing) finish(do Action, d Done) {
	switch do.(type) {
	case Stop:
		if d.Err == nil {
			h.stopped = d.LSN
		}
	case Checkpoint:
		h.ordered = d.ID
	case Transfer:
		if d.Err != nil {
			h.to = ""
		}
	}
}

// lead is the work of a term: find who is to be promoted, promote, keep the voters.
func (m *Member) lead(o Observation) Action {
	t := o.Own.Token
	if !o.Read || o.ReadFor < t || o.Record != nil && o.Record.Seq < m.writes.last {
		return nil // the record is being read
	}
	if r := m.writes.again(o); r != nil {
		return Write{*r}
	}
	switch r := o.Record; {
	case m.server.promoted != 0 && !o.Server.Running:
		return m.handOver(o)
	case r == nil:
		return m.bootstrap(o)
	case r.Token < t && r.Paused != nil:
		return m.leadPaused(o)
	case r.Token < t:
		return m.survey(o)
	case r.Token == t && r.Primary == m.me():
		if m.server.primary {
			return m.upkeep(o)
		}
		sync := AnyOf(r.Voters, r.Acks)
		if r.Durability == Async {
			sync = Sync{Kind: SyncAlone}
		}
		return m.promote(*r, sync, o)
	}
	// The record names another under this term: it was written before a restart of ours.
	return Transfer{Why: "its agent was restarted"}
}

// survey asks who is to be promoted.
func (m *Member) survey(o Observation) Action {
	m.phase = PhaseSurveying
	s := Survey{Record: *o.Record, Token: o.Own.Token, Holder: m.cfg.Name, Linger: o.Settings.Linger,
		Accept: o.accepted(), Patience: m.cfg.TTL, LastLSN: max(o.LastLSN, o.Record.From),
		MaxLag: o.Settings.MaxLag}
	if m.answer != nil {
		s.Answers = append(s.Answers, *m.answer)
	}
	for _, x := range o.Line.members() {
		s.Present = append(s.Present, x.Name)
		if x.Answer != nil && x.Name != m.cfg.Name {
			s.Answers = append(s.Answers, *x.Answer)
		}
	}
	if m.surveyToken != s.Token {
		m.surveyToken, m.surveyBegan = s.Token, o.Now
	}
	s.Waited = o.Now - m.surveyBegan
	v := s.Judge()
	m.why = v.Why
	switch {
	case v.Best == nil:
		if v.Again > 0 {
			m.wake = m.surveyBegan + v.Again
		}
		return nil
	case v.Best.Name != m.cfg.Name:
		return Transfer{v.Best.Name, v.Best.Name + " is to be promoted: " + v.Ground}
	}
	n := o.Record.Promotion(s.Token, *v.Best).promoted(v.Ground)
	m.able = nil
	for _, a := range s.Answers {
		if a.Token == s.Token && n.votes(a.Identity) && RejoinFor(a.Position, n) == RejoinFollow {
			m.able = append(m.able, a.Identity)
		}
	}
	return Write{n}
}

// promote takes the steps of a promotion in their order. The SSN is set first: a primary without it
// would acknowledge commits that nobody else has. The guardian is bound next: it ends the server if
// all else fails.
func (m *Member) promote(r Record, sync Sync, o Observation) Action {
	m.phase = PhasePromoting
	s := &m.server
	switch {
	case !o.Server.Running:
		return nil
	case !s.cutOff: // started anew by an order that was thought to have failed
		return Seal{}
	case s.setFor != o.Own.Token || s.setAgain != nil:
		return SetSync{sync}
	case !s.bound:
		return Bind{}
	case o.Own.Remaining < m.cfg.TTL/3:
		m.wake = o.Now + m.cfg.TTL/10
		return nil
	}
	return Promote{r.Timeline}
}

// bootstrap makes the first server of a cluster, where there is no record. The record comes last:
// data without it are wiped by whoever tries next.
func (m *Member) bootstrap(o Observation) Action {
	m.phase = PhasePromoting
	switch {
	case m.state.Adopted != "":
		return adopted(m, o)
	case o.Server.Data == DataReady:
		m.broken = "the data directory holds a database, and the store knows no such cluster: is `store` or " +
			"`cluster` wrong in the file? If not, give an empty directory: primacy makes the first database itself"
		return nil
	case !m.ranInitdb:
		return Initdb{State{Incarnation: m.cfg.Incarnation(), Sealed: m.state.Sealed}}
	case m.answer == nil:
		return nil
	case m.answer.Timeline > 1 && !m.server.primary:
		// Promoted in a former term, which did not come to write the record.
		m.ranInitdb = false
		return Stop{}
	}
	r := (Record{Seq: 1, Token: o.Own.Token, SystemID: m.state.SystemID, Primary: m.me(), Timeline: 3, Granted: 3,
		From: m.answer.LSN, Voters: []Identity{}, Acks: max(1, o.Settings.Acks), Needed: 1,
		Durability: o.Settings.Durability, Lineage: []Fork{{1, 0}, {3, m.answer.LSN}},
		Lives: Lives(m.state.Incarnation), Born: 3}).promoted("born by initdb")
	if m.server.primary {
		return Write{r}
	}
	return m.promote(r, Sync{}, o) // nothing is acknowledged before there is a record
}

// upkeep is what a primary does while all is well.
func (m *Member) upkeep(o Observation) Action {
	m.phase, m.why = PhaseLeading, cmp.Or(m.refusal, o.Server.tells())
	s, r := &m.server, *o.Record
	if r.Paused != nil || !o.replaceable(s.roster) || s.copied(o) {
		s.excused = o.Now
	}
	switch {
	case r.Paused != nil && s.lacksDeadline:
		m.phase, m.why = PhasePaused, r.Paused.String()
	case r.Paused != nil && o.Instructions.paused() != nil:
		m.why = "the pause is not complete: waits until no other member stands, and for its guardian"
	}
	if a, ok := m.maintenance(o); ok {
		return a
	}
	// The voters must have been there for as long: what has waited in a pause may have been cut off
	// on purpose, and what has waited for a first voter is acknowledged in a moment.
	if most := o.Settings.StallAfter; most > 0 && o.Server.Waiting >= most && o.Now-s.excused >= most {
		m.why = "commits wait for standbys that stand in the election: they cannot be reached from here"
		return Stop{}
	}
	if a, ok := m.switchover(o); ok {
		return a
	}
	if s.setAgain != nil {
		return SetSync{*s.setAgain}
	}
	if o.Server.Proven == s.setID && o.Server.LSN > 0 {
		s.voters.Proven(o.Server.LSN)
	}
	if s.roster == nil {
		s.roster = NewRoster(r, m.able, o.Now)
	}
	flushed := map[Identity]LSN{}
	for _, x := range o.Server.Senders {
		flushed[x.Identity] = x.Flushed
	}
	switch c := s.voters.Next(r, s.roster.Want(r, o.Settings, o.Server.Senders, o.Server.LSN, o.Now), flushed); {
	case c.Record != nil:
		return Write{*c.Record}
	case c.Sync != nil:
		return SetSync{*c.Sync}
	case r.Seq > m.state.Seq:
		return m.persist(0, o)
	}
	return nil
}

// switchover hands the term to a member that has everything, after the server was shut down. The
// checkpoint before that may take as long as it likes: the primary leads on, and a person who has
// asked for the switchover sees what it waits for. Without the checkpoint the stop would take that
// long, and nobody would be the primary. A member that is to end does not wait for ever.
func (m *Member) switchover(o Observation) (Action, bool) {
	if o.Request == nil {
		m.refusal = ""
	}
	if q := o.Request; q != nil && q.Switchover && q.ID != m.lastRequest && m.handing == nil {
		m.lastRequest = q.ID
		switch to, why := o.successor(q.To); {
		case o.Record.Paused != nil: // nobody stands to whom the term could be handed
		case why == "":
			m.handing = &handing{to: to, why: "switchover", began: o.Now}
		default:
			m.refusal, m.why = why, why
		}
	}
	if m.ending && m.handing == nil {
		m.handing = &handing{why: "its agent was told to end", began: o.Now}
	}
	h := m.handing
	switch {
	case h == nil:
		return nil, false
	case h.ordered == 0:
		return Checkpoint{}, true
	case o.Server.Checkpointed < h.ordered && (!m.ending || o.Now-h.began < checkpointAtMost):
		m.wake = h.began + checkpointAtMost
		m.why = "writes a checkpoint, so that the stop before the switchover is short"
		return nil, false
	}
	to, why := o.successor(h.to)
	switch {
	case m.ending && o.Record.Paused != nil: // nobody stands to whom the term could be handed
		h.to = ""
	case m.ending:
		h.to = to
	case why != "": // not any more: a request is tried again
		m.handing, m.refusal, m.why = nil, why, why
		return nil, false
	}
	return Stop{Fast: true}, true
}

// handOver gives the term on when the server that was promoted under it is gone, or does not end
// though it is being killed: rules 2 and 7 keep such a one from acknowledging, and a disk may hang
// for hours. Where it was shut down cleanly, the record says where its WAL ended: then nobody else
// need be asked.
func (m *Member) handOver(o Observation) Action {
	m.phase = PhaseStopped
	if h := m.handing; h != nil && o.Record != nil {
		if h.stopped > 0 && o.Record.Stopped == 0 && o.Record.Primary == m.me() {
			n := o.Record.next()
			n.Stopped = h.stopped
			return Write{n}
		}
		return Transfer{h.to, h.why}
	}
	why := cmp.Or(m.stopWhy, "its server has ended")
	if o.Record != nil { // to any voter: it surveys, and hands on to whoever has most
		for _, v := range o.Record.Voters {
			if slices.ContainsFunc(o.Line.members(), func(x Standing) bool { return x.Name == v.Name }) {
				m.handing = &handing{to: v.Name, why: why}
				return Transfer{v.Name, why}
			}
		}
	}
	return Transfer{Why: why}
}
