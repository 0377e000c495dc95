package sim

import (
	"slices"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

const ttl = 3 * time.Second

// store keeps the line of claims and the record. What it is asked happens at once; the way there
// and back takes time: see agent.call.
type store struct {
	w      *World
	up     bool
	claims []*claim
	tokens uint64
	record *core.Record
	key    uint64     // of the term that has written the record, see claim
	lost   *core.Lost // in the record's place
	line   *core.Line

	losses int    // how often it was lost, or set back
	was    []kept // the records that were written since then
}

// kept is what a backup of the store has.
type kept struct {
	record *core.Record
	key    uint64
	tokens uint64 // given out by then
}

// lease is what keeps a claim alive.
type lease struct {
	renewed time.Duration
	gone    bool
	claim   *claim
}

// claim is a member's place in the line.
type claim struct {
	lease  *lease
	a      *agent
	answer *core.Answer
	token  uint64 // 0: it does not lead
	key    uint64 // the token, and before it how often the store was lost: tokens are given out again then
	over   bool   // the agent has seen its term end
}

func (s *store) leader() *claim {
	if len(s.claims) == 0 {
		return nil
	}
	return s.claims[0]
}

// changed gives the first claim its term, and tells all.
func (s *store) changed() {
	line := &core.Line{}
	if c := s.leader(); c != nil {
		if c.token == 0 {
			s.tokens++
			c.token, c.key = s.tokens, uint64(s.losses)<<32|s.tokens
			s.w.Stats.Terms++
			s.w.logf("store: term %d of %s begins", c.token, c.a.n.name)
			c.a.later(s.w.delay(ms, 5*ms), func() { c.a.leads(c) })
		}
		line.Token, line.Leader = c.token, c.a.n.name
	}
	for _, c := range s.claims {
		line.Members = append(line.Members, core.Standing{Name: c.a.n.name, Answer: c.answer})
	}
	s.line = line
	for _, n := range s.w.nodes {
		if n.agent != nil {
			n.agent.news()
		}
	}
}

// remove ends a claim.
func (s *store) remove(c *claim) {
	i := slices.Index(s.claims, c)
	if i < 0 {
		return
	}
	s.claims = slices.Delete(s.claims, i, i+1)
	c.lease.claim = nil
	s.w.logf("store: the claim of %s is gone (token %d)", c.a.n.name, c.token)
	c.a.later(s.w.delay(ms, 5*ms), func() { c.a.lost(c) })
	s.changed()
}

// end ends a lease with its claim.
func (s *store) end(l *lease) {
	l.gone = true
	if l.claim != nil {
		s.remove(l.claim)
	}
}

// renew moves a lease's end. The store ends it up to half a second late.
func (s *store) renew(l *lease) {
	l.renewed = s.w.now
	s.w.after(ttl+s.w.between(0, 500*ms), func() {
		if !l.gone && s.w.now-l.renewed >= ttl {
			s.end(l)
		}
	})
}

// enter puts a claim at the end of the line, if the lease has none yet.
func (s *store) enter(c *claim) {
	if c.lease.gone || c.lease.renewed == 0 || c.lease.claim != nil {
		return
	}
	s.claims = append(s.claims, c)
	c.lease.claim = c
	s.changed()
}

// transfer gives the term of c to a member who stands.
func (s *store) transfer(c *claim, to string) bool {
	if s.leader() != c {
		return false
	}
	i := slices.IndexFunc(s.claims, func(x *claim) bool { return x != c && x.a.n.name == to })
	if to != "" && i < 0 {
		return false
	}
	s.w.Stats.Hands++
	if to != "" {
		next := s.claims[i]
		s.claims = slices.Delete(s.claims, i, i+1)
		s.claims = slices.Insert(s.claims, 1, next)
	}
	s.remove(c)
	return true
}

// renewed counts pauses, and gives the primary of a paused cluster its new term.
func (s *store) renewed(c *claim, r *core.Record) {
	old := s.record
	if old == nil || old.Primary != r.Primary || old.Timeline != r.Timeline {
		return
	}
	if old.Paused == nil && r.Paused != nil {
		s.w.Stats.Pauses++
	}
	p := s.w.find(r.Primary.Name)
	if old.Token < r.Token && p.srv != nil && p.srv.primary && p.srv.token == s.key {
		p.srv.token = c.key
		s.w.Stats.Renewed++
	}
}

// lose has the store forget all, or all that came after a backup.
func (s *store) lose(backup kept) {
	s.losses++
	s.w.Stats.Lost++
	if s.record, s.key, s.was = backup.record, backup.key, nil; s.w.chance(0.5) {
		s.tokens = backup.tokens // else the person who put it back has seen to it that none is given out twice
	}
	for _, c := range slices.Clone(s.claims) {
		s.end(c.lease)
	}
	for _, n := range s.w.nodes {
		if n.agent != nil && n.agent.lease != nil {
			s.end(n.agent.lease)
		}
	}
}

// mark puts l in the place of the record that was found, if that still stands.
func (s *store) mark(found *core.Record, l core.Lost) bool {
	if s.record != found || s.lost != nil {
		return false
	}
	s.w.logf("store: %v", &l)
	s.record, s.lost = nil, &l
	return true
}

// outcome of a write.
type outcome int

const (
	written outcome = iota
	refused
)

// write is the compare-and-swap: on the record's number, and on the claim.
func (s *store) write(c *claim, r core.Record) outcome {
	var seq uint64
	if s.record != nil {
		seq = s.record.Seq
	}
	if (s.leader() != c || r.Seq != seq+1) && !s.w.broken.AnyWrite {
		s.w.logf("store: record %d of %s is refused (there is %d)", r.Seq, c.a.n.name, seq)
		return refused
	}
	s.w.logf("store: record %d: token %d, primary %v, timeline %d from %v, voters %v, k %d, q %d, %s, stopped %v",
		r.Seq,
		r.Token, r.Primary, r.Timeline, r.From, r.Voters, r.Acks, r.Needed, r.Durability, r.Stopped)
	s.w.judge.recorded(c, s.record, &r)
	s.renewed(c, &r)
	s.record, s.lost, s.key = &r, nil, c.key
	s.was = append(s.was, kept{&r, c.key, s.tokens})
	for _, n := range s.w.nodes {
		if a := n.agent; a != nil {
			a.later(s.w.delay(ms, 20*ms), a.readRecord)
		}
	}
	return written
}
