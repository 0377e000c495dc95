// Package etcdapi answers etcd's election, lock and lease calls over any store, so that etcd
// clients in any language can stand in its lines: v3electionpb.Election, v3lockpb.Lock,
// etcdserverpb.Lease, and the same as JSON (POST /v3/election/…, /v3/lock/…, /v3/lease/…). It
// answers nothing else of etcd's: there are no keys to read, write or watch.
//
// # What is kept of etcd's promise
//
// A lease that a client is granted is a session of its own in this process. It ends when the client
// revokes it, or when its keepalives have stopped for its ttl and a tenth, counted from when the
// last answer left: whoever counts from the answer is done by then. A keepalive is answered only if
// the claims of the lease stand in the store for at least its ttl from now, also when this process
// dies in this moment. If it does die, the claims stand for one and a half ttl at most. A store
// that does not answer therefore leaves the keepalive unanswered, and the client's own clock ends
// its leadership.
//
// LeaderKey.rev is the fencing token, LeaderKey.key is the name and the lease as etcd has it; it is
// not a key that could be read.
//
// # What differs from etcd
//
//   - A lease is known only to the process that granted it. When that process ends, its leases are
//     gone.
//   - A claim that is lost ends its lease: the next keepalive is answered with ttl 0, which is the
//     only way to tell a client. So does a request to resign or to hand over (primacy resign,
//     primacy transfer); there the claim is given up when the client's ttl is over or it gives up
//     itself.
//   - Names are 1 to 255 bytes of UTF-8, values at most 4096 bytes. An election named "a" does not
//     hold the keys of one named "a/b".
//   - A lease has at least 2 s and at most 200 s, or as much as the store allows; what was granted
//     is in the answer.
//   - A lease that Campaign or Lock makes by itself has 60 s, as with etcd, but they count from its
//     answer.
package etcdapi
