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
// the log at one member, in the raft term of the grant. That needs etcd 3.4.42, 3.5.28, 3.6.9 or
// 3.7: older ones answer linearizable reads with old state after a pause.
//
// A session with a ttl below 2 s, or with [Options.Heartbeat], rewrites a key of its own each
// renewal. Whoever waits right behind it watches that key, and ends the session when it has not
// changed for 1.12 × ttl; who tries again and again without waiting does so too. etcd's own
// clients in the line do not, and who only looks does not: they see a crashed session until the
// lease below it ends, after 10 s or 4 × ttl, whichever is longer. What a heartbeat costs is told
// at [Options.Heartbeat].
//
// Endpoints are members, or load balancers that pass connections through; not etcd's own
// grpc-proxy, which acknowledges renewals out of its cache.
//
// Journals are kept below <prefix>@journal/. Their records are on etcd leases of 430 days, which
// all processes share; in a cluster with passwords they are on none, and stay until they are
// removed. A user needs the right to read and write there. Without it, and while etcd is full
// (NOSPACE), places are given up without their records.
//
// Where users of etcd's Mutex stand in the same line, fence on create revisions only: the number
// that such a user shows a resource may be larger than the create revision of the claim behind.
//
// # How to read the source
//
// First store.go, keys.go, session.go, seats.go and lease.go, which has the order of all locks;
// ops.go and batch.go, which send what the others ask for. Then order.go, claim.go, release.go,
// exchange.go and transfer.go; renew.go and heartbeat.go; waiters.go (the states of a waiter),
// waiter.go, follow.go and news.go; liveness.go; the rest in any order.
//
// # Words
//
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
