// Package agent runs one member of a PostgreSQL cluster: it watches the election, the cluster's
// record and the server, gives what it sees to package core, and carries out what core orders. It
// decides nothing itself.
//
// # Goroutines
//
// Run owns the member and all that was observed; all others send it functions. As long as it runs:
//
//	followLine          follows the election
//	stand               campaigns, one campaign after another
//	lookAgain           asks the server how it is
//	keepSlots           keeps a replication slot for each other member
//	notes.keep          writes down how far the WAL has been
//	followInstructions  reads what people ask of the cluster
//	shared.follow       reads the shared configuration, and has the server load its parameters
//
// For one thing each: an order (two while a stop supersedes one), a read of the record, what a
// member says of itself, the end of a term, extend for each term, the proof that walsenders have
// loaded a setting, and checkpoints.
//
// # The deadline
//
// The server runs as a standby without a deadline: it ends with this process. Before it is promoted
// the guardian confirms the term's deadline (supervise.Process.Bind), and each renewal moves that.
// So a primary is gone by the end of its term, whoever of agent, guardian and postmaster is killed
// or frozen. The claim is released once the server is gone, or once it was told to end and does
// not, because its disk hangs: then the seals alone keep it from acknowledging (rule 8 of core).
package agent
