package core

import (
	"cmp"
	"fmt"
	"hash/fnv"
)

// Adoption says that a person has given the cluster data that were there before it: another manager
// has kept them, and its server may still run in them. It means something only until there is a
// record.
type Adoption string

// What a person has said of the data, and what has become of it.
const (
	AdoptedPrimary Adoption = "primary"
	AdoptedStandby Adoption = "standby"
	// AdoptionBegun is of a primary: it is about to end the former manager's server.
	AdoptionBegun Adoption = "begun"
	// AdoptedAnew is of the member that a person has chosen to begin the cluster anew, whose store
	// was lost. It acts only while the store says so: the choice may have been changed.
	AdoptedAnew Adoption = "anew"
)

// adoptedTwice says that the data were adopted as the primary's, and another member was adopted so
// before. Commits may have been acknowledged here: a person must see to them.
func (s State) adoptedTwice(o Observation) string {
	if s.Adopted != AdoptedPrimary || o.Record == nil {
		return ""
	}
	return fmt.Sprintf("it was adopted as the primary, and %s is the cluster's primary already: look which of them "+
		"has "+
		"the data; to give up this one's, end its server, remove its data directory and state.json, and start it",
		o.Record.Primary.Name)
}

// ready is [Member.prepare], for a member that may have been adopted.
func ready(m *Member, o Observation) (do Action, wait bool) {
	if adopting(m, o) {
		return adopt(m, o)
	}
	return m.prepare(o)
}

// adopting says whether the former manager's server may still run, and is not to be touched: there
// is no record yet, and this member has no term under which it has begun to take over.
func adopting(m *Member, o Observation) bool {
	begun := o.Own != nil && (m.state.Adopted == AdoptionBegun || o.Lost != nil && begins(m, o.Lost))
	return m.state.Adopted != "" && m.state.Seq == 0 && (!o.Read || o.Record == nil) && !begun
}

// adopt is what an adopted member does before its server is its own. That it begins is on disk
// before the former server ends: from then on the record of another member is no mistake.
func adopt(m *Member, o Observation) (do Action, wait bool) {
	m.phase = PhaseStopped
	if o.Own != nil && m.state.Adopted == AdoptedPrimary {
		next := m.state
		next.Adopted = AdoptionBegun
		return Persist{next}, true
	}
	if m.why = "waits for its term"; m.state.Adopted == AdoptedStandby {
		m.why = "waits for the member that was adopted as the primary: the former manager's server goes on meanwhile"
	}
	if m.state.Adopted == AdoptedAnew && o.Read && o.Lost == nil {
		m.why = "was chosen to begin the cluster anew, and the store does not say so: choose again"
	}
	return nil, o.Own == nil // with a term it leads nobody: see adopted
}

// adopted writes the first record of a cluster whose data were adopted. The former manager's server
// has ended, and ours has read all of its WAL: so each commit that was ever acknowledged is here.
// The record names no voter: until some have all of that, nobody else can be promoted, also where
// the cluster is to be async. It comes before the promotion, as each record but that of an initdb.
func adopted(m *Member, o Observation) Action {
	switch {
	case m.state.Adopted == AdoptedStandby:
		return Transfer{Why: "it was adopted as a standby"}
	case m.state.Adopted == AdoptedAnew && (o.Lost == nil || !begins(m, o.Lost)):
		return Transfer{Why: "the store does not say that it was chosen to begin the cluster anew"}
	case o.Server.Data != DataReady:
		m.broken = "the data directory that was adopted is empty: put it back"
		return nil
	case m.answer == nil:
		return nil
	}
	from, ground, to := *m.answer, "adopted", m.answer.Timeline+2
	if o.Lost != nil {
		ground, to = "adopted anew: the store was lost", m.answer.Timeline+apart(m.state.Incarnation)
	}
	r := Record{Seq: 1, Token: o.Own.Token, SystemID: o.system(m.state), Primary: m.me(), Timeline: to, Granted: to,
		From: from.LSN, Voters: []Identity{}, Acks: max(1, o.Settings.Acks), Needed: 1,
		Durability: o.Settings.Durability, Lineage: []Fork{{from.Timeline, 0}, {to, from.LSN}},
		Lives: m.state.Noted.next(m.state.Incarnation), Born: to}
	if o.Lost != nil {
		r.Former = m.state.Noted
	}
	if r.Durability == Async {
		r.Durability = Available
	}
	return Write{r.promoted(ground)}
}

// begins says whether this member was chosen to begin the cluster anew, where the store was lost.
// One that has seen a record since has done so: then the store was set back to before that.
func begins(m *Member, l *Lost) bool {
	return m.state.Adopted == AdoptedAnew && l.Anew == m.me() && m.state.Seq == 0
}

// apart is how far the first timeline of a cluster that begins anew is from the last one of which
// its first primary has WAL. Others may have come to timelines between that it knows nothing of:
// their numbers must not be given out again, for two timelines of one number look like one: who has
// come further is copied, see [Record.Keeps]. It is even, see [Record.byHand], and small: a
// promotion writes a file for each number that it skips, and has little time. Who begins once more,
// after the first choice was taken back, has another incarnation, and most likely another number.
func apart(incarnation string) Timeline {
	h := fnv.New32a()
	h.Write([]byte(incarnation))
	return Timeline(32 + 2*(h.Sum32()%17))
}

// Readopt returns what a member knows that takes over data which were there before, where it knew s
// until then: what tells one life of the cluster from another, and what is wrong with the data.
// Tokens, records and answers of the former life count for nothing.
func (s State) Readopt(incarnation, systemID, directory string, as Adoption) State {
	next := State{Incarnation: incarnation, SystemID: systemID, Directory: directory, Adopted: as}
	if cmp.Or(s.Noted.SystemID, s.SystemID) != systemID {
		return next
	}
	next.Noted, next.ByHand = s.Noted, s.ByHand
	if s.Copied != 0 {
		next.Copied = copying // from a primary of the former life: no token of this one stands for it
	}
	return next
}
