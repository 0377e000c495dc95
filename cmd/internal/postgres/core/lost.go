package core

import (
	"cmp"
	"fmt"
)

// Lost takes the place of the record once a member has found that the store is not what it was:
// wiped, or put back from a backup. So a member that has seen less, and cannot know, does not act
// by it either. It is an error for who wants to read the record.
type Lost struct {
	By       string `json:"by"`           // the member that has found it
	Seen     uint64 `json:"seen,string"`  // the number of the last record that it has seen
	Found    uint64 `json:"found,string"` // of the one that was in the store; 0: there was none
	SystemID string `json:"system_id"`    // of the database system
	// Anew is the member that a person has chosen to begin the cluster anew. It alone may write the
	// next record over this.
	Anew Identity `json:"anew,omitzero"`
}

func (l *Lost) Error() string {
	if l.Anew != (Identity{}) {
		return fmt.Sprintf("the store was wiped or restored, and %s was chosen to begin the cluster anew: start its "+
			"agent", l.Anew.Name)
	}
	found := "the store has no record of this cluster any more"
	if l.Found > 0 {
		found = fmt.Sprintf("the record in the store, number %d, is not what followed it", l.Found)
	}
	if l.Found > 0 && l.Found < l.Seen {
		found = fmt.Sprintf("the record in the store is number %d", l.Found)
	}
	return fmt.Sprintf("the store was wiped or restored: %s has seen record %d, and %s. Nobody is the primary, and "+
		"all data stay. What to do: docs/postgres-failover.md, \"The store's data are gone\"", l.By, l.Seen, found)
}

// tells returns what the member of that name says, which does not begin the cluster anew.
func (l *Lost) tells(name string) string {
	if l.Anew.Name != name {
		return l.Error()
	}
	return fmt.Sprintf("the store was wiped or restored, and %s was chosen to begin the cluster anew, with what it "+
		"was then, and is no more: choose it again", name)
}

// Noted is what a member keeps of the last record that it has seen: by that it knows a later one.
type Noted struct {
	SystemID string   `json:"system_id"`
	Primary  string   `json:"primary"`
	Timeline Timeline `json:"timeline"` // of Primary
	From     LSN      `json:"from"`     // where it began
	Lives    Lives    `json:"lives,omitempty"`
}

// note returns what is kept of a record.
func (r Record) note() Noted { return Noted{r.SystemID, r.Primary.Name, r.Timeline, r.From, r.Lives} }

// see notes a record, unless a later one is noted.
func (s *State) see(r Record) {
	if r.Seq >= s.Seq {
		s.Seq, s.Noted = r.Seq, r.note()
	}
}

// follows says whether r can be a later record than the one of which n was noted. A store that was
// set back, and went on from there, gives a timeline's number out twice: to two members, or where
// WAL ends elsewhere.
func (r Record) follows(n Noted) bool {
	if n.Timeline == 0 || len(r.History) == 0 || r.History[0].Timeline > n.Timeline { // so old that it is not told
		return true
	}
	for _, p := range r.History {
		if p.Timeline == n.Timeline {
			return p.Member == n.Primary && p.From == n.From
		}
	}
	return false
}

// Forgotten returns what a member finds out about a record that was read after its state, nil: that
// there is none. It returns nil where the store has forgotten nothing that this member has seen.
func (s State) Forgotten(name string, r *Record) *Lost {
	system := cmp.Or(s.Noted.SystemID, s.SystemID)
	l := &Lost{By: name, Seen: s.Seq, SystemID: system}
	switch {
	case s.Seq == 0:
		return nil
	case r == nil:
		return l
	case system != "" && r.SystemID != system:
		return nil
	case r.Lives.last() != s.Noted.Lives.last():
		if !s.Noted.Lives.has(r.Lives.last()) { // of a later life, or of another cluster: nothing was lost
			return nil
		}
	case r.Seq >= s.Seq && r.follows(s.Noted):
		return nil
	}
	l.Found = r.Seq
	return l
}

