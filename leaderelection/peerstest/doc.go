// Package peerstest holds this module's electors beside client-go's: real processes on a Kubernetes
// API server, under the same faults, judged by what they did. It has tests only.
//
// [TestSideBySide] does five faults to elections of three processes of one kind, many times, and
// prints who overlapped how often. [TestRollingRestarts] has processes of three kinds in one
// election (client-go in the oldest version that this module names, the newest, and ours) and
// replaces one after the other.
//
// Knobs, from the environment:
//
//	ELECTORS_ROUNDS   how often TestSideBySide does each fault (default 1)
//	ELECTORS_TIMES    LeaseDuration/RenewDeadline/RetryPeriod there, several with commas
//	                  (default 4s/3s/500ms)
//	ELECTORS_FAULT    only faults whose name has this in it
//	ELECTORS_AT_ONCE  elections at one time (default 8)
//	ELECTORS_FOR      how long TestRollingRestarts restarts (default 30s)
package peerstest
