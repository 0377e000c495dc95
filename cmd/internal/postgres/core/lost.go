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
}

func (l *Lost) Error() string {
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

// Noted is what a member keeps of the last record that it has seen: by that it knows a later one.
type Noted struct {
	SystemID string   `json:"system_id"`
	Primary  string   `json:"primary"`
	Timeline Timeline `json:"timeline"` // of Primary
	From     LSN      `json:"from"`     // where it began
}

// note returns what is kept of a record.
func (r Record) note() Noted { return Noted{r.SystemID, r.Primary.Name, r.Timeline, r.From} }

// see notes a record, unless a later one is noted.
func (s *State) see(r Record) {
	if r.Seq >= s.Seq {
		s.Seq, s.Noted = r.Seq, r.note()
	}
}

// beganAfter says whether all that r knows of came after the record of which n was noted. No backup
// of that record's store is so: it holds what came before. But a cluster is that was adopted anew
// once its members had left: its numbers begin again, and its data go on.
func (r Record) beganAfter(n Noted) bool {
	return n.Timeline > 0 && len(r.History) > 0 && r.History[0].Timeline > n.Timeline
}

// follows says whether r can be a later record than the one of which n was noted. A store that was
// set back, and went on from there, gives a timeline's number out twice: to two members, or where
// WAL ends elsewhere.
func (r Record) follows(n Noted) bool {
	if n.Timeline == 0 || len(r.History) == 0 || r.beganAfter(n) { // so old that it is not told
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
	case system != "" && r.SystemID != system || r.beganAfter(s.Noted) || r.Seq >= s.Seq && r.follows(s.Noted):
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

// otherData says that the data, or what this member knows, are not of the cluster in the store.
func (s State) otherData(o Observation) string {
	switch {
	case !o.Read || o.Record == nil:
		return ""
	case s.Seq > 0 && s.Noted.SystemID != "" && s.Noted.SystemID != o.Record.SystemID:
		return fmt.Sprintf("this member is of a cluster of database system %s, and the store has one of this name "+
			"that is %s: `store` is wrong in the file, or the store was lost and another database was made since. "+
			"Delete nothing: this member may have the only data", s.Noted.SystemID, o.Record.SystemID)
	case o.Record.Seq < s.Seq && o.Record.beganAfter(s.Noted):
		return fmt.Sprintf("this member has seen record %d of a cluster of this name that the members have left "+
			"since, and %s is the primary of one that was adopted anew: to have this member join, remove its data "+
			"directory and state.json, and start it", s.Seq, o.Record.Primary.Name)
	case o.Server.Data == DataReady && o.system(s) != "" && o.Record.SystemID != o.system(s):
		return fmt.Sprintf("the data directory is of database system %s, and the cluster is %s: put the cluster's own "+
			"data there, or empty the directory", o.system(s), o.Record.SystemID)
	}
	return ""
}

// system returns the database system of the data. The control file knows better than the state: the
// directory may have been put there by hand.
func (o Observation) system(s State) string { return cmp.Or(o.Server.SystemID, s.SystemID) }
