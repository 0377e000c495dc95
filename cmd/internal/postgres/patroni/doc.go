// Package patroni shows a cluster to the tools of Patroni's users: patronictl, HAProxy's checks,
// vip-manager, confd and Prometheus go on working. It has three parts.
//
//   - [Mirror] keeps Patroni's keys in etcd, as Patroni 3.0 and 4.1 write them.
//   - [API] answers Patroni's REST.
//   - [Restarts] keeps a restart that is scheduled, and has it done when it is due.
//
// Nothing is decided here, and package core reads nothing that is written here. All parts read
// snapshots of the member (agent.Snapshot): they hold it up by nothing. What a tool asks for is
// turned into what the program's own verbs do (see [Verbs]), with the same checks.
//
// The key leader names the primary while its term lives: it is written in a Txn that compares the
// claim of that term, and lies under the lease of that claim.
package patroni
