package core

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// State is what a member must not forget. It lies beside the data directory, for pg_basebackup and
// pg_rewind copy what is inside.
type State struct {
	Incarnation string `json:"incarnation"`
	Sealed      uint64 `json:"sealed,string"`  // the largest token it is sealed for
	Seq         uint64 `json:"seq,string"`     // the largest record it has seen
	SystemID    string `json:"system_id"`      // of the database system: where the state was lost, from pg_control
	Noted       Noted  `json:"noted,omitzero"` // of the record with the number Seq
	// The token of the record whose primary the data were copied from by the last clone or rewind.
	// They are consistent only with WAL of that primary; 0: they have been since; [copying]: a
	// rewind was begun, and is not known to have succeeded.
	Copied uint64 `json:"copied,string,omitempty"`
	// Joins are the lives of the cluster that this member was adopted to join, after it was begun
	// anew. Empty: it was adopted for no such. It counts until a record was seen.
	Joins Lives `json:"joins,omitempty"`
	// Directory tells the data directory from another one that stands in its place later. Empty: it
	// is to be noted.
	Directory string `json:"directory,omitempty"`
	// Last is a position that this incarnation's WAL has reached on disk, at most some seconds old.
	// It has a file of its own: what is written so often must not hold up an order.
	Last Position `json:"-"`
	// ByHand says that somebody has promoted the server past its agent: the data may be on a
	// timeline whose number was given to another member. They are rewound or cloned, and count for
	// nothing before.
	ByHand bool `json:"by_hand,omitempty"`
	// Adopted is for data that were there before the cluster's record, see rule 12.
	Adopted Adoption `json:"adopted,omitempty"`
	// The last [Task] that was carried out, or was void.
	Instructed uint64 `json:"instructed,string,omitempty"`
}

// Observation is all that a member knows when it decides. What comes together with a [Done] was
// looked at after that order had ended.
type Observation struct {
	Now    time.Duration
	Own    *Term   // nil: this member does not lead, or its term is over
	Line   *Line   // nil: not known yet
	Record *Record // nil: there is none, or Read is false; never older than one before, but where the store was lost
	Read   bool    // the record has been read
	Lost   *Lost   // what was found in the place of the record; nil: nothing
	// The newest token known when this read of the record began: for a newer one it may be old. 0:
	// it began before this member won its term, by whatever token: a store that was lost gives
	// tokens out again.
	ReadFor  uint64
	Server   Server
	Settings Settings
	LastLSN  LSN // of the primary, as it last published, 0: not known; for durability async
	Request  *Request
	Done     []Done
	// Instructions is nil until they were read, and where there are none.
	Instructions *Instructions
}

// Line is the election as last seen.
type Line struct {
	Token   uint64 // of the leader's term; 0: nobody leads
	Leader  string
	Members []Standing // all who stand, the leader too
}

// Term is this member's own.
type Term struct {
	Token     uint64
	Remaining time.Duration // until its deadline
}

// Standing is a member who stands in the election, and what it last said.
type Standing struct {
	Name   string
	Answer *Answer
}

// Server is this machine's PostgreSQL as last seen.
type Server struct {
	Data      DataState
	Directory string   // see [State]; empty: not known
	SystemID  string   // of the database system in the data directory; empty: not known
	Reached   Position // its WAL is on disk at least up to the end of this record; 0: not known

	Running      bool
	Primary      bool     // not in recovery
	Hung         bool     // does not answer, or cannot flush its WAL
	Timeline     Timeline // of a primary
	LSN          LSN      // of a primary, read after Proven
	Senders      []Sender
	Follows      bool   // a walreceiver streams
	Short        bool   // a standby with too small a max_connections: it replays nothing more until a restart
	Full         bool   // the disk of its data is, or nearly so
	Proven       uint64 // the ID of the SetSync order whose value all walsenders have loaded
	Checkpointed uint64 // the ID of the last Checkpoint order whose checkpoint is written

	Waiting time.Duration // how long the longest commit has waited for standbys
}

// DataState is what the data directory holds.
type DataState int

const (
	DataEmpty   DataState = iota // nothing
	DataPartial                  // what an initdb, clone or rewind that did not finish has left
	DataReady
)

// Request is what a person asked for.
type Request struct {
	ID         uint64
	Switchover bool
	To         string // may be empty: the best voter
}

// newest returns the largest token that is known.
func (o Observation) newest() uint64 {
	if o.Own == nil {
		return Newest(o.Line, o.Record, 0)
	}
	return Newest(o.Line, o.Record, o.Own.Token)
}

// Newest returns the largest token of these. The line and the record may be nil, own 0.
func Newest(l *Line, r *Record, own uint64) uint64 {
	if l != nil {
		own = max(own, l.Token)
	}
	if r != nil {
		own = max(own, r.Token)
	}
	return own
}

// hides says whether the line shows another answer of a member than this one.
func (o Observation) hides(name string, a Answer) bool {
	return slices.ContainsFunc(o.Line.members(), func(x Standing) bool {
		return x.Name == name && (x.Answer == nil || *x.Answer != a)
	})
}

// leads says whether the record's primary leads the term of the record.
func (o Observation) leads() bool {
	return o.Line != nil && o.Line.Leader == o.Record.Primary.Name && o.Line.Token == o.Record.Token
}

// replaceable says whether so many voters stand in the election and could stream that another can
// be promoted: they live, and if commits wait, this machine does not reach them. One that must be
// rewound first cannot stream, and needs a primary that stays.
func (o Observation) replaceable(w *Roster) bool {
	alive := 0
	for _, v := range o.Record.Voters {
		stands := slices.ContainsFunc(o.Line.members(), func(x Standing) bool { return x.Name == v.Name })
		if stands && w != nil && w.able[v] {
			alive++
		}
	}
	return alive >= o.Record.Needed
}

// successor returns the standby that is to be promoted: the one asked for, or that of the highest
// priority, and of these the most advanced. Only a voter is sure to have all acknowledged commits;
// in async nobody votes.
func (o Observation) successor(to string) (name, why string) {
	var best *Sender
	for _, x := range o.Server.Senders {
		if to != "" && x.Name != to {
			continue
		}
		switch lag := max(o.Server.LSN, x.Flushed) - x.Flushed; {
		case !o.Record.votes(x.Identity) && o.Record.Durability != Async:
			why = x.Name + " does not vote"
		case lag > switchoverLag:
			why = fmt.Sprintf("%s lags by %d KiB", x.Name, lag>>10)
		case x.NoFailover: // the term would come back, after a while without a primary
			why = x.Name + " must not be promoted (nofailover)"
		case best == nil || o.prefers(x, *best):
			best = &x
		}
	}
	switch {
	case best != nil:
		return best.Name, ""
	case why == "":
		why = cmp.Or(to, "every standby") + " does not stream"
	}
	return "", "no switchover: " + why
}

// prefers says whether x is the better successor than y. In async it is who has more: the primary
// may not come to send the rest before it is ended, and nobody else is asked then.
func (o Observation) prefers(x, y Sender) bool {
	priority, flushed := cmp.Compare(x.Priority, y.Priority), cmp.Compare(x.Flushed, y.Flushed)
	if o.Record.Durability == Async {
		priority, flushed = flushed, priority
	}
	return cmp.Or(priority, flushed, cmp.Compare(y.Name, x.Name)) > 0
}

func (l *Line) members() []Standing {
	if l == nil {
		return nil
	}
	return l.Members
}
