// Package torture holds what Primacy promises against real processes, real etcd servers and real faults. It has tests only.
//
// [TestRun] is the first promise of the program, seen from outside: three `primacy run` processes and what their commands
// wrote every 5 ms, while supervisors are killed and frozen, commands killed, networks blackholed and etcd restarted. The
// others use the library in the test's process, or in a helper process where the process itself is what must suffer:
//
//	TestRun               never two commands at once; commands gone by the deadline of a killed or frozen supervisor
//	TestCluster           three etcd members, frozen one by one and the leader killed: no term lost, and how long things take
//	TestSilentLink        two sessions, the leader's link silent: never two whose Check says yes
//	TestLateReply         the same, after a renewal's reply that came late
//	TestPhantom           a claim whose lease is revoked in the line never leads
//	TestPause             a frozen process: its first Check after the thaw says no
//	TestWokenEtcdLeader   known to fail, skipped: etcd itself revokes a lease that is alive
//
// Each run prints what it measured, TestRun its seed, too. The checks are shown to bite: on a worker that nobody supervises,
// and on etcd's own package under the same faults.
//
// When supervisor, guardian and command are all frozen and thawed together nothing in the process can prevent a late act.
// There the command is gone within 50 ms of the thaw, the late acts are counted, and a fence is what refuses them.
//
// Knobs, from the environment: TORTURE_ROUNDS (rounds of TestRun, default 20), TORTURE_SEED (default: from the clock),
// TORTURE_LONG (rounds of each of the others, instead of their short default), TORTURE_WOKEN.
package torture
