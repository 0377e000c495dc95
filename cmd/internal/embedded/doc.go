// Package embedded is the store that needs no server: an etcd inside the first primacy process of a
// directory.
//
// Every process on the machine that opens the same directory shares it. One of them, whoever holds
// the exclusive lock on DIR/primacy.lock, hosts etcd in its own process and listens on a private
// unix socket in the directory; there is no TCP port. The others are clients of that socket, and
// each tries for the lock in the background. The kernel lets go of the lock when the host ends,
// however it ends, so another process takes over: it opens the same data and listens on the same
// path, and clients come back by themselves. Revisions go on from where they were, so fencing
// tokens keep growing. Leases survive too. One that was renewed last longer than its TTL ago ends
// with the take-over; the others start their full TTL afresh, as they do at any change of etcd's
// leader.
//
//	DIR/primacy.store   says that the directory is ours, and in which format
//	DIR/primacy.lock    locked by the host, and holds its process ID
//	DIR/primacy.leases  when each lease was renewed last
//	DIR/etcd.sock       where the host listens
//	DIR/etcd.log        etcd's own warnings, at most 1 MiB and one older file
//	DIR/etcd/           etcd's data; DIR/etcd.new/ while it is made
//
// The directory has mode 0700 and what is in it 0600, but for etcd's snapshots of its own
// bookkeeping (*.snap), which etcd makes as the umask has it.
//
// # What it does not do
//
//   - It is for one machine. A lock does not keep two machines apart on every network file system,
//     and the socket does not reach across.
//   - If the host is frozen (SIGSTOP, a debugger) it still holds the lock, so nobody takes over. No
//     renewal is answered then, and every leader steps down by its own clock. Thaw or kill the
//     host; its process ID is in DIR/primacy.lock.
//   - If the directory is removed while it is in use, a process that comes later starts an empty
//     store beside the old one. Those of the old one notice within [poll] and stop, but a leader
//     among them may believe until its deadline.
//   - A damaged data directory is reported, never repaired by force and never deleted. etcd itself
//     mends a torn last write of its log, which was never acknowledged, and keeps a copy. Damage
//     that makes bbolt panic in the middle of operation ends the process: that is a crash, and
//     another process tries to take over.
//
// # Short ticks
//
// etcd runs with 20 ms ticks and an election timeout of 100 ms, where its defaults are 100 ms and 1
// s. Among several members that would depose leaders on a busy machine. Here the one member is its
// own majority: a stall delays answers, but no rival can win. It is ready a tenth of a second after
// its data is read, and leases may be as short as 1 s.
package embedded
