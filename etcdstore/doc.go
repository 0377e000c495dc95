// Package etcdstore keeps leases and claims in etcd.
//
// A claim is a key under an etcd lease, laid out as etcd's own concurrency package does it, so
// that its elections and mutexes, `etcdctl elect` and `etcdctl lock` can stand in the same line
// (their names must be escaped as here: all but letters, digits, "_", "." and "-" is written
// %XX). The token is the key's create revision. Shared claims, those of readers and of
// semaphores, have a range of keys of their own beside the exclusive ones, and stand in the same
// line by their create revisions.
//
// etcd's keepalive does not go through consensus: a leader that was cut off and paused still
// acknowledges renewals while the majority revokes the lease. So a renewal counts only when, after
// it, a linearizable read was answered on the same connection, and then two requests went through
// the log at one member, in the raft term of the grant. In a later raft term it counts once the
// session was moved to a lease granted in that term. That needs etcd 3.4.42, 3.5.28, 3.6.9 or 3.7:
// older ones answer linearizable reads with old state after a pause.
//
// A session with a ttl below 2 s, or with [Options.Heartbeat], rewrites a key of its own each
// renewal, and is on a longer lease that is renewed beside that. Such a renewal counts when the key
// was written, and the lease was proved so recently, as above, that it outlives the ttl. Whoever
// waits right behind the session watches that key, and ends the session when it has not changed
// for 1.12 × ttl. So does a process that tries again and again. Nobody else ends it: etcd's own
// clients in the line, and processes that only look, see a crashed session until the lease below
// it ends, after 10 s or 4 × ttl, whichever is longer. What a heartbeat costs is told at
// [Options.Heartbeat].
//
// Endpoints are members, or load balancers that pass connections through; not etcd's own
// grpc-proxy, which acknowledges renewals out of its cache.
//
// Journals are kept below <prefix>@journal/. Their records are on etcd leases of 430 days, which
// all processes share; in a cluster with passwords they are on none, and stay until they are
// removed. A user needs the right to read and write there. Without it, and while etcd is full
// (NOSPACE), places are given up without their records.
//
// Where users of etcd's Mutex stand in the same line, every user must fence by the create revision
// of its own key. A user of that Mutex may show a resource another number, and it may be larger
// than the create revision of the next claim: the resource would then refuse the next leader.
//
// # How to read the source
//
// What is written as etcdwire is internal/etcdwire: a file of it stands before the files that need
// it.
//
//  1. keys.go, store.go, session.go, seats.go, lease.go (what a session is)
//  2. etcdwire's wire.go, members.go, call.go, errors.go, limit.go, wait.go; ops.go, batch.go
//     (how a request is sent, and what its outcome is)
//  3. order.go, claim.go, release.go, exchange.go, transfer.go (what changes a line)
//  4. etcdwire's lease.go and renew.go; renew.go, heartbeat.go (what keeps a session)
//  5. etcdwire's hub.go, stream.go, prefixwatch.go; waiters.go (the states of a waiter), waiter.go,
//     follow.go, news.go (how a claim hears that it holds or is gone)
//  6. liveness.go (how a silent heartbeat ends a session), then the rest in any order
//
// The order of all locks stands at the type lease (lease.go). Keep it for the end.
//
// # Words
//
//	session   here: a [driver.Lease], from its grant to its end. The session of the root package
//	          outlives it and gets another.
//	record    the key of a session. Each Txn by which a claim enters or moves compares its mod
//	          revision: to rewrite the record makes all earlier ones fail. A journal's records
//	          are called journal records.
//	move      to attach record and claims to another etcd lease, after etcd's leader has changed.
//	doubt     of a put: no answer came, so it may still be carried out.
//	turn      of a seat: who has it is the only one that enters or releases its claim.
//	spent     of a claim ID: its claim was given up, or is gone, and the ID never enters again.
//	base      the longer etcd lease below a session with a heartbeat.
//	stem      the session's part of the keys of its claims.
package etcdstore
