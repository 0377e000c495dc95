// Package torture holds what Primacy promises against real processes, real etcd servers and real
// faults. It has tests only.
//
// [TestTorture] is the whole at once: a cluster of three in network namespaces, two lines of
// candidates (`primacy run` with a command that acts, and processes that use the library), a lock
// that several goroutines of each process want, and four lanes of faults beside each other: to
// etcd's members, to the leader's processes and claim, to the links between, and requests to hand
// over to one who waits, most of them disturbed: the successor or the leader is killed, frozen or
// cut off in the middle. Faults are aimed: etcd's leader is first moved to the member that the
// holder talks to. The row of faults and their parameters are a function of the seed.
//
// Each candidate acts every 5 ms while it believes that it leads, an act counting at the clock read
// before the question, and writes to a register of the harness every few acts. The register exists
// twice, with a fence and without. The record is judged afterwards, by internal/safety and, for the
// fenced register, by porcupine too: never two leaders at once, tokens grow, no acknowledged fenced
// write is lost. Two things are counted and not held against the promise: acts of a command that
// was frozen and thawed together with its supervisor and its guardian, and acts of a holder whose
// claim an operator has removed by hand, until it hears of it; where the link is silent too, that
// is at its deadline. The fence refuses what they write.
//
// [TestTortureControls] does the same to a plain etcd keepalive and to etcd's own election, which
// must be seen to lead twice.
//
// [TestLockHistories] has the goroutines of many processes contend for mutexes, locks for readers
// and writers, and semaphores, under the same faults but those that take a claim away by hand. What
// they recorded is judged by porcupine, with a model for each: there must be an order in which each
// lock was had and ended that such a lock allows. A hold begins within the call that took it. It
// ends after the last Check that said yes, and not before it was given back or its last known
// deadline, whichever came first; so a process that was killed or frozen keeps its lock until its
// deadline. [TestLockModels] shows that the models bite, and [TestLockControl] that etcd's own
// mutex is found out.
//
// Left out: steps of the wall clock. Nothing here reads it, no namespace has one of its own, and
// the machine's is not ours to step. Suspend and clocks that stop need a machine of their own; the
// simulation has them.
//
// The others look closer at one thing each. [TestRun] is the first promise of the program, seen
// from outside: three `primacy run` processes and what their commands wrote, while supervisors are
// killed and frozen, commands killed, networks blackholed and etcd restarted. The rest use the
// library in the test's process, or in a helper process where the process itself must suffer:
//
//	TestRun               never two commands at once; commands gone by the deadline, whichever two
//	                      of supervisor, guardian and command are killed or frozen, or all three
//	TestRunIsolated       the same with --isolate pid
//	TestTransfers         leaders asked to hand over, with no other faults than those that disturb
//	                      that
//	TestLockHistories     see above
//	TestCluster           three etcd members, frozen one by one and the leader killed: no term
//	                      lost, and how long things take
//	TestSilentLink        two sessions, the leader's link silent: never two whose Check says yes
//	TestLateReply         the same, after a renewal's reply that came late
//	TestPhantom           a claim whose lease is revoked in the line never leads
//	TestPause             a frozen process: its first Check after the thaw says no
//	TestWokenEtcdLeader   etcd's leader frozen and thawed: it revokes no lease that counts
//
// The same on every other store, with the faults of its servers: killed, frozen, cut off from each
// other, failed over to a standby that is behind.
//
//	TestRunOnStores            TestRun, and nothing may be left in the store in the end
//	TestCheckOnStores          TestSilentLink, TestLateReply and TestPause
//	TestTortureOnStores        TestTorture and TestLockHistories
//	TestTwoPrimariesOfRedis    where the promise ends: an old primary lives on beside the promoted
//	                           replica; and what WAIT does about it
//	TestAQuorumThatForgets     where the promise ends: servers of a quorum come back empty; and
//	                           what waiting for a ttl does about it
//	TestStoreControl           SET NX PX on Redis, which must be seen to lead twice
//
// When a cgroup freezes supervisor, guardian and command together (version 2), and thaws them after
// the deadline, nothing in the process can prevent a late act, unless the command is isolated.
// There the command is gone within 50 ms of the thaw, the late acts are counted, and a fence is
// what refuses them.
//
// With -short, as make test has it, TestRun, TestTorture, TestTortureOnStores, TestPause and
// TestSilentLink run briefly, and most others not at all.
//
// Knobs, from the environment:
//
//	TORTURE_FOR           how long TestTorture (default 60s, 20s with -short) and
//	                      TestTortureOnStores (only if set; 6s with -short or TORTURE_STORE) do
//	                      harm, and TORTURE_TTL (default 3s)
//	TORTURE_CONTROL_FOR   the same for TestTortureControls (default 30s; all faults from 2m on),
//	                      and TORTURE_CONTROL_TTL (default 4s)
//	TORTURE_SEED          default: from the clock
//	TORTURE_KEEP          an empty folder that keeps the record
//	TORTURE_ETCD          etcd's version
//	TORTURE_RATE          the clocks of two members run fast and slow by so many percent, such as
//	                      5 (builds etcd anew, for minutes); on Kubernetes, where who waits times
//	                      the leader, those of two library processes: at 10 who is cut off stops
//	                      2 % before the next one leads, at 15 there are two
//	LOCKS_FOR             how long TestLockHistories does harm (default 12s; from 1m on the long
//	                      run: all faults, 8 processes, ttl 5s)
//	LOCKS_KIND            mutex, rw, semaphore, or several with commas (default: all)
//	LOCKS_PROCESSES       how many processes want them; LOCKS_TTL, LOCKS_SEED
//	TRANSFERS_FOR         how long TestTransfers does harm (default 15s)
//	TORTURE_WORKER        a foreign program for all candidates of TestTorture; TORTURE_KIND is
//	                      passed on to it
//	TORTURE_EXPECT        overlap: with TORTURE_WORKER, a run without two leaders at once fails
//	TORTURE_ROUNDS        rounds of TestRun (default 20, 3 with -short) and of TestRunOnStores
//	                      (default: a choice of 3)
//	TORTURE_STORE         the stores for the tests …OnStores, with commas (default: all but etcd;
//	                      the names are those of the subtests)
//	TORTURE_LONG          rounds of each of the others, instead of their short default
//	TORTURE_WOKEN         rounds of TestWokenEtcdLeader (default 2)
//
// A foreign worker is started as
//
//	WORKER --kind K --endpoints HOST:PORT,… --name NAME --id ID --ttl 3s --acts FILE --writes FILE --sink SOCKET
//
// It campaigns for ever and exits 0 on SIGTERM after resigning. While it believes that it leads it
// appends a line "boot_ns token id" to --acts every 5 ms, with the boot clock read before it asked
// itself whether it leads, and sends a line "token id seq boot_ns" to the unix socket now and then.
// The answer is "ok" or "stale LARGEST", and it appends "call_ns return_ns token id seq
// ok|stale|unknown" to --writes.
package torture
