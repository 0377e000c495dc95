// Package etcdsim is an etcd cluster in memory, for tests inside a testing/synctest bubble: the
// services that a client of etcd speaks to, over connections that can be slow, silent or broken,
// on members that can be frozen, cut off or crashed.
//
// It is built from how etcd behaves, not from its code. What it keeps faithfully:
//
//   - Revisions: create, mod and version of keys; a Txn is one revision; compares of nested Txns
//     are decided before anything is written; reads at an older revision; compaction; watches
//     from a revision, and their order of answers.
//   - A write is done once a majority holds it. It may be done long after its caller has gone:
//     requests that lie before a frozen member are read when it wakes up.
//   - A linearizable read needs a leader that a majority has confirmed after the read began, and
//     that has committed something in its own term. A Txn that may write is no read: it goes
//     through the log, also if it then writes nothing.
//   - An answer's raft term is that of the last entry its member has applied. An answer to a
//     write may leave before its own entry is that one. A member that is far behind catches up by
//     a snapshot, and goes on to tell the term of the last entry that it applied before.
//   - Leases live in the leader's memory. It counts them on its own clock, looks every 500 ms,
//     and gives all of them their whole ttl and an election timeout more when it is elected.
//     Keepalives ask nobody else: a leader that was cut off and frozen goes on answering them for
//     one to two seconds after it wakes up, until it notices that no majority has answered it.
//     The answer's raft term is noted before the renewal.
//   - A leader that was only frozen may, as it wakes up, hand in the end of every lease that its
//     clock has seen run out, an instant before it hears that it was deposed. Its successor
//     carries that out.
//
// What it simplifies: an election is one step once its timeout is over (no split votes), members
// never lose what is on their disks, the set of members does not change, there is no
// authentication, and no lease checkpoint.
//
// Runs are not replayable to the bit: goroutines that are due in the same instant run in any order.
package etcdsim
