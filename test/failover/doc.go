// Package failover holds what a proxy's clients see of a change of leader. It has tests only.
//
// [TestFailover]: three machines (network namespaces), each with a member of etcd and a `primacy
// run` that starts a service while it leads, and a fourth one with a real HAProxy that follows
// /leader/NAME by the configuration in deploy/haproxy. Clients ask through the proxy all the time,
// while leaders are killed, frozen and cut off. Each answer bears the token of the service's term
// and the instant at which it asked for its right, on the boot clock that all of them share.
//
// Two leaders are seen in one of two ways:
//
//   - by order: a request that was SENT after an answer with a newer token had ARRIVED, at whatever
//     client, was answered with an older one. (A request that was under way meanwhile may be:
//     nobody can take it back.)
//   - by instant: an answer of an older term was made at a later instant than one of a newer term.
//
// A gap is the time from the last answer of one term to the first of the next, as clients see it.
//
// [TestProxies] runs each example in deploy/ against the real proxy, on loopback, and kills the
// leader.
//
// [TestFailoverControl] takes the checks away from the proxy and the term from the service, and
// must then see two leaders.
//
// Knobs: FAILOVER_ROUNDS (default 3), FAILOVER_TTL (default 3s), FAILOVER_BLIND (not empty: the
// service does not ask for its term), FAILOVER_CONTROL (not empty: the control runs).
package failover
