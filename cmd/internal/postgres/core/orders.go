package core

// Order is something that the agent is to do. Its result comes back as a [Done] with the same ID.
// At most one order of a member is under way. A [Stop] may supersede it: its result is then of no
// interest, and whatever it still does must not outlive the server.
type Order struct {
	ID uint64
	Do Action
}

// Action is what an [Order] says: one of the types below.
type Action interface{ action() }

type (
	// Persist writes the state beside the data directory, and returns once it is on disk.
	Persist struct{ State State }
	// Start starts the server, always as a standby that listens to nobody, and whose SSN is
	// [SyncNobody]. A postmaster that is not the agent's child is stopped first.
	Start struct{}
	// Stop ends the server. Fast waits for the standbys to have all WAL, and reports where it
	// ended (Done.LSN) if the server shut down cleanly. Without Fast it is SIGQUIT, and SIGKILL
	// of what is left.
	Stop struct{ Fast bool }
	// Seal makes the server stop listening: when it is done, no walreceiver runs, and none will.
	Seal struct{}
	// Read asks where the WAL ends (Done.Position), and whether all of it has been read
	// (Done.Complete).
	Read struct{}
	// Say puts the answer where the leader sees it: into the value of this member's claim.
	Say struct{ Answer Answer }
	// Follow makes the server stream from the record's primary.
	Follow struct{ Primary Identity }
	// Rewind makes the data directory able to follow the primary: WAL that the primary has not is
	// saved, then discarded. The state with its new incarnation is on disk before it begins.
	Rewind struct {
		State State
		From  uint64 // the token of the record whose primary it is rewound from
	}
	// Clone makes the data directory a copy of the primary's, under the same condition. It and
	// Rewind are given up, with an error, when the record names another primary meanwhile.
	Clone struct{ State State }
	// Initdb makes a new cluster, under a marker that goes when the first record is written.
	Initdb struct{ State State }
	// Write writes the record if the present one has the sequence number Record.Seq - 1, and this
	// term lives. Done.Unknown says that it may still be written.
	Write struct{ Record Record }
	// Mark puts Lost in the place of the record that was observed, if that still stands.
	Mark struct{ Lost Lost }
	// SetSync sets the SSN and has it loaded. [Server.Proven] tells when each walsender has.
	SetSync struct{ Sync Sync }
	// Bind has the guardian confirm that the server is gone by the term's deadline, as it moves.
	Bind struct{}
	// Unbind has the guardian confirm that no deadline ends the server any more.
	Unbind struct{}
	// Reinit marks the data directory, whose server does not run, as one to be made anew, if it can
	// be emptied and the record's primary can be copied. Task is 0 if nobody has asked for it.
	Reinit struct{ Task uint64 }
	// Promote promotes the server to that timeline, if the term has a third of its time to live
	// left. Placeholders keep it from the numbers before.
	Promote struct{ Timeline Timeline }
	// Checkpoint begins a checkpoint, which makes the stop that follows short.
	// [Server.Checkpointed] tells when it is written.
	Checkpoint struct{}
	// Transfer hands the term to that member; the empty name gives it up. Why is for the history.
	Transfer struct{ To, Why string }
)

func (Persist) action()    {}
func (Start) action()      {}
func (Stop) action()       {}
func (Seal) action()       {}
func (Read) action()       {}
func (Say) action()        {}
func (Follow) action()     {}
func (Rewind) action()     {}
func (Clone) action()      {}
func (Initdb) action()     {}
func (Write) action()      {}
func (Mark) action()       {}
func (SetSync) action()    {}
func (Bind) action()       {}
func (Unbind) action()     {}
func (Reinit) action()     {}
func (Promote) action()    {}
func (Checkpoint) action() {}
func (Transfer) action()   {}

// Done is the result of an order.
type Done struct {
	ID       uint64
	Err      error
	Unknown  bool     // of a Write: with Err; it may still be carried out
	Position Position // of a Read
	Complete bool     // of a Read
	// Of a Read that is not Complete: the file of WAL that the server replays; empty: it is not
	// known.
	Recovering string
	LSN        LSN    // of a Stop that was Fast and clean: where the WAL ends; else 0
	SystemID   string // of an Initdb
}
