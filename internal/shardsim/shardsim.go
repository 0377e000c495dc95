// Package shardsim is the way from the simulation (test/sim) to the decisions of package shards,
// which exports none of them. Package shards sets the functions; nothing here decides anything.
package shardsim

import (
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
)

// Set by package shards, when it is linked.
var (
	// NewMember returns what decides for one Run of a member.
	NewMember func(group string, shards int, id, instance string) Member
	// NewAssigner returns what decides for one term of the assigner.
	NewAssigner func(group string, shards int, instance string, k Knobs, epoch primacy.Token) Assigner
	// Read reads what a member announces; ok says that it is a record.
	Read func(value []byte) (r Record, ok bool)
)

// Knobs are those of shards.Options that the assigner's decisions depend on.
type Knobs struct {
	Settle, SettleMax, Cooldown, ReadyTimeout, LeaveTimeout time.Duration
	Moves                                                   int
	Rest                                                    map[int]time.Duration // shards: until when they stay
}

// Record is what a member announces.
type Record struct {
	Shards          int // of the group; Member.Record sets it
	Ready, Draining bool
	Avoid           []int
	Moving          []int // shards that move by the plan beside it
	Due             []int // those of them that move for balance or health
}

// Member decides for one member.
type Member interface {
	// Record returns what to announce.
	Record(r Record) []byte
	// Refuses says that the group has another number of shards, by what its leader announces.
	Refuses(leader []byte) bool
	// Follow takes the group's line. The error ends Run.
	Follow(st primacy.State) error
	// Plan returns the plan's epoch and number, and for which shards it names this member.
	Plan() (epoch primacy.Token, number uint64, wants []bool)
	// Moved returns the shards that have moved since the last call, as plans have told.
	Moved() []int
	// Others says whether another member that could take shards stands in the group's line.
	Others(st primacy.State) bool
	// Absence returns the record by which these shards wait for this member; ok: it can leave one.
	Absence(at time.Time, grace time.Duration, owned []int) (r driver.Record, ok bool)
}

// Assigner decides for one term of the assigner.
type Assigner interface {
	Look(s Seen) Orders
	// Said is told that the store has Orders.Value. It returns whether to look again at once.
	Said() (again bool)
}

// Seen is what a look at the store has shown.
type Seen struct {
	Now      time.Duration // since Run, on a clock that does not jump
	Cost     time.Duration // how long it took to see this
	Wall     time.Time
	Line     primacy.State
	Lines    []primacy.State // of the shards; read before Line
	Journal  []driver.Record
	Unread   bool   // the journal could not be read
	Record   Record // this member's own
	Restated uint64 // how often the record was restated
	Paused   bool   // moves are paused
}

// Orders is what an assigner does after a look.
type Orders struct {
	Value     []byte // to proclaim; nil: nothing is new
	Asks      []Ask
	Append    []driver.Record // to the group's journal
	Gap, Next time.Duration   // for how long not to look again, and when to look in any case
}

// Ask asks the owner of a shard, by the token of its term, to hand over.
type Ask struct {
	Shard int
	Owner primacy.Token
	To    string
}
