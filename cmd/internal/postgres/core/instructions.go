package core

import (
	"fmt"
	"time"
)

// Instructions are what people ask of a cluster. They stand under a key of their own, which anybody
// may write. By themselves they change nothing: a member carries them out where the rules let it.
type Instructions struct {
	Seq      uint64          `json:"seq,string"` // of the last one, from 1
	Paused   *Pause          `json:"paused,omitempty"`
	Forced   *Pause          `json:"forced,omitempty"` // the pause in which others than the primary may stand
	Failover *Failover       `json:"failover,omitempty"`
	Members  map[string]Task `json:"members,omitempty"` // by name: the last one of each
}

// Pause is a maintenance: nobody but the primary stands for election, and no deadline ends its
// server.
type Pause struct {
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at"`
}

func (p Pause) String() string {
	if p.Reason == "" {
		return "paused by " + p.By
	}
	return fmt.Sprintf("paused by %s: %s", p.By, p.Reason)
}

// Failover lets one member be promoted although others that may have more have not answered.
// It is for what the person has seen, and void for anything else.
type Failover struct {
	To     string   `json:"to"`
	Life   string   `json:"incarnation"`   // of To
	From   Position `json:"from"`          // where its WAL ended
	Record uint64   `json:"record,string"` // the number of the record
	Token  uint64   `json:"token,string"`  // of the term that found nobody to promote
	By     string   `json:"by"`
	Reason string   `json:"reason,omitempty"`
}

// accepted returns what a person has accepted for this record. One that was said under the term of
// the record is void: that term's own primary was being promoted, and writes no record while all is
// well.
func (o Observation) accepted() *Failover {
	if o.Instructions == nil || o.Instructions.Failover == nil {
		return nil
	}
	f := o.Instructions.Failover
	if f.Record != o.Record.Seq || f.Token <= o.Record.Token {
		return nil
	}
	return f
}

// Task is for one member that is a standby.
type Task struct {
	Seq  uint64 `json:"seq,string"`
	What string `json:"what"`        // TaskRestart or TaskReinit
	Life string `json:"incarnation"` // of the member: another life of its data ignores the task
	// OneCopy lets the last voter be made anew: until that is done the primary alone has the data.
	OneCopy bool `json:"one_copy,omitempty"`
}

// What a [Task] says.
const (
	TaskRestart = "restart" // stop the server cleanly, and start it again
	TaskReinit  = "reinit"  // delete the data, and copy the primary's
)

func (i *Instructions) paused() *Pause {
	if i == nil {
		return nil
	}
	return i.Paused
}

// closed says whether a pause keeps this member from standing. Members that stood could win a term
// while the primary is cut from the store, and all would then stop listening to it.
func (o Observation) closed(name string) bool {
	r := o.Record
	return r != nil && r.Paused != nil && r.Primary.Name != name && !o.forced()
}

// forced says whether a person has ended the record's pause for all members, not for its primary
// alone. What was said of an earlier pause does not count: this member may have been cut off since.
func (o Observation) forced() bool {
	r, i := o.Record, o.Instructions
	return r != nil && r.Paused != nil && i != nil && i.Paused == nil && i.Forced != nil && i.Forced.same(*r.Paused)
}

func (p Pause) same(q Pause) bool { return p.By == q.By && p.At.Equal(q.At) }

// standsAlone says whether nobody else is in the line.
func (o Observation) standsAlone(name string) bool {
	for _, x := range o.Line.members() {
		if x.Name != name {
			return false
		}
	}
	return o.Line != nil
}

// pending returns the task of this member that is to be carried out, or nil.
func (o Observation) pending(s State, name string) *Task {
	if o.Instructions == nil {
		return nil
	}
	t, ok := o.Instructions.Members[name]
	if !ok || t.Seq <= s.Instructed {
		return nil
	}
	return &t
}

// Leaving says whether a member is to be made anew, and so must not be waited for: before its data
// are deleted, the primary must have dropped it from the voters.
func Leaving(o Observation, s State, name string) bool {
	t := o.pending(s, name)
	return t != nil && t.What == TaskReinit && t.Life == s.Incarnation
}

// task carries out what a person has asked of this member. Nothing is asked of a primary, or of
// another life of the data than the person has seen: such a task is void, and not kept for a later
// day.
func (m *Member) task(o Observation) Action {
	t := o.pending(m.state, m.cfg.Name)
	if t == nil || o.Own != nil && m.server.promoted == 0 {
		return nil
	}
	next := m.state
	next.Instructed = t.Seq
	done := Persist{next}
	primary := m.server.promoted != 0 || o.Record != nil && o.Record.Primary.Name == m.cfg.Name
	known := t.What == TaskRestart || t.What == TaskReinit
	switch {
	case primary || !known || t.Life != m.state.Incarnation || m.voidTask == t.Seq:
		return done
	case t.What == TaskReinit && (o.Record == nil || !o.leads()):
		return nil // nobody to copy from: the data stay
	case t.What == TaskReinit && o.Record.votes(m.me()) && !t.OneCopy:
		return nil // an acknowledged commit may be here and on the primary alone
	case o.Server.Running:
		return Stop{Fast: true}
	case t.What == TaskReinit && o.Server.Data == DataReady:
		return Reinit{t.Seq}
	}
	return done
}

// mayLackDeadline says whether the server is a primary that perhaps no deadline ends: in a pause,
// from the moment the guardian is told to let go of it until it has confirmed that it holds it.
func (m *Member) mayLackDeadline() bool { return m.server.primary && !m.server.bound }

// maintenance pauses the cluster, and resumes it. The record says so before the guardian lets go of
// the server, and until it holds it again: else somebody else could be promoted beside a server
// that nothing ends.
func (m *Member) maintenance(o Observation) (Action, bool) {
	s, r, paused := &m.server, o.Record, o.Instructions.paused()
	switch {
	case paused != nil && r.Paused == nil:
		n := r.next()
		n.Paused = paused
		return Write{n}, true
	case r.Paused == nil || o.Instructions == nil:
		return nil, false
	case paused != nil:
		if !s.lacksDeadline && o.standsAlone(m.cfg.Name) {
			return Unbind{}, true
		}
		return nil, false
	case !s.bound && o.Own.Remaining < m.cfg.TTL/3:
		m.wake = o.Now + m.cfg.TTL/10
		return nil, false
	case !s.bound:
		return Bind{}, true
	}
	n := r.next()
	n.Paused = nil
	return Write{n}, true
}

const wentOn = "it went on during the pause"

// leadPaused is what a new term begins with in a paused cluster. A primary that still runs writes
// the term into the record: nobody else can have been promoted since, for the record would name it.
// Members that were sealed for that term follow it again. From now on the server counts as promoted
// under that term: if it ends, it is not promoted again under it.
func (m *Member) leadPaused(o Observation) Action {
	switch r := o.Record; {
	case r.Primary == m.me() && m.mayLackDeadline():
		m.server.promoted = o.Own.Token
		n := r.next()
		n.Token = o.Own.Token
		if last := len(n.History) - 1; last >= 0 && n.History[last].Ground == wentOn {
			n.History = n.History[:last] // a long pause may have many terms
		}
		return Write{n.promoted(wentOn)}
	case o.closed(m.cfg.Name):
		m.why = r.Paused.String()
		return Transfer{Why: m.why}
	}
	return m.survey(o)
}
