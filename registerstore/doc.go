// Package registerstore turns a compare-and-swap register into a store. Four calls (get, put if the
// version is still this one, delete, list), as object stores and key-value stores have them, become
// leases, lines in order, tokens that grow, hand-overs and journals. Write a [Register], call
// [FromRegister], and run the suite of package drivertest over it: docs/new-store.md.
//
// # Lines
//
// The whole state of a name is one document in one register: the line, the last token, the requests
// to the holder. Each verb is a pure function from a document to the next one (verbs.go), written
// by compare-and-swap. So the document decides who leads next, not who is fastest. It is never
// deleted, because its tokens must go on growing.
//
// A write whose outcome is unknown cannot harm later: it compares the version. Each carries a
// random mark, and a document keeps the last of them: so a writer whose client repeated the request
// finds out that it won, though it was told that it lost.
//
// # Leases
//
// A lease is a register of its own, which its owner rewrites at each renewal, however many claims
// it has. The storage has no clock and ends nothing. Whoever waits behind a claim of the lease, or
// follows a line it stands in, watches the lease's register. When that has not changed for 1.12
// times the ttl on the watcher's own clock, he ends the lease by a compare-and-swap on that very
// version, and only then removes its claims.
//
// Why that is safe: say N is the version that the watcher received last. A renewal that its owner
// counts either was sent before N was received, or made a later version than N. The owner trusts a
// renewal for 0.9 of the ttl from before he sent it. The watch ends 1.12 of the ttl after the
// receipt of N, which is later as long as the rates of the two clocks differ by less than 1.12 ÷
// 0.9, some 24 %. If the compare succeeds then there is no later version than N, and never will be:
// every renewal compares the version, finds the lease ended, and is told [driver.ErrGone] for good.
// So it does not matter how late that write is carried out, nor how long the watcher slept before
// he sent it with renewals unread: those make it fail. Counted from before the receipt it would not
// hold, nor if it compared anything else than what was received. No time is written down anywhere.
//
// A register that is not there is a lease that has ended; none ever comes back under its ID. A
// claim of a lease that has ended counts for nothing, even if it entered while the lease was being
// ended: whoever looks at a line looks at its leases, and removes what is over.
//
// # What it does not do
//
// If nobody waits for a name and nobody follows its line, a dead holder stays, and the next
// claimant watches it for 1.12 of its ttl before he leads. ([Store.Sweep], which each store runs
// about once an hour, ends such leases.) Every change of a line wakes all who watch it, for a
// moment: the register's watch is per key. Each step costs the whole document, which is fine for
// hundreds of waiters, not for ten thousands. Claims on several names are entered one by one.
//
// A storage that is put back to an earlier state (a restored backup, a failover that lost writes)
// has forgotten tokens and leases: nothing here can hold then.
package registerstore

// The order of locks, each taken before those below it:
//
//	lease.renewing, lease.reading   held during calls of the register; each by one call at a time
//	ownClaims.mu
//	Store.mu                        also guards each feed, lineWait and expiryWatch
//	ownClaims.dueMu
//
// No mutex is held during a call of the register.
