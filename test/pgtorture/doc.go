// Package pgtorture holds what `primacy postgres` promises against real servers and real faults. It
// has tests only.
//
// [TestTorture] runs three machines: a network namespace, a cgroup and a file system each, with a
// member of etcd, an agent and its PostgreSQL, with fsync. Eight writers find the primary among all
// addresses, as a user's program does, and one is pinned to each node's address, whatever that node
// is. Each inserts a numbered row every 20 ms. A row counts as acknowledged if its COMMIT came back
// without a WARNING. One fault after another is done to them, at a random instant of a cluster that
// is well. The row of faults is a function of the seed. A fault of the primary lasts until another
// has acknowledged a row and a moment longer, so that what comes back meets its successor.
//
// A round ends when the cluster is well again, with all standbys as voters and without help. Then
// it is judged: every row that was acknowledged is on all nodes. No node acknowledged a row that
// was sent after a node of a later timeline had acknowledged one. Each timeline was given out once,
// in the order of the tokens, by the cluster's record, and nobody acknowledged on another. While
// the store knows nothing of the cluster nobody acknowledges, and all keep their data. In the end
// all nodes have the same rows, agents end on SIGTERM with 0, and nothing is left: no process, no
// slot, no claim. The judges must find out doctored records ([TestTheJudge] and those after it),
// and a cluster whose commits wait for no standby and whose guardian is not told when the term ends
// ([TestControl]).
//
// [TestAsync] kills the primaries of an asynchronous cluster: no more rows are lost than `primacy
// postgres lost` says commits were, and nobody is promoted who is too far behind. [TestSeries] does
// 50 switchovers whose source, next primary or store is killed in their middle, kills the primary's
// machine 20 times in a row and turns the whole cluster off and on 10 times, in one cluster that
// nobody helps.
//
// The gap of a fault is the longest time in which none of the eight writers got a row acknowledged,
// from the fault until the cluster was well. It is told, and never a reason to fail. etcd's data
// are in memory, as if it had a disk of its own.
//
// The peer, Patroni as the machine has it, runs on the same machines with the same store, writers,
// faults and judges. What it loses is counted and is no failure. Of the faults it gets those that
// mean the same for it. Where it is not installed the test says so and is skipped.
//
// It needs Linux, root, ip(8) and setpriv(1). Where there are no namespaces it says so, runs on
// loopback and leaves most cuts out; where nothing can be mounted it says so and leaves the faults
// of disks out; where there are no cgroups it stops and kills one process after the other.
//
// Knobs, from the environment:
//
//	PGTORTURE_FOR         how long TestTorture does harm (default 12s)
//	PGTORTURE_ROUNDS      how many faults instead
//	PGTORTURE_TTL         of the lease (default 3s; Patroni's 20s, with loop_wait 5s)
//	PGTORTURE_SEED        default: from the clock
//	PGTORTURE_ONLY        the faults whose name matches this regular expression
//	PGTORTURE_DURABILITY  quorum (default) or available
//	PGTORTURE_STORE       what is added to the store's address: ?heartbeat=true
//	PGTORTURE_PEER        patroni: the peer in place of ours
//	PGTORTURE_RESULTS     a file to which each round adds a line; the table is of all of it
//	PGTORTURE_KEEP        keep the members' logs and data; they are kept where a test fails, too
//	PGTORTURE_PROGRAM     a program in place of the one that is built
//	PGTORTURE_CONTROL     run TestControl, which takes a minute
//	PGTORTURE_ASYNC       run TestAsync, three minutes
//	PGTORTURE_SERIES      run TestSeries, a quarter of an hour
package pgtorture
