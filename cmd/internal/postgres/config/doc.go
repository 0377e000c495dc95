// Package config is the shared configuration of a PostgreSQL cluster: what is the same for all of
// its members, and may be changed while they run. It is Patroni's dynamic configuration, a JSON
// object under Patroni's key, so that patronictl show-config and edit-config work on it. Nobody
// leads by it: a change of durability or acks goes through package core.
//
// # What a key means here
//
//	synchronous_mode                 off: async; on, true, quorum: available, or quorum if strict
//	synchronous_mode_strict          see there
//	synchronous_node_count           acks
//	maximum_lag_on_failover          the same; for async
//	postgresql.parameters            PostgreSQL's parameters, but those that protect the data
//	pause                            nobody is promoted
//	primacy.drop_after, .alone_after of primacy alone; Patroni knows no such keys
//
// Where a key is missing its default holds, as with Patroni. Those for which it has no use are told
// once in the log (see [Document.Read]) and kept: the document is written by Patroni's users, and
// must serve Patroni when they go back.
//
// What cannot be read, or would break a cluster, is refused as a whole, with one line. The last
// document that was good stays in force.
//
// # Files
//
//	document.go   the document: parse, merge, set, compare
//	shared.go     what it says
//	yaml.go       for people
//	store.go      where it stands
package config
