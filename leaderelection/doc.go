// Package leaderelection is a drop-in for k8s.io/client-go/tools/leaderelection: change the import.
// Its electors write the same record to the same Lease, so that they stand in one election with
// those of client-go during a rolling upgrade. Resource locks are client-go's own: resourcelock
// stays where it is.
//
// What is different, and why:
//
//   - A term ends in time. It is counted on the boot clock, from before the call that renewed the
//     Lease, and a timer of its own ends it, whatever the client does. RenewDeadline after the last
//     renewal the term's context ends; OnStoppedLeading has been called when nine tenths of
//     LeaseDuration are over. client-go goes on for up to RenewDeadline + RetryPeriod. If its
//     process was paused, it goes on for another RenewDeadline after that.
//   - Who does not hold the Lease any more stops at once. client-go tries on for RenewDeadline, and
//     may win the Lease back without a word to the work.
//   - Each term is a new one: it has a token that is larger than that of every term before it
//     ([LeaderElector.Token]), also if the same identity wins again.
//   - The work ends before the Lease is released. Run waits until OnStartedLeading has returned,
//     renewing the Lease meanwhile; see Run for how long.
//   - Only what this elector wrote is released. client-go's late release clears the Lease of
//     whoever holds it by then.
//   - Two processes with one identity do not lead at once: a Lease with our identity that this
//     elector did not write is another's until it runs out. So a process that crashed and comes
//     back under its old name waits as all others do.
//   - LeaseDuration is rounded up to whole seconds in the record, not down.
//   - Who waits watches the Lease, and polls only where the role does not allow it to watch.
//
// Coordinated election is refused: there the API server chooses the leader, and this package could
// promise nothing.
//
// A holder of client-go's in the same election still breaks its promise as before: an elector of
// this package waits for it for as long as its record says, as client-go's do.
package leaderelection