// halted is what a member does until a person has acted.
func halted(m *Member, o Observation) Action {
	m.phase, m.why = PhaseBroken, m.broken
	if l := storeForgot(m, o); l != nil { // before another leads, who may have seen less
		if do := (Mark{*l}); o.Own == nil || !m.retry.delayed(do, o.Now, &m.wake) {
			return do
		}
	}
	if o.Own != nil {
		return Transfer{Why: m.broken} // another member can do what the term is for
	}
	return nil
}

// storeForgot is [State.Forgotten] for what a member observes.
func storeForgot(m *Member, o Observation) *Lost {
	if !o.Read || o.Lost != nil {
		return nil
	}
	return m.state.Forgotten(m.cfg.Name, o.Record)
}

// Stranger says why this member does not take part in a cluster of which that is the record, empty:
// nothing is known against it.
func (s State) Stranger(r Record) string { return s.otherData(Observation{Read: true, Record: &r}) }

// otherData says that the data, or what this member knows, are not of the cluster in the store.
func (s State) otherData(o Observation) string {
	switch {
	case !o.Read || o.Record == nil:
		return ""
	case s.Noted.SystemID != "" && s.Noted.SystemID != o.Record.SystemID:
		return fmt.Sprintf("this member is of a cluster of database system %s, and the store has one of this name "+
			"that is %s: `store` is wrong in the file, or the store was lost and another database was made since. "+
			"Delete nothing: this member may have the only data", s.Noted.SystemID, o.Record.SystemID)
	case s.formerIsBack(*o.Record):
		return "the store has the cluster's record from before it was begun anew: the store from before is back. " +
			"Remove no data: put that store away, or stop all agents, delete the record (docs/postgres-failover.md, " +
			"\"The store's data are gone\", step 4), and choose again"
	case s.Adopted == AdoptedAnew && s.Seq == 0 && o.Record.Lives.last() != s.Incarnation:
		return fmt.Sprintf("this member was chosen to begin the cluster anew, and the store has another record, of "+
			"which %s is the primary: to have this member join that one, on its machine 'primacy postgres adopt -f "+
			"FILE', or remove its data directory and state.json", o.Record.Primary.Name)
	case s.Joins != "" && s.Seq == 0 && o.Record.Lives.last() != s.Joins.last():
		return fmt.Sprintf("this member was adopted to join the cluster as it was begun anew before, and %s has begun "+
			"it anew since: to have this member join, on its machine 'primacy postgres adopt -f FILE'",
			o.Record.Primary.Name)
	case s.Seq > 0 && o.Record.Succeeds(s.Noted):
		return fmt.Sprintf("this member is of the cluster before it was adopted anew, and %s is the primary now: to "+
			"have this member join, on its machine 'primacy postgres adopt -f FILE'", o.Record.Primary.Name)
	case s.Seq > 0 && o.Record.Lives.last() != s.Noted.Lives.last():
		return "the store has another cluster of this name, with the same database: is `store` right in the file? To " +
			"have this member join that one, remove its data directory and state.json, and start it"
	case o.Server.Data == DataReady && o.system(s) != "" && o.Record.SystemID != o.system(s):
		return fmt.Sprintf("the data directory is of database system %s, and the cluster is %s: put the cluster's own "+
			"data there, or empty the directory", o.system(s), o.Record.SystemID)
	}
	return ""
}

// formerIsBack says whether r is of the cluster before it was begun anew, for which this member was
// chosen, or which it is to join.
func (s State) formerIsBack(r Record) bool {
	return (s.Adopted == AdoptedAnew || s.Joins != "") && s.Seq == 0 && s.Noted.Lives.has(r.Lives.last())
}

// system returns the database system of the data. The control file knows better than the state: the
// directory may have been put there by hand.
func (o Observation) system(s State) string { return cmp.Or(o.Server.SystemID, s.SystemID) }
