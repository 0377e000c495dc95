// Package torture holds what Primacy promises against real processes, real etcd servers and real faults. It has tests only.
//
// [TestRun] is the first promise of the program, seen from outside: three `primacy run` processes and what their commands
// wrote every 5 ms, while supervisors are killed and frozen, commands killed, networks blackholed and etcd restarted. The
// others use the library in the test's process, or in a helper process where the process itself is what must suffer:
//
//	TestRun          never two commands at once; commands gone by the deadline of a killed or frozen supervisor
//
// Each run prints its seed and what it measured. Each check is shown to bite: it is also run on what must fail it.
//
// Knobs, from the environment: TORTURE_ROUNDS (rounds of TestRun, default 20), TORTURE_SEED (default: from the clock),
// TORTURE_LONG (rounds of each of the others, instead of their short default).
package torture
